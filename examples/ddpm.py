"""A U-Net learns to take noise out of digits, step by step, and makes digits of nothing but noise (DDPM)."""

import sys

import numpy as np

import ag
from ag import nn, ops, optim

TIMES, BATCH = 100, 32
BETAS = np.linspace(1e-3, 0.1, TIMES, dtype=np.float32)  # how much noise comes in at each time
KEPT = np.cumprod(1 - BETAS)  # how much is left of the image's variance


class Block(nn.Layer):  # adds to what comes in; the time is told to it
    def __init__(self, inputs: int, outputs: int) -> None:
        self.conv1, self.conv2 = (nn.Conv2d(n, outputs, 3, padding=1) for n in (inputs, outputs))
        self.norm1, self.norm2 = nn.GroupNorm(4, outputs), nn.GroupNorm(4, outputs)
        self.time, self.skip = nn.Linear(64, outputs), nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, time):
        hidden = ops.silu(self.norm1(self.conv1(x))) + self.time(time)[:, None, None]
        return ops.silu(self.norm2(self.conv2(hidden))) + self.skip(x)


class UNet(nn.Layer):  # from noisy images (1, 8, 8, batch) and times (batch,) to the noise in them
    def __init__(self, n: int = 16) -> None:
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.down1, self.down2, self.low = Block(1, n), Block(n, 2 * n), Block(2 * n, 2 * n)
        self.norm, self.qkv, self.out = nn.GroupNorm(4, 2 * n), nn.Conv2d(2 * n, 6 * n, 1), nn.Conv2d(2 * n, 2 * n, 1)
        self.up2, self.up1, self.last = Block(4 * n, n), Block(2 * n, n), nn.Conv2d(n, 1, 1)

    def forward(self, x, times):
        angles = ops.outer(ops.exp(ops.arange(0, -16, -1, dtype="f32") * (np.log(1e4) / 15)), times)
        time = self.time(ops.concat([ops.sin(angles), ops.cos(angles)]))
        middle = self.down2(ops.max_pool2d(high := self.down1(x, time), 2), time)
        low = self.low(ops.max_pool2d(middle, 2), time)
        qkv = ops.chunk(self.qkv(self.norm(low)).reshape(-1, 4, x.shape[-1]), 3)  # all of 2 x 2 places see each other
        low = low + self.out(ops.attention(*qkv, heads=4).reshape(low.shape))
        middle = self.up2(ops.concat([ops.interpolate(low, scale_factor=2), middle]), time)
        return self.last(self.up1(ops.concat([ops.interpolate(middle, scale_factor=2), high]), time))


def step(model, optimizer, images, times, kept, noise):
    with ag.with_grad_tape():
        loss = ops.mse_loss(model(ops.sqrt(kept) * images + ops.sqrt(1 - kept) * noise, times), noise)
    optimizer.step(ag.backward(loss))
    optimizer.zero_grad()
    return loss


def train(steps):
    ag.ag_seed(0)
    model, rng, losses = UNet(), np.random.default_rng(0), []
    digits = ag.data.load_digits().X.T.reshape(1, 8, 8, -1) / 8 - 1
    optimizer = optim.Adam(model, lr=2e-3)
    captured = ag.ag_capture(lambda *batch: step(model, optimizer, *batch))
    for _ in range(steps):
        images, times = digits[..., rng.integers(digits.shape[-1], size=BATCH)], rng.integers(TIMES, size=BATCH)
        losses.append(captured(images, times, KEPT[None, None, None, times], rng.standard_normal(images.shape)).item())
    return model, losses


def sample(model, x):  # from noise, of which each replay takes out a little
    @ag.ag_capture
    def less_noisy(x, t, kept, beta, more):
        mean = (x - beta / ops.sqrt(1 - kept) * model(x, t)) / ops.sqrt(1 - beta)
        return mean + ops.sqrt(beta * more) * ops.randn_like(x)

    for t in reversed(range(TIMES)):
        x = less_noisy(x, np.array([t], "f"), KEPT[t : t + 1], BETAS[t : t + 1], np.array([t > 0], "f"))
    return x


if __name__ == "__main__":
    model, losses = train(int(sys.argv[1]) if sys.argv[1:] else 1500)
    print(f"loss: {losses[0]:.3f} at first, {np.mean(losses[-50:]):.3f} after {len(losses)} steps")
    for row in sample(model, ops.randn(1, 8, 8, 5)).numpy()[0].clip(-1, 1):
        print("   ".join("".join(" .:oO@"[int(2.5 * v + 2.99)] * 2 for v in image) for image in row.T))
    sys.exit("FAILED: the loss must fall to a third" if np.mean(losses[-50:]) > losses[0] / 3 else 0)
