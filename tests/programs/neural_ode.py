"""Program 54, a neural ordinary differential equation (rtqichen/torchdiffeq ode_demo.py) by Runge and Kutta's 3/8 rule.

Adam stands in the place of RMSprop.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


def odeint(func: Callable[..., ag.Tensor], y: ag.Tensor, t: ag.Tensor) -> ag.Tensor:
    """Return the states at all times, the first axis."""
    states = [y]
    for t0, t1 in pairwise(t):
        dt, y = t1 - t0, states[-1]
        k1 = func(t0, y)
        k2 = func(t0 + dt / 3, y + dt * k1 / 3)
        k3 = func(t0 + dt * 2 / 3, y + dt * (k2 - k1 / 3))
        k4 = func(t1, y + dt * (k1 - k2 + k3))
        states.append(y + dt * (k1 + 3 * (k2 + k3) + k4) / 8)
    return ops.stack(states, dim=0)


class ODEFunc(ag.Layer):
    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
        return self.net(y**3)


def program(draw: Draw) -> tuple[object, Batches]:
    func = ODEFunc()
    for p in func.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.Adam(func.parameters(), lr=0.01)

    def step(y0: ag.Tensor, t: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.l1_loss(odeint(func, y0, t), y)
        optimizer.step(ag.backward(loss))
        return loss

    t = np.linspace(0.0, 1.0, 6, dtype="f")
    return step, [(draw(2, 8, scale=1.0), t, draw(6, 2, 8, scale=1.0)) for _ in range(6)]
