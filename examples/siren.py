"""A network of sines learns an image as a function of the place; it shows it in four times as many pixels (SIREN)."""

import sys
from math import sqrt

import numpy as np

import ag
from ag import nn, ops, optim

WIDTH, SIZE, FIRST, OTHERS = 64, 32, 30.0, 30.0  # frequencies of the first and of the other layers


class Sine(nn.Layer):
    def __init__(self, inputs: int, outputs: int, frequency: float, is_first: bool = False) -> None:
        self.linear, self.frequency = nn.Linear(inputs, outputs), frequency
        limit = 1 / inputs if is_first else sqrt(6 / inputs) / frequency
        nn.init.uniform_(self.linear.W, -limit, limit)

    def forward(self, x):
        return ops.sin(self.frequency * self.linear(x))


def siren():  # places (2, n) from -1 to 1 -> brightness (1, n)
    return nn.Sequential(Sine(2, WIDTH, FIRST, True), Sine(WIDTH, WIDTH, OTHERS), Sine(WIDTH, WIDTH, OTHERS),
                         nn.Linear(WIDTH, 1))


def places(size):
    """Middles of the pixels of a square image, (2, size * size)."""
    line = (np.arange(size, dtype=np.float32) + 0.5) * 2 / size - 1
    return np.stack(np.meshgrid(line, line, indexing="ij")).reshape(2, -1)


def picture(places):
    """Rings that become finer towards a corner, and a dark disc."""
    y, x = places
    rings = np.sin(9 * (1.3 + x + y) ** 2 / 2)
    return np.where(x**2 + y**2 < 0.2, -1.0, rings)[None].astype("f")


def step(model, optimizer, x, y):
    with ag.with_grad_tape():
        loss = ops.mse_loss(model(x), y)
    optimizer.step(ag.backward(loss))
    optimizer.zero_grad()
    return loss


def train(steps):
    ag.ag_seed(0)
    model = siren()
    x = places(SIZE)
    batch = ag.ag_tensor(x), ag.ag_tensor(picture(x))
    optimizer = optim.Adam(model, lr=1e-3)
    captured = ag.ag_capture(lambda *batch: step(model, optimizer, *batch))
    return model, [captured(*batch).item() for _ in range(steps)]


def decibels(lost):  # the ratio of the largest possible error, 2, to the mean one
    return 10 * np.log10(4 / lost)


if __name__ == "__main__":
    model, losses = train(int(sys.argv[1]) if sys.argv[1:] else 500)
    finer = places(2 * SIZE)
    print(f"{decibels(losses[0]):.1f} dB at first, {decibels(losses[-1]):.1f} dB after {len(losses)} steps")
    print(f"{decibels(np.mean((model(finer).numpy() - picture(finer)) ** 2)):.1f} dB in four times as many pixels")
    if decibels(losses[-1]) < 40:
        sys.exit("FAILED: the image must be learned to 40 dB")
