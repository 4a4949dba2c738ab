"""Program 57, direct preference optimization (eric-mitchell, same name): a policy, and what it was at first.

Adam stands in the place of RMSprop.
"""

from __future__ import annotations

import numpy as np
from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


class LanguageModel(ag.Layer):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(11, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 11))

    def forward(self, ids: ag.Tensor) -> ag.Tensor:
        x = self.embedding(ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3)
        return self.head(x + self.out(ops.attention(q, k, v, causal=True, heads=2)))


def log_probs(model: LanguageModel, ids: ag.Tensor, labels: ag.Tensor) -> ag.Tensor:
    """Return the logarithm of the probability of each answer; labels of -100 are of no answer."""
    labels, logits = labels[1:], model(ids)[:, :-1]
    mask = labels != -100
    of_tokens = ops.gather(ops.log_softmax(logits, 0), 0, np.where(mask, labels, 0)[None])
    return ops.where(mask, of_tokens[0], 0.0).sum(0)


def program(draw: Draw) -> tuple[object, Batches]:
    policy, reference = LanguageModel(), LanguageModel()
    for p in policy.parameters().values():
        p.data = draw(*p.shape)
    reference.load_state_dict(policy.state_dict())
    reference.freeze()
    optimizer = ag.optim.Adam(policy.parameters(), lr=2e-3)
    beta = 0.5

    def step(ids: ag.Tensor, labels: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            chosen, rejected = log_probs(policy, ids, labels).chunk(2)
            of_reference = log_probs(reference, ids, labels).chunk(2)
            logits = (chosen - rejected) - (of_reference[0] - of_reference[1])
            loss = -ops.logsigmoid(beta * logits).mean()
        optimizer.step(ag.backward(loss))
        return loss

    batches = []
    for _ in range(6):
        ids = draw.ids(11, 8, 6)
        labels = np.where(np.arange(8)[:, None] < [2, 3, 2, 2, 3, 2], -100, ids)  # of the prompts
        batches.append((ids, np.where(np.arange(8)[:, None] >= [8, 7, 8, 6, 8, 8], -100, labels)))
    return step, batches
