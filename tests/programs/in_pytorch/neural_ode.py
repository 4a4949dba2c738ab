from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional


def odeint(func: Callable[..., torch.Tensor], y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    states = [y]
    for t0, t1 in pairwise(t):
        dt, y = t1 - t0, states[-1]
        k1 = func(t0, y)
        k2 = func(t0 + dt / 3, y + dt * k1 / 3)
        k3 = func(t0 + dt * 2 / 3, y + dt * (k2 - k1 / 3))
        k4 = func(t1, y + dt * (k1 - k2 + k3))
        states.append(y + dt * (k1 + 3 * (k2 + k3) + k4) / 8)
    return torch.stack(states, dim=0)


class ODEFunc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.net(y**3)


def program(draw: Draw) -> tuple[object, Batches]:
    func = ODEFunc()
    for p in func.parameters():
        p.data = torch.tensor(draw(*p.shape) if p.ndim > 1 else draw(*p.shape, 1)[:, 0])
    optimizer = torch.optim.Adam(func.parameters(), lr=0.01)

    def step(y0: object, t: object, y: object) -> float:
        loss = functional.l1_loss(odeint(func, torch.tensor(y0).T, torch.tensor(t)), torch.tensor(y).mT)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    t = np.linspace(0.0, 1.0, 6, dtype="f")
    return step, [(draw(2, 8, scale=1.0), t, draw(6, 2, 8, scale=1.0)) for _ in range(6)]
