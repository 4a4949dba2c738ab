"""Program 18, PyTorch's fast neural style: a net that paints, judged by features and Gram matrices of a frozen one."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


class ConvLayer(ag.Layer):
    def __init__(self, channels: int, out: int, kernel: int, stride: int) -> None:
        self.reflection_pad = nn.ReflectionPad2d(kernel // 2)
        self.conv2d = nn.Conv2d(channels, out, kernel, stride)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return self.conv2d(self.reflection_pad(x))


class ResidualBlock(ag.Layer):
    def __init__(self, channels: int) -> None:
        self.conv1, self.in1 = ConvLayer(channels, channels, 3, 1), nn.InstanceNorm2d(channels, affine=True)
        self.conv2, self.in2 = ConvLayer(channels, channels, 3, 1), nn.InstanceNorm2d(channels, affine=True)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return self.in2(self.conv2(self.in1(self.conv1(x)).relu())) + x


class UpsampleConvLayer(ConvLayer):
    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return super().forward(ops.interpolate(x, scale_factor=2, mode="nearest"))


def transformer_net() -> ag.Layer:
    return nn.Sequential(
        ConvLayer(3, 4, 5, 1), nn.InstanceNorm2d(4, affine=True), nn.ReLU(),
        ConvLayer(4, 8, 3, 2), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), ResidualBlock(8),
        UpsampleConvLayer(8, 4, 3, 1), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), ConvLayer(4, 3, 5, 1))


class Vgg(ag.Layer):
    def __init__(self) -> None:
        self.slice1 = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.slice2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU())
        self.mean, self.std = (
            ag.ag_tensor(x).reshape(3, 1, 1, 1) for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))

    def forward(self, x: ag.Tensor) -> list[ag.Tensor]:
        relu1 = self.slice1((x / 255.0 - self.mean) / self.std)
        return [relu1, self.slice2(relu1)]


def gram_matrix(x: ag.Tensor) -> ag.Tensor:
    channels, height, width, _ = x.shape
    return ops.einsum("chwb,dhwb->cdb", x, x) / (channels * height * width)


def program(draw: Draw) -> tuple[object, Batches]:
    transformer, vgg = transformer_net(), Vgg()
    for p in [*transformer.parameters().values(), *vgg.parameters().values()]:
        p.data = draw(*p.shape)
    for p in vgg.parameters().values():
        p.requires_grad = False
    optimizer = ag.optim.Adam(transformer, lr=1e-3)
    gram_style = [gram_matrix(y) for y in vgg(draw.uniform(3, 16, 16, 1) * 255)]

    def step(x: ag.Tensor) -> ag.Tensor:
        x = ag.ag_tensor(x)
        features_x = vgg(x)
        with ag.with_grad_tape():
            features_y = vgg(transformer(x))
            loss = ops.mse_loss(features_y[1], features_x[1])
            for y, style in zip(features_y, gram_style, strict=True):
                loss = loss + 10.0 * ops.mse_loss(gram_matrix(y), style.expand(-1, -1, x.shape[-1]))
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(draw.uniform(3, 16, 16, 2) * 255,) for _ in range(5)]
