"""Digits are told apart without labels: two views of one are to be near each other, far from others (SimCLR)."""

import sys

import numpy as np

import ag
from ag import nn, ops, optim

CHANNELS, FEATURES, PROJECTED, BATCH, TEMPERATURE = 16, 64, 32, 64, 0.5


class SimCLR(nn.Layer):
    def __init__(self) -> None:
        self.encoder = nn.Sequential(
            nn.Conv2d(1, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, padding=1), nn.BatchNorm2d(2 * CHANNELS), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(8 * CHANNELS, FEATURES))
        self.projection = nn.Sequential(nn.ReLU(), nn.Linear(FEATURES, PROJECTED))

    def forward(self, x):
        return self.projection(self.encoder(x))


def info_nce(features):
    """Cross-entropy of telling the other view of an image among all views of the batch; the second half are those."""
    features = ops.normalize(features)
    count = features.shape[1]
    alike = ops.masked_fill(features.T @ features, ops.eye(count, dtype="bool"), -np.inf) / TEMPERATURE
    return ops.cross_entropy(alike, ops.roll(ops.arange(count), count // 2, 0))


def step(model, optimizer, views):
    with ag.with_grad_tape():
        loss = info_nce(model(views))
    optimizer.step(ag.backward(loss))
    optimizer.zero_grad()
    return loss


def views_of(images, rng):
    """Each image twice, moved, brighter or darker, with a hole and noise."""
    views = np.concatenate([images, images], -1)
    made = np.zeros_like(views)
    for i, (down, right) in enumerate(rng.integers(-1, 2, size=(views.shape[-1], 2))):
        made[0, :, :, i] = np.roll(views[0, :, :, i], (down, right), (0, 1))
        y, x = rng.integers(7, size=2)
        made[0, y : y + 2, x : x + 2, i] = 0
    return made * rng.uniform(0.6, 1.2, made.shape[-1]) + 0.1 * rng.standard_normal(made.shape)


def neighbours_accuracy(model, images, digits, split=360):
    """How often a digit that was moved and so on has the same digit as its nearest neighbour in the features."""
    moved = views_of(images[..., :split], np.random.default_rng(0))[..., :split]
    found, known = (ops.normalize(nn.eval(model).encoder(x)).numpy() for x in (moved, images[..., split:]))
    return np.mean(digits[:split] == digits[split:][(found.T @ known).argmax(1)])


def train(steps):
    ag.ag_seed(0)
    model, rng, losses = SimCLR(), np.random.default_rng(0), []
    pixels, digits = ag.data.load_digits()
    images = pixels.T.reshape(1, 8, 8, -1) / 16
    optimizer = optim.Adam(model, lr=1e-3)
    captured = ag.ag_capture(lambda *batch: step(model, optimizer, *batch))
    for _ in range(steps):
        losses.append(captured(views_of(images[..., rng.integers(len(digits), size=BATCH)], rng).astype("f")).item())
    return model, losses


if __name__ == "__main__":
    before, _ = train(0)
    model, losses = train(int(sys.argv[1]) if sys.argv[1:] else 1000)
    pixels, digits = ag.data.load_digits()
    images = pixels.T.reshape(1, 8, 8, -1) / 16
    accuracies = [neighbours_accuracy(m, images, digits) for m in (before, model)]
    print(f"loss: {losses[0]:.3f} at first, {np.mean(losses[-20:]):.3f} after {len(losses)} steps")
    print("nearest neighbours of moved digits are the same: {:.3f} at first, {:.3f} after training".format(*accuracies))
    if accuracies[1] < accuracies[0] + 0.1:
        sys.exit("FAILED: neighbours must become more alike")
