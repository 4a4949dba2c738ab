from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

WORDS, WIDTH, EXPERTS, CAPACITY = 24, 16, 3, 1.2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: object) -> object:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        return self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class SwitchFeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.switch = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH)) for _ in range(EXPERTS))

    def forward(self, x: object) -> object:
        shape, x = x.shape, x.reshape(-1, WIDTH)
        route_prob = self.switch(x).softmax(-1)
        highest, routes = route_prob.max(-1)
        capacity = int(CAPACITY * len(x) / EXPERTS)
        out, counts = x.clone(), []
        for i, expert in enumerate(self.experts):
            mine = (routes == i).nonzero(as_tuple=True)[0]
            counts.append(len(mine))
            out[mine[:capacity]] = expert(x[mine[:capacity]])
        fractions = route_prob.mean(0) * torch.tensor([n / len(x) for n in counts])
        return (out * highest[:, None]).reshape(shape), EXPERTS * fractions.sum()


class SwitchTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention, self.norm1 = nn.Embedding(WORDS, WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.feed_forward, self.norm2 = SwitchFeedForward(), nn.LayerNorm(WIDTH)
        self.norm, self.generator = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: object) -> object:
        x = self.words(words)
        x = x + self.attention(self.norm1(x))
        y, load = self.feed_forward(self.norm2(x).transpose(0, 1))
        return self.generator(self.norm(x + y.transpose(0, 1))), load


def program(draw: Draw) -> tuple[object, Batches]:
    model = SwitchTransformer()
    fill_torch(model, draw)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    words = draw.ids(WORDS, 9, 4)

    def step(words: object, following: object) -> float:
        logits, load = model(torch.tensor(words.T))
        loss = cross_entropy(logits.transpose(1, 2), torch.tensor(following.T)) + 0.01 * load
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(words[:-1], words[1:])] * 6
