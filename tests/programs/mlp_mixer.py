"""Program 38, MLP-Mixer (labml transformers/mlp_mixer): perceptrons across the patches and across the channels."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


def mlp(features: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, features))


class Mixer(ag.Layer):
    def __init__(self, patches: int, channels: int) -> None:
        self.norm_tokens, self.tokens = nn.LayerNorm(channels), mlp(patches, 2 * patches)
        self.norm_channels, self.channels = nn.LayerNorm(channels), mlp(channels, 4 * channels)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        x = x + self.tokens(self.norm_tokens(x).swapaxes(0, 1)).swapaxes(0, 1)
        return x + self.channels(self.norm_channels(x))


class MLPMixer(ag.Layer):
    def __init__(self) -> None:
        self.patches = nn.Conv2d(3, 16, 2, stride=2)
        self.blocks = nn.Sequential(Mixer(16, 16), Mixer(16, 16), nn.LayerNorm(16))
        self.head = nn.Linear(16, 10)

    def forward(self, images: ag.Tensor) -> ag.Tensor:
        x = self.patches(images)
        return self.head(self.blocks(x.reshape(x.shape[0], -1, x.shape[-1])).mean(1))


def program(draw: Draw) -> tuple[object, Batches]:
    model = MLPMixer()
    for p in model.parameters().values():
        p.data = draw(*p.shape, scale=0.5)
    optimizer = ag.optim.Adam(model.parameters(), lr=0.01)
    images, labels = draw(3, 8, 8, 8, scale=1.0), draw.ids(10, 8)

    def step(images: ag.Tensor, labels: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(images), labels)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(images, labels)] * 6
