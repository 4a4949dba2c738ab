"""Write torch.json: what PyTorch computes of the losses in cases.py, for test_losses.py.

Run it as ``python tests/ops/losses/make.py`` where torch is installed, which neither `ag` nor its tests need.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from cases import Array, Case, cases, factors, told


def reduced(losses: torch.Tensor, reduction: str) -> torch.Tensor:
    return losses if reduction == "none" else getattr(losses, reduction)()


def sigmoid_focal_loss(x: torch.Tensor, t: torch.Tensor, alpha: float = 0.25, gamma: float = 2.0,
                       reduction: str = "none") -> torch.Tensor:
    """As in torchvision 0.20."""
    p = torch.sigmoid(x)
    loss = F.binary_cross_entropy_with_logits(x, t, reduction="none") * (1 - (p * t + (1 - p) * (1 - t))) ** gamma
    return reduced((alpha * t + (1 - alpha) * (1 - t)) * loss if alpha >= 0 else loss, reduction)


def dice_loss(p: torch.Tensor, t: torch.Tensor, smooth: float = 1.0, reduction: str = "mean") -> torch.Tensor:
    def sums(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(2).sum(2)

    return reduced(1 - (2 * sums(p * t) + smooth) / (sums(p) + sums(t) + smooth), reduction)


OWN = {"sigmoid_focal_loss": sigmoid_focal_loss, "dice_loss": dice_loss}


def theirs(case: Case, seed: int) -> tuple[Array, list[Array]]:
    """Losses and gradients by PyTorch, with the batch last."""
    operands, options = case.drawn(seed)
    given: list[Any] = [torch.tensor(np.ascontiguousarray(np.moveaxis(x, -1, 0))) for x in operands]
    for i in case.gradients:
        given[i].requires_grad_()
    options = {k: torch.tensor(np.ascontiguousarray(np.moveaxis(v, -1, 0))) if isinstance(v, np.ndarray) else v
               for k, v in options.items()}
    losses = OWN.get(case.name, getattr(F, case.name, None))(*given, **options)
    whole = np.moveaxis(losses.detach().numpy(), 0, -1) if losses.ndim else losses.detach().numpy()
    weights = np.moveaxis(factors(whole.shape), -1, 0) if losses.ndim else factors(())
    (losses * torch.tensor(np.ascontiguousarray(weights))).sum().backward()
    return whole, [np.moveaxis(given[i].grad.numpy(), 0, -1) for i in case.gradients]


if __name__ == "__main__":
    rows = [f'"{case}": {json.dumps(told(*theirs(case, 0)))}' for case in cases()]
    Path(__file__).with_name("torch.json").write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")
    print(f"{len(rows)} cases, torch {torch.__version__}")
