"""Program 46, soft actor-critic (cleanrl sac_continuous_action.py): squashed normal actions, the lesser of two values.

Three optimizers step; target networks follow slowly.
"""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class SoftQ(ag.Layer):
    def __init__(self) -> None:
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: ag.Tensor, action: ag.Tensor) -> ag.Tensor:
        return self.layers(ops.concat([x, action]))


class Actor(ag.Layer):
    def __init__(self) -> None:
        self.body = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.mean, self.log_std = nn.Linear(16, 2), nn.Linear(16, 2)

    def forward(self, x: ag.Tensor, noise: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
        x = self.body(x)
        mean, log_std = self.mean(x), ops.tanh(self.log_std(x))
        std = ops.exp(LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1.0))
        drawn = mean + std * noise
        action = ops.tanh(drawn)
        log_prob = -ops.gaussian_nll_loss(mean, drawn, ops.square(std), full=True, reduction="none")
        return action, (log_prob - ops.log(1.0 - ops.square(action) + 1e-6)).sum(0, keepdim=True)


def program(draw: Draw) -> tuple[object, Batches]:
    actor, critics, targets = Actor(), [SoftQ(), SoftQ()], [SoftQ(), SoftQ()]
    for layer in (actor, *critics):
        for p in layer.parameters().values():
            p.data = draw(*p.shape, scale=0.3)
    for critic, target in zip(critics, targets, strict=True):
        target.load_state_dict(critic.state_dict())
    log_alpha = ag.ag_param([[0.0]])
    of_critics = ag.optim.Adam([p for critic in critics for p in critic.parameters().values()], lr=1e-2)
    of_actor, of_alpha = ag.optim.Adam(actor.parameters(), lr=3e-3), ag.optim.Adam([log_alpha], lr=1e-2)
    gamma, tau = 0.99, 0.005

    def step(now: ag.Tensor, action: ag.Tensor, reward: ag.Tensor, after: ag.Tensor, done: ag.Tensor,
             noise: ag.Tensor) -> ag.Tensor:
        with ag.no_grad():
            alpha = ops.exp(log_alpha)
            next_action, log_prob = actor(after, noise[0])
            least = ops.minimum(*[target(after, next_action) for target in targets]) - alpha * log_prob
            goal = reward + (1.0 - done) * gamma * least
        with ag.with_grad_tape():
            q_loss = sum(ops.mse_loss(critic(now, action), goal) for critic in critics)
        of_critics.step(ag.backward(q_loss))
        with ag.with_grad_tape():
            chosen, log_prob = actor(now, noise[1])
            actor_loss = (alpha * log_prob - ops.minimum(*[critic(now, chosen) for critic in critics])).mean()
        of_actor.step(ag.backward(actor_loss))
        with ag.with_grad_tape():
            alpha_loss = -(ops.exp(log_alpha) * (log_prob.detach() - 2.0)).mean()
        of_alpha.step(ag.backward(alpha_loss))
        for critic, target in zip(critics, targets, strict=True):
            for p, t in zip(critic.parameters().values(), target.parameters().values(), strict=True):
                t += tau * (p - t)
        return q_loss + actor_loss + alpha_loss

    return step, [(draw(3, 16, scale=1.0), draw.uniform(2, 16) * 2 - 1, draw(1, 16, scale=1.0), draw(3, 16, scale=1.0),
                   draw.ids(2, 1, 16).astype("f"), draw(2, 2, 16, scale=1.0)) for _ in range(6)]
