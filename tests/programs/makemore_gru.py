"""Program 3, makemore's GRU: its RNN with another cell, whose gates say how much of the state to renew."""

from __future__ import annotations

from programs import makemore_rnn
from programs.drawn import Batches, Draw
from programs.makemore_rnn import HIDDEN

import ag
from ag import nn, ops


class GRUCell(ag.Layer):
    def __init__(self) -> None:
        self.xh_to_z, self.xh_to_r, self.xh_to_hbar = (nn.Linear(8 + HIDDEN, HIDDEN) for _ in range(3))

    def forward(self, x: ag.Tensor, h: ag.Tensor) -> ag.Tensor:
        xh = ops.concat([x, h])
        r, z = self.xh_to_r(xh).sigmoid(), self.xh_to_z(xh).sigmoid()
        hbar = self.xh_to_hbar(ops.concat([x, r * h])).tanh()
        return (1 - z) * h + z * hbar


def program(draw: Draw) -> tuple[object, Batches]:
    return makemore_rnn.program(draw, GRUCell)
