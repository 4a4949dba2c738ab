from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional


def gates(x: list[torch.Tensor], norms: nn.ModuleList) -> tuple[torch.Tensor, ...]:
    i, f, g, o = (norm(part) for norm, part in zip(norms, x, strict=True))
    return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()


def norms_of(size: int) -> nn.ModuleList:
    return nn.ModuleList([nn.LayerNorm(size) for _ in range(4)])


class LSTMCell(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden, self.input = nn.Linear(hidden, 4 * hidden), nn.Linear(inputs, 4 * hidden, bias=False)
        self.norms, self.norm_c = norms_of(hidden), nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, g, o = gates((self.hidden(h) + self.input(x)).chunk(4, 1), self.norms)
        c = f * c + i * g
        return o * self.norm_c(c).tanh(), c


class HyperLSTMCell(nn.Module):
    def __init__(self, inputs: int, hidden: int, hyper: int, n_z: int) -> None:
        super().__init__()
        self.w_h = nn.ParameterList([nn.Parameter(torch.zeros(hidden, hidden)) for _ in range(4)])
        self.w_x = nn.ParameterList([nn.Parameter(torch.zeros(hidden, inputs)) for _ in range(4)])
        self.hyper = LSTMCell(hidden + inputs, hyper)
        self.z_h, self.z_x = nn.Linear(hyper, 4 * n_z), nn.Linear(hyper, 4 * n_z)
        self.z_b = nn.Linear(hyper, 4 * n_z, bias=False)
        self.d_h = nn.ModuleList([nn.Linear(n_z, hidden, bias=False) for _ in range(4)])
        self.d_x = nn.ModuleList([nn.Linear(n_z, hidden, bias=False) for _ in range(4)])
        self.d_b = nn.ModuleList([nn.Linear(n_z, hidden) for _ in range(4)])
        self.norms, self.norm_c = norms_of(hidden), nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, small_h: torch.Tensor,
                small_c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        small_h, small_c = self.hyper(torch.cat([h, x], 1), small_h, small_c)
        z_h, z_x, z_b = (z(small_h).chunk(4, 1) for z in (self.z_h, self.z_x, self.z_b))
        parts = [self.d_h[k](z_h[k]) * torch.einsum("ij,bj->bi", self.w_h[k], h)
                 + self.d_x[k](z_x[k]) * torch.einsum("ij,bj->bi", self.w_x[k], x) + self.d_b[k](z_b[k])
                 for k in range(4)]
        i, f, g, o = gates(parts, self.norms)
        c = f * c + i * g
        return o * self.norm_c(c).tanh(), c, small_h, small_c


class CharacterModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(12, 8), HyperLSTMCell(8, 16, 8, 4), nn.Linear(16, 12)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        state = [torch.zeros(len(text), size) for size in (16, 16, 8, 8)]
        outputs = []
        for x in self.embedding(text).unbind(1):
            state = self.cell(x, *state)
            outputs.append(self.head(state[0]))
        return torch.stack(outputs, 2)


def program(draw: Draw) -> tuple[object, Batches]:
    model = CharacterModel()
    for name, p in model.named_parameters():
        shape = p.shape[::-1] if name == "embedding.weight" else (*p.shape, 1)[:2]
        drawn = draw(*shape, scale=0.5)
        p.data = torch.tensor(drawn.T if name == "embedding.weight" else drawn.reshape(p.shape))
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-3)

    def step(text: object) -> float:
        text = torch.tensor(text).T
        loss = functional.cross_entropy(model(text[:, :-1]), text[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(draw.ids(12, 3, 4),) for _ in range(5)]
