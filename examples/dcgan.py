"""Two convolutional networks that play: one draws digits, the other tells drawn from handwritten ones (DCGAN)."""

import sys

import numpy as np

import ag
from ag import nn, ops, optim

LATENT, CHANNELS, BATCH = 16, 16, 64


def make_drawer():  # noise (latent, 1, 1, batch) -> images (1, 8, 8, batch) from -1 to 1
    return nn.Sequential(
        nn.ConvTranspose2d(LATENT, 2 * CHANNELS, 2, bias=False), nn.BatchNorm2d(2 * CHANNELS), nn.ReLU(),
        nn.ConvTranspose2d(2 * CHANNELS, CHANNELS, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(CHANNELS),
        nn.ReLU(), nn.ConvTranspose2d(CHANNELS, 1, 4, stride=2, padding=1, bias=False), nn.Tanh())


def make_critic():  # images -> the probability (1, 1, 1, batch) that somebody wrote them
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 4, stride=2, padding=1, bias=False), nn.LeakyReLU(0.2),
        nn.Conv2d(CHANNELS, 2 * CHANNELS, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * CHANNELS),
        nn.LeakyReLU(0.2), nn.Conv2d(2 * CHANNELS, 1, 2, bias=False), nn.Sigmoid())


def error(found, wanted):
    return ops.binary_cross_entropy(found, ops.full_like(found, wanted))


def step(drawer, critic, optimizers, real, noise):
    with ag.with_grad_tape():
        critic_loss = error(critic(real), 1.0) + error(critic(drawer(noise).detach()), 0.0)
    optimizers[1].step(ag.backward(critic_loss))
    with ag.with_grad_tape():
        loss = error(critic(drawer(noise)), 1.0)
    optimizers[0].step(ag.backward(loss))
    for optimizer in optimizers:
        optimizer.zero_grad()
    return critic_loss, loss


def apart(images, others):
    """How far two sets of images are from each other: in the mean of each pixel, and in how pixels vary together."""
    a, b = (x.reshape(64, -1) for x in (images, others))
    return np.linalg.norm(a.mean(1) - b.mean(1)) + np.linalg.norm(np.cov(a) - np.cov(b))


def train(steps):
    ag.ag_seed(0)
    drawer, critic, rng = make_drawer(), make_critic(), np.random.default_rng(0)
    for p in (p for net in (drawer, critic) for p in net.parameters().values() if p.ndim == 4):
        nn.init.normal_(p, std=0.02)
    digits = ag.data.load_digits().X.T.reshape(1, 8, 8, -1) / 8 - 1
    optimizers = [optim.Adam(net, lr=1e-3, beta1=0.5) for net in (drawer, critic)]
    captured = ag.ag_capture(lambda *batch: step(drawer, critic, optimizers, *batch))
    distances = [apart(digits, drawer(ops.randn(LATENT, 1, 1, 1000)).numpy())]
    for _ in range(steps):
        real = digits[..., rng.integers(digits.shape[-1], size=BATCH)]
        captured(real, rng.standard_normal((LATENT, 1, 1, BATCH), np.float32))
    return drawer, [*distances, apart(digits, drawer(ops.randn(LATENT, 1, 1, 1000)).numpy())]


if __name__ == "__main__":
    drawer, (before, after) = train(int(sys.argv[1]) if sys.argv[1:] else 2000)
    print(f"distance of drawn digits from handwritten ones: {before:.2f} at first, {after:.2f} after training")
    for row in drawer(ops.randn(LATENT, 1, 1, BATCH)).numpy()[0, :, :, :5]:
        print("   ".join("".join(" .:oO@"[int(2.5 * v + 2.99)] * 2 for v in image) for image in row.T))
    if after > before / 2:
        sys.exit("FAILED: the distance must fall below half of what it was")
