from __future__ import annotations

import numpy as np
import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional


def q_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))


def program(draw: Draw) -> tuple[object, Batches]:
    network, target = q_network(), q_network()
    for p in network.parameters():
        p.data = torch.tensor(draw(*p.shape, scale=0.5) if p.ndim > 1 else draw(*p.shape, 1, scale=0.5)[:, 0])
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    gamma = 0.99

    def step(batch: dict[str, object], tau: object) -> float:
        batch = {name: torch.tensor(x).T for name, x in batch.items()}
        with torch.no_grad():
            best = target(batch["next"]).max(1, keepdim=True)[0]
            goal = batch["reward"] + gamma * best * (1 - batch["done"])
        loss = functional.huber_loss(network(batch["now"]).gather(1, batch["action"]), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for p, t in zip(network.parameters(), target.parameters(), strict=True):
            t.data.copy_(tau.item() * p.data + (1 - tau.item()) * t.data)
        return loss.item()

    batches = [{"now": draw(4, 16, scale=1.0), "action": draw.ids(3, 1, 16), "reward": draw(1, 16, scale=1.0),
                "next": draw(4, 16, scale=1.0), "done": draw.ids(2, 1, 16).astype("f")} for _ in range(8)]
    return step, [(batch, np.float32([[k % 3 == 2]])) for k, batch in enumerate(batches)]
