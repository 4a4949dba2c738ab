"""Program 2, makemore's bag of words: the mean of all characters so far, by a masked softmax of zeros."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops

VOCABULARY, BLOCK = 27, 6


class CausalBoW(ag.Layer):
    def forward(self, x: ag.Tensor) -> ag.Tensor:
        length = x.shape[1]
        attention = ops.zeros(length, length).masked_fill(ops.ones(length, length).tril() == 0, float("-inf"))
        return ops.einsum("qk,ckb->cqb", attention.softmax(dim=1), x)


class BoW(ag.Layer):
    def __init__(self) -> None:
        self.wte, self.wpe = nn.Embedding(VOCABULARY, 16), nn.Embedding(BLOCK, 16)
        self.cbow = CausalBoW()
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
        self.lm_head = nn.Linear(16, VOCABULARY)

    def forward(self, ids: ag.Tensor) -> ag.Tensor:
        x = self.wte(ids) + self.wpe(ops.arange(ids.shape[0])).unsqueeze(-1)
        x = x + self.cbow(x)
        x = x + self.mlp(x)
        return self.lm_head(x)


def program(draw: Draw) -> tuple[object, Batches]:
    model = BoW()
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.AdamW(model, lr=5e-3, beta2=0.99)

    def step(ids: ag.Tensor, targets: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(ids), targets, ignore_index=-1)
        optimizer.step(ag.backward(loss))
        return loss

    words = [draw.ids(VOCABULARY + 1, BLOCK, 8) - 1 for _ in range(6)]  # in targets, -1 is behind the end
    return step, [(abs(word), word) for word in words]
