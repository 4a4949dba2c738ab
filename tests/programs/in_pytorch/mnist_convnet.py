from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.fc1, self.fc2 = nn.Linear(8 * 4 * 4, 16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor, kept1: torch.Tensor, kept2: torch.Tensor) -> torch.Tensor:
        x = self.conv2(self.conv1(x).relu()).relu()
        x = functional.max_pool2d(x, 2) * kept1 / 0.75
        x = self.fc1(x.flatten(1)).relu() * kept2 / 0.5
        return self.fc2(x).log_softmax(1)


def program(draw: Draw) -> tuple[object, Batches]:
    model = Net()
    for p in model.parameters():
        p.data = torch.tensor(draw(*p.shape))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(*batch: object) -> float:
        x, y, kept1, kept2 = (torch.tensor(part).movedim(-1, 0) for part in batch)
        loss = functional.nll_loss(model(x, kept1, kept2), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(draw.uniform(1, 12, 12, 8), draw.ids(10, 8), draw.uniform(8, 4, 4, 8) < 0.75,
                   draw.uniform(16, 8) < 0.5) for _ in range(6)]
