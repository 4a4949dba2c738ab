"""Program 4, makemore's WaveNet: pairs of characters are joined level by level, each with a batch norm."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops

VOCABULARY, BLOCK, HIDDEN = 27, 8, 16


class FlattenConsecutive(ag.Layer):
    """Joins the features of neighbours, from (features, time, batch)."""

    def __init__(self, n: int) -> None:
        self.n = n

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        features, time, batch = x.shape
        x = x.reshape(features, time // self.n, self.n, batch).permute(2, 0, 1, 3)
        return x.reshape(self.n * features, -1, batch)


def level(features: int) -> list[ag.Layer]:
    return [FlattenConsecutive(2), nn.Linear(2 * features, HIDDEN, bias=False), nn.BatchNorm1d(HIDDEN), nn.Tanh()]


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.Sequential(nn.Embedding(VOCABULARY, 8), *level(8), *level(HIDDEN), *level(HIDDEN),
                          nn.Linear(HIDDEN, VOCABULARY))
    for p in model.parameters().values():
        p.data = draw(*p.shape, scale=0.5)
    optimizer = ag.optim.SGD(model, lr=0.1)

    def step(ids: ag.Tensor, targets: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(ids).squeeze(1), targets)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(draw.ids(VOCABULARY, BLOCK, 16), draw.ids(VOCABULARY, 16)) for _ in range(6)]
