"""Layers around layers: one after the other, a residual block, and networks of such blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod, sqrt
from typing import Any, cast

import numpy as np

from ag import ops
from ag.autograd.create import as_tensor
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.shape import counts
from ag.errors import ShapeError
from ag.nn.functions import GlobalPool, MaxPool
from ag.nn.layer import ACTIVATIONS, ActivationLike, Layer, Settings, activation_called, sizes
from ag.nn.linear import BatchNorm, Conv2d, Linear

__all__ = ["ResNet", "Residual", "Sequential", "ag_residual", "ag_resnet", "ag_sequential"]

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_WIDER = 4  # times as many channels leave a bottleneck as its 3x3 convolution has


class Sequential(Layer):
    """Layers one after the other.

    Parameters are called ``layer1_W``, ``layer1_b``, ``layer2_W``, …, counted from 1 as in ggmlR.

    Parameters
    ----------
    *layers : Layer or callable
        Or one list of them.  A function is an activation, such as `ag_relu`.

    Examples
    --------
    >>> model = ag.ag_sequential(ag.ag_linear(4, 8, activation="relu"), ag.ag_linear(8, 3))
    >>> list(model.parameters())
    ['layer1_W', 'layer1_b', 'layer2_W', 'layer2_b']
    """

    settings = ()

    def __init__(self, *layers: Layer | Callable[..., Tensor] | Sequence[Layer | Callable[..., Tensor]]) -> None:
        items: list[Any] = list(layers)
        if len(items) == 1 and isinstance(items[0], (list, tuple)):
            items = list(items[0])
        items = [Activation(x) if any(x is f for f in ACTIVATIONS.values()) else x for x in items]
        for i, layer in enumerate(items, 1):
            if not isinstance(layer, Layer):
                advice = f"Make one with {layer.__name__}(...)." if isinstance(layer, type) and issubclass(
                    layer, Layer) else "Call a function that is no activation in the forward of a layer of your own."
                raise TypeError(f"ag_sequential: item {i} is a {type(layer).__name__}; every item must be a layer or "
                                f"an activation, such as ag.ops.relu. {advice}")
        self.layers: list[Layer] = items

    def children(self) -> dict[str, Layer]:
        """Layers by name: ``layer1``, ``layer2``, …"""
        return {f"layer{i}": layer for i, layer in enumerate(self.layers, 1)}

    def forward(self, x: TensorLike) -> Tensor:
        """The last layer's output for the first layer's input `x`: tensors, unless own layers pass on others."""
        for layer in self.layers:
            x = layer.forward(x)
        return cast(Tensor, x)

    def config(self) -> dict[str, object]:
        return {"layer": type(self).__name__, "layers": [layer.config() for layer in self.layers]}

    @classmethod
    def configs_inside(cls, config: Settings) -> list[Settings]:
        return list(config["layers"])

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> Layer:
        if isinstance(index, int) and not -len(self) <= index < len(self):
            raise IndexError(f"ag_sequential: index is {index}, and there are {len(self)} layers, counted from 0.")
        return self.layers[index]


class Activation(Layer):
    """An activation that was given to a sequence."""

    def __init__(self, activation: str | Callable[..., Tensor]) -> None:
        self.activation, _ = activation_called(activation, "ag_sequential")

    def forward(self, x: TensorLike) -> Tensor:
        return ACTIVATIONS[str(self.activation)](x)


class Residual(Layer):
    """Residual block, ``activation(body(x) + shortcut(x))``.

    Parameters are called ``body_…`` and ``shortcut_…``.
    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.

    Parameters
    ----------
    body : Layer
        Often a sequence.
    shortcut : Layer or None, optional
        Gives the input the shape of the body's output, such as a 1x1 convolution; default: the input itself.
    activation : str, callable or None, optional
        As of `ag_linear`, of the sum.

    Examples
    --------
    >>> ag.ag_residual(ag.ag_conv2d_layer(4, 4, 3, padding=1), activation="relu")(ag.ops.ones(4, 8, 8, 2)).shape
    (4, 8, 8, 2)
    """

    settings = ("activation",)

    def __init__(self, body: Layer, shortcut: Layer | None = None, activation: ActivationLike = None) -> None:
        for name, layer in (("body", body), ("shortcut", shortcut)):
            if not isinstance(layer, Layer) and (layer is not None or name == "body"):
                raise TypeError(f"ag_residual: {name} is a {type(layer).__name__}; it must be a layer.")
        self.body = body
        self.shortcut = shortcut
        self.activation, self._activate = activation_called(activation, "ag_residual")

    def forward(self, x: TensorLike) -> Tensor:
        """The body's output plus the shortcut's, activated."""
        x = as_tensor(x)
        y, shortcut = self.body.forward(x), x if self.shortcut is None else self.shortcut.forward(x)
        if y.shape != shortcut.shape:
            raise ShapeError(f"ag_residual: the body gives {y.shape} and the shortcut {shortcut.shape}; they must be "
                             f"equal, so give a shortcut that changes the shape as the body does.")
        y = ops.add(y, shortcut)
        return y if self._activate is None else self._activate(y)

    def config(self) -> dict[str, object]:
        shortcut = None if self.shortcut is None else self.shortcut.config()
        return {**super().config(), "body": self.body.config(), "shortcut": shortcut}

    @classmethod
    def configs_inside(cls, config: Settings) -> list[Settings]:
        return [config["body"], *([] if config["shortcut"] is None else [config["shortcut"]])]


class ResNet(Layer):
    """A residual network for images, of 18, 34, 50, 101 or 152 layers.

    Initial weights of convolutions are uniform, by He and fan-out.  From 50 layers on, the 3x3 convolution of a block
    halves the image, as in torchvision.  Layers have the names that they have there, and parameters are called
    ``layer1_0_conv1_W`` where they are ``layer1.0.conv1.weight`` (docs/interop.md).
    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016; by the same, "Delving Deep into
    Rectifiers", ICCV 2015, for the initial weights.

    Parameters
    ----------
    depth : {18, 34, 50, 101, 152}
    num_classes : int
    width : int, optional
        Channels of the first stage; 64 in the original.
    small_input : bool, optional
        Begin with a 3x3 convolution that keeps the size, as for images of 32 x 32, and not with a 7x7 one and pooling.

    Examples
    --------
    >>> ag.ag_resnet(18, 10, width=8, small_input=True)(ag.ops.ones(3, 16, 16, 2)).shape
    (10, 2)
    """

    def __init__(self, depth: int, num_classes: int, width: int = 64, small_input: bool = False) -> None:
        if not counts(depth) or depth not in _BLOCKS:
            raise ValueError(f"ag_resnet: depth is {depth!r}; 18, 34, 50, 101 or 152 is required.")
        self.num_classes, self.width = sizes("ag_resnet", num_classes=num_classes, width=width)
        if not isinstance(small_input, (bool, np.bool_)):
            raise ValueError(f"ag_resnet: small_input is {small_input!r}; True or False is required.")
        self.depth, self.small_input = int(depth), bool(small_input)
        self.conv1 = _conv(3, self.width, 3) if small_input else _conv(3, self.width, 7, 2)
        self.bn1 = BatchNorm(self.width)
        self.maxpool = None if small_input else MaxPool(3, 2, padding=1)
        channels, deep = self.width, depth >= 50
        stages: list[dict[str, Layer]] = [{}, {}, {}, {}]
        for stage, blocks in enumerate(_BLOCKS[self.depth]):
            for i in range(blocks):
                stages[stage][str(i)] = _Block(channels, self.width << stage, 2 if stage > 0 and i == 0 else 1, deep)
                channels = (self.width << stage) * (_WIDER if deep else 1)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = GlobalPool()
        self.fc = Linear(channels, self.num_classes)
        self._made = self._outline()

    def _outline(self) -> list[tuple[object, ...]]:
        return [(name, type(layer), *(getattr(layer, setting) for setting in layer.settings))
                for name, layer in self.modules()]

    def is_as_made(self) -> bool:
        return self._outline() == self._made

    @classmethod
    def largest_tensor(cls, args: Settings) -> tuple[int, ...]:
        """The shape of a 3x3 convolution of the last stage, or of `fc`'s weight."""
        inner = args["width"] * 8
        convolution, head = (inner, inner, 3, 3), (args["num_classes"], inner * (_WIDER if args["depth"] >= 50 else 1))
        return max(convolution, head, key=prod)

    def forward(self, x: TensorLike) -> Tensor:
        """Logits of shape (num_classes, batch) for images of shape (3, height, width, batch)."""
        y = ops.relu(self.bn1.forward(self.conv1.forward(x)))
        if self.maxpool is not None:
            y = self.maxpool.forward(y)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            for block in stage.values():
                y = block.forward(y)
        return self.fc.forward(self.avgpool.forward(y))


