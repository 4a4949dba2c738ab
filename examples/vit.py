"""A vision transformer reads handwritten digits as rows of patches (ViT)."""

import sys

import numpy as np

import ag
from ag import nn, ops, optim

PATCH, PATCHES, WIDTH, HEADS, LAYERS, CLASSES, BATCH = 2, 16, 64, 4, 2, 10, 64


class Block(nn.Layer):
    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.out(ops.attention(*ops.chunk(self.qkv(self.norm1(x)), 3), heads=HEADS))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Layer):  # from images (1, 8, 8, batch) to logits (classes, batch)
    def __init__(self) -> None:
        self.patches = nn.Linear(PATCH * PATCH, WIDTH)
        self.cls, self.places = ag.ag_param(np.zeros((WIDTH, 1, 1))), ag.ag_param(np.zeros((WIDTH, PATCHES + 1, 1)))
        self.blocks = nn.Sequential([Block() for _ in range(LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))

    def forward(self, images):
        x = self.patches(ops.unfold(images, PATCH, stride=PATCH))  # (width, patches, batch)
        x = ops.concat([self.cls.expand(WIDTH, 1, x.shape[2]), x], dim=1) + self.places
        return self.head(self.blocks(x)[:, 0])


def step(model, optimizer, images, digits):
    with ag.with_grad_tape():
        loss = ops.cross_entropy(model(images), digits)
    optimizer.step(ag.backward(loss))
    optimizer.zero_grad()
    return loss


def train(steps):
    ag.ag_seed(0)
    model, rng, losses = ViT(), np.random.default_rng(0), []
    for p in (model.cls, model.places):
        nn.init.normal_(p, std=0.02)
    pixels, digits = ag.data.load_digits()
    images = pixels.T.reshape(1, 8, 8, -1) / 16
    optimizer = optim.AdamW(model, lr=3e-3, weight_decay=0.1)
    schedule = optim.CosineSchedule(optimizer, T_max=steps)
    optimizer = optimizer
    captured = ag.ag_capture(lambda *batch: step(model, optimizer, *batch))
    for _ in range(steps):
        batch = rng.integers(360, len(digits), size=BATCH)
        losses.append(captured(images[..., batch], digits[batch]).item())
        schedule.step()
    return model, losses


if __name__ == "__main__":
    model, losses = train(int(sys.argv[1]) if sys.argv[1:] else 500)
    pixels, digits = ag.data.load_digits()
    accuracy = np.mean(model(pixels[:360].T.reshape(1, 8, 8, -1) / 16).argmax(0).numpy() == digits[:360])
    print(f"loss: {losses[0]:.3f} at first, {np.mean(losses[-20:]):.3f} after {len(losses)} steps")
    print(f"accuracy on 360 digits held out: {accuracy:.3f}")
    if accuracy < 0.9:
        sys.exit("FAILED: the accuracy must be at least 0.9")
