"""Program 3, makemore's RNN: a cell that reads one character after the other, from a learned first state."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops

VOCABULARY, HIDDEN = 27, 16


class RNNCell(ag.Layer):
    def __init__(self) -> None:
        self.xh_to_h = nn.Linear(8 + HIDDEN, HIDDEN)

    def forward(self, x: ag.Tensor, h: ag.Tensor) -> ag.Tensor:
        return self.xh_to_h(ops.concat([x, h])).tanh()


class RNN(ag.Layer):
    def __init__(self, cell: ag.Layer) -> None:
        self.start = ag.ag_param(ops.zeros(HIDDEN, 1))
        self.wte = nn.Embedding(VOCABULARY, 8)
        self.cell = cell
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, ids: ag.Tensor) -> ag.Tensor:
        h, states = self.start.expand(-1, ids.shape[1]), []
        for x in self.wte(ids).unbind(1):
            h = self.cell(x, h)
            states.append(h)
        return self.lm_head(ops.stack(states, 1))


def program(draw: Draw, cell: type[ag.Layer] = RNNCell) -> tuple[object, Batches]:
    model = RNN(cell())
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.AdamW(model, lr=5e-3, beta2=0.99)

    def step(ids: ag.Tensor, targets: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(ids), targets, ignore_index=-1)
        optimizer.step(ag.backward(loss))
        return loss

    words = [draw.ids(VOCABULARY + 1, 6, 8) - 1 for _ in range(6)]  # in targets, -1 is behind the end
    return step, [(abs(word), word) for word in words]
