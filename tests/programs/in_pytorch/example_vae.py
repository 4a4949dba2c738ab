from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.of_examples import filled_in_torch
from torch import nn
from torch.nn import functional


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 128), nn.Linear(128, 8), nn.Linear(128, 8)
        self.fc3, self.fc4 = nn.Linear(8, 128), nn.Linear(128, 64)

    def forward(self, x, noise):
        hidden = functional.relu(self.fc1(x))
        mean, log_variance = self.fc21(hidden), self.fc22(hidden)
        z = mean + noise * torch.exp(0.5 * log_variance)
        return torch.sigmoid(self.fc4(functional.relu(self.fc3(z)))), mean, log_variance


def program(draw: Draw) -> tuple[object, Batches]:
    model = VAE()
    filled_in_torch(draw, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(x: object, noise: object) -> float:
        x, noise = torch.tensor(x).T, torch.tensor(noise).T
        made, mean, log_variance = model(x, noise)
        lost = functional.binary_cross_entropy(made, x, reduction="sum")
        loss = lost - 0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(draw.uniform(64, 64), draw(8, 64, scale=1.0)) for _ in range(6)]
