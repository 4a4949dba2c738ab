"""A plain training loop: for tests that compare the losses of a model that is spread with those of one device."""

from __future__ import annotations

from typing import Any

import ag
from ag.optim.optimizer import Optimizer


def training_losses(model: Any, optimizer: Optimizer, x: ag.Tensor, y: Any, steps: int) -> list[float]:
    """The mean-squared error before each step; `y` goes to wherever the model's result is."""
    found = []
    for _ in range(steps):
        with ag.with_grad_tape():
            out = model(x)
            loss = ag.ag_mse_loss(out, ag.ag_tensor(y, device=out.device))
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        found.append(loss.item())
    return found
