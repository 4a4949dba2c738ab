from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn

VOCABULARY, HIDDEN = 27, 16


class RNNCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.xh_to_h = nn.Linear(8 + HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return self.xh_to_h(torch.cat([x, h], 1)).tanh()


class RNN(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, HIDDEN))
        self.wte = nn.Embedding(VOCABULARY, 8)
        self.cell = cell
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h, states = self.start.expand(ids.shape[0], -1), []
        for x in self.wte(ids).unbind(1):
            h = self.cell(x, h)
            states.append(h)
        return self.lm_head(torch.stack(states, 1))


def program(draw: Draw, cell: type[nn.Module] = RNNCell) -> tuple[object, Batches]:
    model = RNN(cell())
    for name, p in model.named_parameters():
        p.data = torch.tensor(draw(*p.shape[::-1]).T if name == "wte.weight" else draw(*p.shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.99))

    def step(ids: object, targets: object) -> float:
        logits, targets = model(torch.tensor(ids).T), torch.tensor(targets).T
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    words = [draw.ids(VOCABULARY + 1, 6, 8) - 1 for _ in range(6)]
    return step, [(abs(word), word) for word in words]
