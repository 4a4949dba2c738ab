"""Program 20, PyTorch's forward-forward: layers learn one by one to answer right labels with more than wrong ones."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


class Layer(nn.Linear):
    def __init__(self, features: int, out: int) -> None:
        super().__init__(features, out)
        self.threshold = 2.0

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        direction = x / (x.norm(2, 0, keepdim=True) + 1e-4)
        return super().forward(direction).relu()

    def train(self, x_pos: ag.Tensor, x_neg: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor, ag.Tensor]:
        with ag.with_grad_tape():
            g_pos, g_neg = ((self.forward(x) ** 2).mean(0) for x in (x_pos, x_neg))
            loss = (1 + ops.concat([-g_pos + self.threshold, g_neg - self.threshold]).exp()).log().mean()
        self.optimizer.step(ag.backward(loss))
        return loss, self.forward(x_pos), self.forward(x_neg)


def overlay_y_on_x(x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
    return ops.concat([ops.one_hot(y, 10) * ops.max(x), x[10:]])


def program(draw: Draw) -> tuple[object, Batches]:
    layers = [Layer(30, 16), Layer(16, 12), Layer(12, 8)]
    for layer in layers:
        for p in layer.parameters().values():
            p.data = draw(*p.shape)
        layer.optimizer = ag.optim.Adam(layer, lr=0.03)

    def step(x: ag.Tensor, y: ag.Tensor, wrong: ag.Tensor) -> ag.Tensor:
        x = ag.ag_tensor(x)
        h_pos, h_neg, total = overlay_y_on_x(x, y), overlay_y_on_x(x, wrong), 0.0
        for layer in layers:
            loss, h_pos, h_neg = layer.train(h_pos, h_neg)
            total = total + loss
        return total

    x, y = draw.uniform(30, 16), draw.ids(10, 16)
    return step, [(x, y, (y + 1 + draw.ids(9, 16)) % 10) for _ in range(6)]
