"""Program 21, PyTorch's polynomial regression: a linear layer of powers, trained without an optimizer."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


def program(draw: Draw) -> tuple[object, Batches]:
    fc = nn.Linear(4, 1)
    for p in fc.parameters().values():
        p.data = draw(*p.shape)
    weights, bias = ag.ag_tensor(draw(1, 4, scale=5.0)), ag.ag_tensor(draw(1, 1, scale=5.0))

    def make_features(x: ag.Tensor) -> ag.Tensor:
        return ops.concat([x**i for i in range(1, 5)])

    def step(x: ag.Tensor) -> ag.Tensor:
        x = make_features(ag.ag_tensor(x))
        with ag.with_grad_tape():
            loss = ops.smooth_l1_loss(fc(x), weights @ x + bias)
        grads = ag.backward(loss)
        for p in fc.parameters().values():
            p -= 0.1 * grads[p]
        return loss

    return step, [(draw(1, 32, scale=0.6),) for _ in range(8)]
