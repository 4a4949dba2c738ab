"""Program 45, PPO (cleanrl ppo_continuous_action.py): a policy of normal actions, and ratios that are clipped."""

from __future__ import annotations

from math import log, pi

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


class Agent(ag.Layer):
    def __init__(self) -> None:
        self.log_std = ag.ag_param([[0.0], [0.0]])
        self.critic = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x: ag.Tensor, action: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor, ag.Tensor]:
        variance = ops.exp(2.0 * self.log_std)
        log_prob = -ops.gaussian_nll_loss(self.actor(x), action, variance, full=True, reduction="none")
        entropy = self.log_std + 0.5 * log(2 * pi) + 0.5
        return log_prob.sum(0, keepdim=True), entropy.sum(0), self.critic(x)


def program(draw: Draw) -> tuple[object, Batches]:
    agent = Agent()
    for p in agent.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.Adam(agent.parameters(), lr=3e-3, eps=1e-5)
    x, action = draw(5, 32, scale=1.0), draw(2, 32, scale=1.0)
    log_prob, _, value = (t.numpy() for t in agent(x, action))
    advantage, returns = draw(1, 32, scale=1.0), draw(1, 32, scale=1.0)

    def step(x: ag.Tensor, action: ag.Tensor, log_prob: ag.Tensor, value: ag.Tensor, advantage: ag.Tensor,
             returns: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            new_log_prob, entropy, new_value = agent(x, action)
            ratio = ops.exp(new_log_prob - log_prob)
            advantage = (advantage - ops.mean(advantage)) / (ops.std(advantage) + 1e-8)
            policy = ops.maximum(-advantage * ratio, -advantage * ops.clamp(ratio, 0.8, 1.2)).mean()
            clipped = value + ops.clamp(new_value - value, -0.2, 0.2)
            critic = 0.5 * ops.maximum(ops.square(new_value - returns), ops.square(clipped - returns)).mean()
            loss = policy - 0.01 * entropy.mean() + 0.5 * critic
        grads = ag.backward(loss)
        ag.optim.clip_grad_norm(agent, grads, 0.5)
        optimizer.step(grads)
        return loss

    data = x, action, log_prob, value, advantage, returns
    return step, [tuple(t[:, k:k + 16] for t in data) for k in [0, 16] * 4]
