"""Program 52, HyperLSTM (labml hypernetworks/hyper_lstm.py): a small LSTM scales the weights of a larger one."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


def gates(x: list[ag.Tensor], norms: list[nn.LayerNorm]) -> tuple[ag.Tensor, ag.Tensor, ag.Tensor, ag.Tensor]:
    i, f, g, o = (norm(part) for norm, part in zip(norms, x, strict=True))
    return ops.sigmoid(i), ops.sigmoid(f), ops.tanh(g), ops.sigmoid(o)


class LSTMCell(ag.Layer):
    def __init__(self, inputs: int, hidden: int) -> None:
        self.hidden, self.input = nn.Linear(hidden, 4 * hidden), nn.Linear(inputs, 4 * hidden, bias=False)
        self.norms, self.norm_c = [nn.LayerNorm(hidden) for _ in range(4)], nn.LayerNorm(hidden)

    def forward(self, x: ag.Tensor, h: ag.Tensor, c: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
        i, f, g, o = gates((self.hidden(h) + self.input(x)).chunk(4), self.norms)
        c = f * c + i * g
        return o * ops.tanh(self.norm_c(c)), c


class HyperLSTMCell(ag.Layer):
    def __init__(self, inputs: int, hidden: int, hyper: int, n_z: int) -> None:
        self.w_h = [ag.ag_param(ops.zeros(hidden, hidden)) for _ in range(4)]
        self.w_x = [ag.ag_param(ops.zeros(hidden, inputs)) for _ in range(4)]
        self.hyper = LSTMCell(hidden + inputs, hyper)
        self.z_h, self.z_x = nn.Linear(hyper, 4 * n_z), nn.Linear(hyper, 4 * n_z)
        self.z_b = nn.Linear(hyper, 4 * n_z, bias=False)
        self.d_h = [nn.Linear(n_z, hidden, bias=False) for _ in range(4)]
        self.d_x = [nn.Linear(n_z, hidden, bias=False) for _ in range(4)]
        self.d_b = [nn.Linear(n_z, hidden) for _ in range(4)]
        self.norms, self.norm_c = [nn.LayerNorm(hidden) for _ in range(4)], nn.LayerNorm(hidden)

    def forward(self, x: ag.Tensor, h: ag.Tensor, c: ag.Tensor, small_h: ag.Tensor,
                small_c: ag.Tensor) -> tuple[ag.Tensor, ...]:
        small_h, small_c = self.hyper(ops.concat([h, x]), small_h, small_c)
        z_h, z_x, z_b = (z(small_h).chunk(4) for z in (self.z_h, self.z_x, self.z_b))
        parts = [self.d_h[k](z_h[k]) * ops.einsum("ij,jb->ib", self.w_h[k], h)
                 + self.d_x[k](z_x[k]) * ops.einsum("ij,jb->ib", self.w_x[k], x) + self.d_b[k](z_b[k])
                 for k in range(4)]
        i, f, g, o = gates(parts, self.norms)
        c = f * c + i * g
        return o * ops.tanh(self.norm_c(c)), c, small_h, small_c


class CharacterModel(ag.Layer):
    def __init__(self) -> None:
        self.embedding, self.cell, self.head = nn.Embedding(12, 8), HyperLSTMCell(8, 16, 8, 4), nn.Linear(16, 12)

    def forward(self, text: ag.Tensor) -> ag.Tensor:
        state = [ops.zeros(size, text.shape[1]) for size in (16, 16, 8, 8)]
        outputs = []
        for x in self.embedding(text).unbind(1):
            state = self.cell(x, *state)
            outputs.append(self.head(state[0]))
        return ops.stack(outputs, dim=1)


def program(draw: Draw) -> tuple[object, Batches]:
    model = CharacterModel()
    for p in model.parameters().values():
        p.data = draw(*p.shape, scale=0.5)
    optimizer = ag.optim.Adam(model.parameters(), lr=2.5e-3)

    def step(text: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(text[:-1]), text[1:])
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(draw.ids(12, 3, 4),) for _ in range(5)]
