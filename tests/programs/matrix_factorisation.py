"""Program 48, matrix factorisation (d2l chapter_recommender-systems/mf.md): a rating is a product and two biases.

SGD with weight decay stands in the place of Adam with an L2 penalty.
"""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


class MF(ag.Layer):
    def __init__(self, factors: int, users: int, items: int) -> None:
        self.P, self.Q = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)

    def forward(self, user: ag.Tensor, item: ag.Tensor) -> ag.Tensor:
        return (self.P(user) * self.Q(item)).sum(0) + self.user_bias(user)[0] + self.item_bias(item)[0]


def program(draw: Draw) -> tuple[object, Batches]:
    model = MF(8, users=12, items=20)
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-3)

    def step(user: ag.Tensor, item: ag.Tensor, rating: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.mse_loss(model(user, item), rating)
        optimizer.step(ag.backward(loss))
        return loss

    user, item, rating = draw.ids(12, 32), draw.ids(20, 32), draw.ids(5, 32) + 1.0
    return step, [(user, item, rating)] * 8
