from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.in_pytorch import makemore_rnn
from programs.in_pytorch.makemore_rnn import HIDDEN
from torch import nn


class GRUCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.xh_to_z, self.xh_to_r, self.xh_to_hbar = (nn.Linear(8 + HIDDEN, HIDDEN) for _ in range(3))

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        xh = torch.cat([x, h], 1)
        r, z = self.xh_to_r(xh).sigmoid(), self.xh_to_z(xh).sigmoid()
        hbar = self.xh_to_hbar(torch.cat([x, r * h], 1)).tanh()
        return (1 - z) * h + z * hbar


def program(draw: Draw) -> tuple[object, Batches]:
    return makemore_rnn.program(draw, GRUCell)
