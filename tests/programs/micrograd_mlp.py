"""Program 1, micrograd's demo: a perceptron that tells two moons apart by the hinge loss, with a penalty of weights."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.SGD(model.parameters(), lr=0.1)
    x, y = draw(2, 40, scale=1.0), draw.ids(2, 1, 40) * 2.0 - 1.0

    def step(x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.mean(ops.relu(1.0 - y * model(x)))
            loss = loss + 1e-4 * sum(ops.sum(ops.square(p)) for p in model.parameters().values())
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(x, y)] * 8
