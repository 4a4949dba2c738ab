from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn


class Layer(nn.Linear):
    def __init__(self, features: int, out: int) -> None:
        super().__init__(features, out)
        self.threshold = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return super().forward(direction).relu()

    def train(self, x_pos: torch.Tensor, x_neg: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
        g_pos, g_neg = (self.forward(x).pow(2).mean(1) for x in (x_pos, x_neg))
        loss = (1 + torch.cat([-g_pos + self.threshold, g_neg - self.threshold]).exp()).log().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), self.forward(x_pos).detach(), self.forward(x_neg).detach()


def overlay_y_on_x(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x_ = x.clone()
    x_[:, :10] *= 0.0
    x_[range(len(x)), y] = x.max()
    return x_


def program(draw: Draw) -> tuple[object, Batches]:
    layers = [Layer(30, 16), Layer(16, 12), Layer(12, 8)]
    for layer in layers:
        for p in layer.parameters():
            p.data = torch.tensor(draw(*p.shape))
        layer.optimizer = torch.optim.Adam(layer.parameters(), lr=0.03)

    def step(x: object, y: object, wrong: object) -> float:
        x, y, wrong = torch.tensor(x).T, torch.tensor(y), torch.tensor(wrong)
        h_pos, h_neg, total = overlay_y_on_x(x, y), overlay_y_on_x(x, wrong), 0.0
        for layer in layers:
            loss, h_pos, h_neg = layer.train(h_pos, h_neg)
            total = total + loss
        return total

    x, y = draw.uniform(30, 16), draw.ids(10, 16)
    return step, [(x, y, (y + 1 + draw.ids(9, 16)) % 10) for _ in range(6)]
