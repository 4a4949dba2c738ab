"""Program 48, DeepFM (d2l chapter_recommender-systems/deepfm.md): a factorisation machine beside a perceptron."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops

FIELDS = [5, 7, 4]  # words of each


class DeepFM(ag.Layer):
    def __init__(self, factors: int) -> None:
        self.vectors, self.weights = nn.Embedding(sum(FIELDS), factors), nn.Embedding(sum(FIELDS), 1)
        self.linear = nn.Linear(1, 1)
        self.hidden = nn.Linear(len(FIELDS) * factors, 16, activation="relu")
        self.last = nn.Linear(16, 1)

    def forward(self, x: ag.Tensor, kept: ag.Tensor) -> ag.Tensor:
        vectors = self.vectors(x)  # (factors, fields, batch)
        square_of_sum, sum_of_square = ops.square(vectors.sum(1)), ops.square(vectors).sum(1)
        linear = self.linear(self.weights(x).sum(1))
        deep = self.last(self.hidden(ops.flatten(vectors)) * kept / 0.9)
        return linear + 0.5 * (square_of_sum - sum_of_square).sum(0, keepdim=True) + deep


def program(draw: Draw) -> tuple[object, Batches]:
    model = DeepFM(8)
    for p in model.parameters().values():
        p.data = draw(*p.shape, scale=0.5)
    optimizer = ag.optim.Adam(model.parameters(), lr=0.01)

    def step(x: ag.Tensor, kept: ag.Tensor, clicked: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.binary_cross_entropy_with_logits(model(x, kept), clicked)
        optimizer.step(ag.backward(loss))
        return loss

    x = draw.ids(4, 3, 24) + [[0], [5], [12]]  # the words of each field after those before it
    clicked = draw.ids(2, 1, 24).astype("f")
    return step, [(x, (draw.uniform(16, 24) < 0.9).astype("f"), clicked) for _ in range(6)]
