"""Program 16, PyTorch's GCN, as examples/gcn.py has it."""

from __future__ import annotations

from functools import partial

from programs.drawn import Batches, Draw
from programs.of_examples import filled

from ag import optim
from examples import gcn


def program(draw: Draw) -> tuple[object, Batches]:
    model = filled(gcn.GCN(), draw)
    graph = draw(32, 300, scale=1.0), draw.uniform(300, 300) / 20
    batches = [(*graph, draw.ids(300, 16), draw.ids(4, 16), 2 * draw.uniform(16, 300)) for _ in range(6)]
    return partial(gcn.step, model, optim.AdamW(model, lr=1e-2, weight_decay=5e-2)), batches
