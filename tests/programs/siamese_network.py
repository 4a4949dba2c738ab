"""Program 14, PyTorch's siamese network: a ResNet sees two images and compares them; SGD stands for Adadelta."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


class SiameseNetwork(ag.Layer):
    def __init__(self) -> None:
        self.resnet = nn.ResNet(18, 1, width=2)
        self.resnet.conv1 = nn.Conv2d(1, 2, 7, stride=2, padding=3, bias=False)
        self.resnet.fc = nn.Identity()
        self.fc = nn.Sequential(nn.Linear(2 * 16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x1: ag.Tensor, x2: ag.Tensor) -> ag.Tensor:
        return self.fc(ops.concat([self.resnet(x1), self.resnet(x2)])).sigmoid()


def program(draw: Draw) -> tuple[object, Batches]:
    model = SiameseNetwork()
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.SGD(model, lr=0.01)
    criterion = nn.BCELoss()

    def step(x1: ag.Tensor, x2: ag.Tensor, same: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = criterion(model(x1, x2).squeeze(0), same)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(draw.uniform(1, 40, 40, 4), draw.uniform(1, 40, 40, 4), draw.ids(2, 4).astype("f4"))] * 5
