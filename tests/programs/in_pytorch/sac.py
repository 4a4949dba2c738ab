from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.distributions import Normal
from torch.nn import functional

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class SoftQ(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([x, action], 1))


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.mean, self.log_std = nn.Linear(16, 2), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(x)
        mean, log_std = self.mean(x), self.log_std(x).tanh()
        std = (LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1)).exp()
        drawn = mean + std * noise
        action = drawn.tanh()
        return action, (Normal(mean, std).log_prob(drawn) - (1 - action**2 + 1e-6).log()).sum(1, keepdim=True)


def program(draw: Draw) -> tuple[object, Batches]:
    actor, critics, targets = Actor(), [SoftQ(), SoftQ()], [SoftQ(), SoftQ()]
    for layer in (actor, *critics):
        for p in layer.parameters():
            p.data = torch.tensor(draw(*p.shape, scale=0.3) if p.ndim > 1 else draw(*p.shape, 1, scale=0.3)[:, 0])
    for critic, target in zip(critics, targets, strict=True):
        target.load_state_dict(critic.state_dict())
    log_alpha = torch.zeros(1, requires_grad=True)
    of_critics = torch.optim.Adam([p for critic in critics for p in critic.parameters()], lr=1e-2)
    of_actor, of_alpha = torch.optim.Adam(actor.parameters(), lr=3e-3), torch.optim.Adam([log_alpha], lr=1e-2)
    gamma, tau = 0.99, 0.005

    def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def step(*batch: object) -> float:
        now, action, reward, after, done, noise = (torch.tensor(x).movedim(-1, -2) for x in batch)
        with torch.no_grad():
            alpha = log_alpha.exp()
            next_action, log_prob = actor(after, noise[0])
            least = torch.min(*[target(after, next_action) for target in targets]) - alpha * log_prob
            goal = reward + (1 - done) * gamma * least
        q_loss = sum(functional.mse_loss(critic(now, action), goal) for critic in critics)
        update(of_critics, q_loss)
        chosen, log_prob = actor(now, noise[1])
        actor_loss = (alpha * log_prob - torch.min(*[critic(now, chosen) for critic in critics])).mean()
        update(of_actor, actor_loss)
        alpha_loss = (-log_alpha.exp() * (log_prob.detach() - 2)).mean()
        update(of_alpha, alpha_loss)
        for critic, target in zip(critics, targets, strict=True):
            for p, t in zip(critic.parameters(), target.parameters(), strict=True):
                t.data.copy_(tau * p.data + (1 - tau) * t.data)
        return (q_loss + actor_loss + alpha_loss).item()

    return step, [(draw(3, 16, scale=1.0), draw.uniform(2, 16) * 2 - 1, draw(1, 16, scale=1.0), draw(3, 16, scale=1.0),
                   draw.ids(2, 1, 16).astype("f"), draw(2, 2, 16, scale=1.0)) for _ in range(6)]
