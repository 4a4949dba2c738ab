"""Program 34, a switch transformer (labml transformers/switch): each word goes to one expert, whose load is balanced.

How many words an expert has depends on numbers, so the step cannot be captured.
"""

from __future__ import annotations

from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops

WORDS, WIDTH, EXPERTS, CAPACITY = 24, 16, 3, 1.2


class SwitchFeedForward(ag.Layer):
    def __init__(self) -> None:
        self.switch = nn.Linear(WIDTH, EXPERTS)
        self.experts = [nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH)) for _ in range(EXPERTS)]

    def forward(self, x: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
        shape, x = x.shape, x.reshape(WIDTH, -1)
        route_prob = ops.softmax(self.switch(x))
        highest, routes = ops.max_with_indices(route_prob, 0)
        capacity = int(CAPACITY * x.shape[1] / EXPERTS)
        out, counts = x, []  # a word beyond the capacity of its expert stays as it is
        for i, expert in enumerate(self.experts):
            mine = ops.nonzero(routes == i)[:, 0]
            counts.append(mine.shape[0])
            out = ops.index_copy(out, 1, mine[:capacity], expert(x[:, mine[:capacity]]))
        fractions = ops.mean(route_prob, 1) * [n / x.shape[1] for n in counts]
        return (out * highest[None]).reshape(*shape), EXPERTS * ops.sum(fractions)


class SwitchTransformer(ag.Layer):
    def __init__(self) -> None:
        self.words, self.attention = nn.Embedding(WORDS, WIDTH), nn.MultiheadAttention(WIDTH, 2)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.feed_forward, self.norm2 = SwitchFeedForward(), nn.LayerNorm(WIDTH)
        self.norm, self.generator = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Array) -> tuple[ag.Tensor, ag.Tensor]:
        x = self.words(words)
        x = x + self.attention(self.norm1(x), causal_mask=True)
        y, load = self.feed_forward(self.norm2(x))
        return self.generator(self.norm(x + y)), load


def program(draw: Draw) -> tuple[object, Batches]:
    model = SwitchTransformer()
    fill(model, draw)
    optimizer = ag.optim.Adam(model.parameters(), lr=3e-3)
    words = draw.ids(WORDS, 9, 4)

    def step(words: Array, following: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            logits, load = model(words)
            loss = ops.cross_entropy(logits, following) + 0.01 * load
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(words[:-1], words[1:])] * 6
