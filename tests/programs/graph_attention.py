"""Program 17, PyTorch's GAT: each node takes a mean of its neighbours, weighted by a score of the two."""

from __future__ import annotations

import numpy as np
from programs.drawn import Batches, Draw

import ag
from ag import nn, ops

NODES = 24


class GraphAttentionLayer(ag.Layer):
    def __init__(self, features: int, hidden: int, heads: int, concat: bool) -> None:
        self.hidden, self.heads, self.concat = hidden, heads, concat
        self.W = ag.ag_param(ops.zeros(heads * hidden, features))
        self.a = ag.ag_param(ops.zeros(heads, 2 * hidden))
        self.leakyrelu = nn.LeakyReLU(0.2)

    def forward(self, h: ag.Tensor, adjacency: ag.Tensor, kept: ag.Tensor) -> ag.Tensor:
        h = (self.W @ h).reshape(self.heads, self.hidden, -1)
        source, target = (ops.einsum("hcn,hc->hn", h, a) for a in self.a.split(self.hidden, dim=1))
        e = self.leakyrelu(source.unsqueeze(2) + target.unsqueeze(1))
        attention = ops.where(adjacency > 0, e, -9e16).softmax(dim=-1) * kept / 0.6
        h = ops.einsum("hij,hcj->hci", attention, h)
        return h.reshape(self.heads * self.hidden, -1) if self.concat else h.mean(dim=0)


class GAT(ag.Layer):
    def __init__(self) -> None:
        self.gat1 = GraphAttentionLayer(8, 4, heads=4, concat=True)
        self.gat2 = GraphAttentionLayer(16, 3, heads=1, concat=False)

    def forward(self, x: ag.Tensor, adjacency: ag.Tensor, kept: ag.Tensor) -> ag.Tensor:
        x = self.gat1(x, adjacency, kept[:4]).elu()
        return self.gat2(x, adjacency, kept[4:]).log_softmax()


def program(draw: Draw) -> tuple[object, Batches]:
    model = GAT()
    for p in model.parameters().values():
        p.data = draw(*p.shape, scale=0.5)
    optimizer = ag.optim.Adam(model, lr=0.01)
    x, labels, links = draw(8, NODES, scale=1.0), draw.ids(3, NODES), draw.uniform(NODES, NODES) < 0.15
    adjacency = ((links | links.T | np.eye(NODES, dtype=bool)) * 1.0).astype(np.float32)

    def step(x: ag.Tensor, adjacency: ag.Tensor, labels: ag.Tensor, train: ag.Tensor, kept: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.nll_loss(model(x, adjacency, kept)[:, train], labels)
        optimizer.step(ag.backward(loss))
        return loss

    train = np.arange(0, NODES, 2)
    return step, [(x, adjacency, labels[train], train, draw.uniform(5, NODES, NODES) < 0.6) for _ in range(6)]
