from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn.functional import interpolate, mse_loss


class ConvLayer(nn.Module):
    def __init__(self, channels: int, out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.reflection_pad = nn.ReflectionPad2d(kernel // 2)
        self.conv2d = nn.Conv2d(channels, out, kernel, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(self.reflection_pad(x))


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.in1 = ConvLayer(channels, channels, 3, 1), nn.InstanceNorm2d(channels, affine=True)
        self.conv2, self.in2 = ConvLayer(channels, channels, 3, 1), nn.InstanceNorm2d(channels, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.in2(self.conv2(self.in1(self.conv1(x)).relu())) + x


class UpsampleConvLayer(ConvLayer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(interpolate(x, scale_factor=2, mode="nearest"))


def transformer_net() -> nn.Module:
    return nn.Sequential(
        ConvLayer(3, 4, 5, 1), nn.InstanceNorm2d(4, affine=True), nn.ReLU(),
        ConvLayer(4, 8, 3, 2), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), ResidualBlock(8),
        UpsampleConvLayer(8, 4, 3, 1), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), ConvLayer(4, 3, 5, 1))


class Vgg(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slice1 = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.slice2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU())
        self.mean, self.std = (
            torch.tensor(x).view(3, 1, 1) for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        relu1 = self.slice1((x / 255.0 - self.mean) / self.std)
        return [relu1, self.slice2(relu1)]


def gram_matrix(x: torch.Tensor) -> torch.Tensor:
    batch, channels, height, width = x.shape
    features = x.view(batch, channels, height * width)
    return features.bmm(features.transpose(1, 2)) / (channels * height * width)


def program(draw: Draw) -> tuple[object, Batches]:
    transformer, vgg = transformer_net(), Vgg()
    for p in [*transformer.parameters(), *vgg.parameters()]:
        p.data = torch.tensor(draw(*p.shape))
    for p in vgg.parameters():
        p.requires_grad = False
    optimizer = torch.optim.Adam(transformer.parameters(), lr=1e-3)
    style = torch.tensor(draw.uniform(3, 16, 16, 1) * 255).movedim(-1, 0)
    gram_style = [gram_matrix(y) for y in vgg(style)]

    def step(x: object) -> float:
        x = torch.tensor(x).movedim(-1, 0)
        features_y, features_x = vgg(transformer(x)), vgg(x)
        loss = mse_loss(features_y[1], features_x[1])
        for y, gram in zip(features_y, gram_style, strict=True):
            loss = loss + 10.0 * mse_loss(gram_matrix(y), gram.expand(len(x), -1, -1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(draw.uniform(3, 16, 16, 2) * 255,) for _ in range(5)]
