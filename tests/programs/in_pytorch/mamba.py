from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional


class MambaBlock(nn.Module):
    def __init__(self, dim: int, inner: int, state: int, dt_rank: int, kernel: int) -> None:
        super().__init__()
        self.A_log, self.D = nn.Parameter(torch.zeros(inner, state)), nn.Parameter(torch.ones(inner))
        self.in_proj = nn.Linear(dim, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, kernel, padding=kernel - 1, groups=inner)
        self.x_proj = nn.Linear(inner, dt_rank + 2 * state, bias=False)
        self.dt_proj, self.out_proj = nn.Linear(dt_rank, inner), nn.Linear(inner, dim, bias=False)
        self.sizes = [dt_rank, state, state]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, gate = self.in_proj(x).chunk(2, -1)
        x = functional.silu(self.conv1d(x.mT)[:, :, :x.shape[1]].mT)
        return self.out_proj(self.ssm(x) * functional.silu(gate))

    def ssm(self, u: torch.Tensor) -> torch.Tensor:
        delta, B, C = self.x_proj(u).split(self.sizes, -1)
        delta = functional.softplus(self.dt_proj(delta))
        kept = torch.einsum("bld,dn->bldn", delta, -self.A_log.exp()).exp()
        taken = torch.einsum("bld,bln,bld->bldn", delta, B, u)
        x, ys = torch.zeros(len(u), *kept.shape[2:]), []
        for i in range(u.shape[1]):
            x = kept[:, i] * x + taken[:, i]
            ys.append(torch.einsum("bdn,bn->bd", x, C[:, i]))
        return torch.stack(ys, 1) + u * self.D


class Mamba(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.norms = nn.ModuleList([nn.RMSNorm(8, eps=1e-5) for _ in range(2)])
        self.mixers = nn.ModuleList([MambaBlock(8, 16, 4, 2, 3) for _ in range(2)])
        self.norm_f = nn.RMSNorm(8, eps=1e-5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return self.norm_f(x) @ self.embedding.weight.T


def program(draw: Draw) -> tuple[object, Batches]:
    model = Mamba()
    for name, p in model.named_parameters():
        shape = p.shape[::-1] if name == "embedding.weight" else p.shape if p.ndim > 1 else (*p.shape, 1)
        drawn = draw(*shape, scale=0.5)
        p.data = torch.tensor(drawn.T if name == "embedding.weight" else drawn.reshape(p.shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)

    def step(ids: object) -> float:
        ids = torch.tensor(ids).T
        loss = functional.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(draw.ids(11, 8, 4),) for _ in range(5)]
