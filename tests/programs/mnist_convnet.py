"""Program 7, PyTorch's MNIST example: two convolutions and two linear layers with dropout; Adam stands for Adadelta."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


class Net(ag.Layer):
    def __init__(self) -> None:
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.fc1, self.fc2 = nn.Linear(8 * 4 * 4, 16), nn.Linear(16, 10)

    def forward(self, x: ag.Tensor, kept1: ag.Tensor, kept2: ag.Tensor) -> ag.Tensor:
        x = self.conv2(self.conv1(x).relu()).relu()
        x = ops.max_pool2d(x, 2) * kept1 / 0.75
        x = self.fc1(ops.flatten(x)).relu() * kept2 / 0.5
        return self.fc2(x).log_softmax()


def program(draw: Draw) -> tuple[object, Batches]:
    model = Net()
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.Adam(model, lr=0.01)

    def step(x: ag.Tensor, y: ag.Tensor, kept1: ag.Tensor, kept2: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.nll_loss(model(x, kept1, kept2), y)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(draw.uniform(1, 12, 12, 8), draw.ids(10, 8), draw.uniform(8, 4, 4, 8) < 0.75,
                   draw.uniform(16, 8) < 0.5) for _ in range(6)]
