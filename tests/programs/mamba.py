"""Program 53, Mamba (johnma2006/mamba-minimal model.py): a state space whose steps depend on the input."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


class MambaBlock(ag.Layer):
    def __init__(self, dim: int, inner: int, state: int, dt_rank: int, kernel: int) -> None:
        self.A_log, self.D = ag.ag_param(ops.zeros(inner, state)), ag.ag_param(ops.ones(inner, 1, 1))
        self.in_proj = nn.Linear(dim, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, kernel, padding=kernel - 1, groups=inner)
        self.x_proj = nn.Linear(inner, dt_rank + 2 * state, bias=False)
        self.dt_proj, self.out_proj = nn.Linear(dt_rank, inner), nn.Linear(inner, dim, bias=False)
        self.sizes = [dt_rank, state, state]

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        x, gate = self.in_proj(x).chunk(2)
        x = ops.silu(self.conv1d(x)[:, :x.shape[1]])
        return self.out_proj(self.ssm(x) * ops.silu(gate))

    def ssm(self, u: ag.Tensor) -> ag.Tensor:
        delta, B, C = self.x_proj(u).split(self.sizes)
        delta = ops.softplus(self.dt_proj(delta))
        kept = ops.exp(ops.einsum("dlb,dn->dnlb", delta, -ops.exp(self.A_log)))
        taken = ops.einsum("dlb,nlb,dlb->dnlb", delta, B, u)
        x, ys = ops.zeros(*kept.shape[:2], u.shape[-1]), []
        for i in range(u.shape[1]):
            x = kept[:, :, i] * x + taken[:, :, i]
            ys.append(ops.einsum("dnb,nb->db", x, C[:, i]))
        return ops.stack(ys, dim=1) + u * self.D


class Mamba(ag.Layer):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(11, 8)
        self.norms = [nn.RMSNorm(8, eps=1e-5) for _ in range(2)]
        self.mixers = [MambaBlock(8, 16, 4, 2, 3) for _ in range(2)]
        self.norm_f = nn.RMSNorm(8, eps=1e-5)

    def forward(self, ids: ag.Tensor) -> ag.Tensor:
        x = self.embedding(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return self.embedding.weight.T @ self.norm_f(x)  # the head has the weights of the embedding


def program(draw: Draw) -> tuple[object, Batches]:
    model = Mamba()
    for p in model.parameters().values():
        p.data = draw(*p.shape, scale=0.5)
    optimizer = ag.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)

    def step(ids: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(ids[:-1]), ids[1:])
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(draw.ids(11, 8, 4),) for _ in range(5)]