class _Block(Layer):
    """Two 3x3 convolutions, or, if `deep`, one between two of 1x1; their result plus the shortcut goes through ReLU."""

    def __init__(self, into: int, inner: int, stride: int, deep: bool) -> None:
        out = inner * _WIDER if deep else inner
        self.downsample: dict[str, Layer] = {}
        if stride != 1 or into != out:
            self.downsample = {"0": _conv(into, out, 1, stride), "1": BatchNorm(out)}
        convolutions = [(into, inner, 1), (inner, inner, 3, stride), (inner, out, 1)] if deep else [
            (into, inner, 3, stride), (inner, inner, 3)]
        self._places = range(1, len(convolutions) + 1)
        for i, sizes_of_one in zip(self._places, convolutions, strict=True):
            setattr(self, f"conv{i}", _conv(*sizes_of_one))
            setattr(self, f"bn{i}", BatchNorm(sizes_of_one[1]))

    def forward(self, x: TensorLike) -> Tensor:
        """Output for `x` of shape (channels, height, width, batch)."""
        shortcut = y = x
        for layer in self.downsample.values():
            shortcut = layer.forward(shortcut)
        for i in self._places:
            y = getattr(self, f"conv{i}").forward(y if i == 1 else ops.relu(y))
            y = getattr(self, f"bn{i}").forward(y)
        return ops.relu(ops.add(y, shortcut))


def _conv(into: int, out: int, kernel: int, stride: int = 1) -> Conv2d:
    """A convolution without bias, as a batch norm follows, whose weights begin as He has them."""
    layer = Conv2d(into, out, kernel, stride, kernel // 2, bias=False)
    layer.W.data = layer.W.data * sqrt((into + out) / out)  # of Glorot's, whose variance is 2 / (taps * (into + out))
    return layer


ag_residual = Residual
ag_resnet = ResNet
ag_sequential = Sequential
