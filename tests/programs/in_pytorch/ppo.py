from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.distributions import Normal


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(1, 2))
        self.critic = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean = self.actor(x)
        policy = Normal(mean, self.log_std.expand_as(mean).exp())
        return policy.log_prob(action).sum(1), policy.entropy().sum(1), self.critic(x)[:, 0]


def program(draw: Draw) -> tuple[object, Batches]:
    agent = Agent()
    for name, p in agent.named_parameters():
        drawn = draw(*p.shape[::-1]).T if name == "log_std" else draw(*p.shape, *[1] * (p.ndim == 1))
        p.data = torch.tensor(drawn).reshape(p.shape)
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3, eps=1e-5)
    x, action = draw(5, 32, scale=1.0), draw(2, 32, scale=1.0)
    log_prob, _, value = (t.detach().numpy()[None] for t in agent(torch.tensor(x).T, torch.tensor(action).T))
    advantage, returns = draw(1, 32, scale=1.0), draw(1, 32, scale=1.0)

    def step(x: object, action: object, *others: object) -> float:
        log_prob, value, advantage, returns = (torch.tensor(t)[0] for t in others)
        new_log_prob, entropy, new_value = agent(torch.tensor(x).T, torch.tensor(action).T)
        ratio = (new_log_prob - log_prob).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
        clipped = value + (new_value - value).clamp(-0.2, 0.2)
        critic = 0.5 * torch.max((new_value - returns) ** 2, (clipped - returns) ** 2).mean()
        loss = policy - 0.01 * entropy.mean() + 0.5 * critic
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        return loss.item()

    data = x, action, log_prob, value, advantage, returns
    return step, [tuple(t[:, k:k + 16] for t in data) for k in [0, 16] * 4]
