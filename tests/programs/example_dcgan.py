"""Program 9, PyTorch's DCGAN, as examples/dcgan.py has it; the loss is that of both networks."""

from __future__ import annotations

from programs.drawn import Batches, Draw
from programs.of_examples import filled

from ag import optim
from examples import dcgan


def program(draw: Draw) -> tuple[object, Batches]:
    nets = [filled(dcgan.make_drawer(), draw), filled(dcgan.make_critic(), draw)]
    optimizers = [optim.Adam(net, lr=1e-3, beta1=0.5) for net in nets]
    batches = [(draw(1, 8, 8, 64, scale=1.0), draw(16, 1, 1, 64, scale=1.0)) for _ in range(6)]
    return lambda *batch: sum(dcgan.step(*nets, optimizers, *batch)), batches
