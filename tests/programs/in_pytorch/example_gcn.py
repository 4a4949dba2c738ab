from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.of_examples import filled_in_torch
from torch import nn
from torch.nn import functional


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.ModuleList([nn.Linear(32, 16, bias=False), nn.Linear(16, 4, bias=False)])
    filled_in_torch(draw, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=5e-2)

    def step(*batch: object) -> float:
        x, adjacency, known, groups, kept = (torch.tensor(array.T) for array in batch)
        hidden = torch.relu(adjacency @ model[0](x)) * kept
        found = functional.log_softmax(adjacency @ model[1](hidden), 1)
        loss = functional.nll_loss(found[known], groups)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    graph = draw(32, 300, scale=1.0), draw.uniform(300, 300) / 20
    return step, [(*graph, draw.ids(300, 16), draw.ids(4, 16), 2 * draw.uniform(16, 300)) for _ in range(6)]
