from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.of_examples import filled_in_torch
from torch import nn


def program(draw: Draw) -> tuple[object, Batches]:
    drawer = nn.Sequential(
        nn.ConvTranspose2d(16, 32, 2, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False), nn.Tanh())
    critic = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1, bias=False),
        nn.BatchNorm2d(32), nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 2, bias=False), nn.Sigmoid())
    filled_in_torch(draw, drawer, critic)
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.999)) for net in (drawer, critic)]
    criterion = nn.BCELoss()

    def step(real: object, noise: object) -> float:
        real, noise = torch.tensor(real).movedim(-1, 0).contiguous(), torch.tensor(noise).movedim(-1, 0).contiguous()
        optimizers[1].zero_grad()
        ones, zeros = torch.ones(64, 1, 1, 1), torch.zeros(64, 1, 1, 1)
        critic_loss = criterion(critic(real), ones) + criterion(critic(drawer(noise).detach()), zeros)
        critic_loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss = criterion(critic(drawer(noise)), ones)
        loss.backward()
        optimizers[0].step()
        return critic_loss.item() + loss.item()

    return step, [(draw(1, 8, 8, 64, scale=1.0), draw(16, 1, 1, 64, scale=1.0)) for _ in range(6)]
