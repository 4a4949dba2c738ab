"""A variational autoencoder of handwritten digits; it draws digits that nobody wrote."""

import sys

import numpy as np

import ag
from ag import nn, ops, optim

PIXELS, HIDDEN, LATENT, BATCH = 64, 128, 8, 64


class VAE(nn.Layer):  # of images (pixels, batch) from 0 to 1
    def __init__(self) -> None:
        self.fc1, self.fc21, self.fc22 = nn.Linear(PIXELS, HIDDEN), nn.Linear(HIDDEN, LATENT), nn.Linear(HIDDEN, LATENT)
        self.fc3, self.fc4 = nn.Linear(LATENT, HIDDEN), nn.Linear(HIDDEN, PIXELS)

    def decode(self, z):
        return ops.sigmoid(self.fc4(ops.relu(self.fc3(z))))

    def forward(self, x, noise):
        hidden = ops.relu(self.fc1(x))
        mean, log_variance = self.fc21(hidden), self.fc22(hidden)
        return self.decode(mean + noise * ops.exp(0.5 * log_variance)), mean, log_variance


def step(model, optimizer, x, noise):
    with ag.with_grad_tape():
        made, mean, log_variance = model(x, noise)
        lost = ops.binary_cross_entropy(made, x, reduction="sum")
        loss = lost - 0.5 * ops.sum(1 + log_variance - mean**2 - ops.exp(log_variance))  # codes are to be normal
    optimizer.step(ag.backward(loss))
    optimizer.zero_grad()
    return loss


def train(steps):
    ag.ag_seed(0)
    model, rng, losses = VAE(), np.random.default_rng(0), []
    images = ag.data.load_digits().X.T / 16
    optimizer = optim.Adam(model, lr=3e-3)
    captured = ag.ag_capture(lambda *batch: step(model, optimizer, *batch))
    for _ in range(steps):
        x = images[:, rng.integers(images.shape[1], size=BATCH)]
        losses.append(captured(x, rng.standard_normal((LATENT, BATCH), np.float32)).item() / BATCH)
    return model, losses


if __name__ == "__main__":
    model, losses = train(int(sys.argv[1]) if sys.argv[1:] else 3000)
    last = np.mean(losses[-50:])
    print(f"loss per image: {losses[0]:.2f} at first, {last:.2f} after {len(losses)} steps")
    for row in model.decode(ops.randn(LATENT, 5)).numpy().reshape(8, 8, 5):
        print("   ".join("".join(" .:oO@"[int(5.99 * v)] * 2 for v in image) for image in row.T))
    if last > 0.7 * losses[0]:
        sys.exit("FAILED: the loss must fall below 0.7 of what it was")
