"""Layers around layers: one after the other, and a residual block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from ag.autograd.create import ag_tensor
from ag.autograd.tensor import Tensor, TensorLike
from ag.errors import ShapeError
from ag.nn.layer import ACTIVATIONS, ActivationLike, Layer, Settings, activation_called
from ag.ops.arithmetic import ag_add

__all__ = ["Residual", "Sequential", "ag_residual", "ag_sequential"]


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
        """The layers' configurations, in order."""
        return {"layer": type(self).__name__, "layers": [layer.config() for layer in self.layers]}

    @classmethod
    def configs_inside(cls, config: Settings) -> list[Settings]:
        """Those of the layers, in order."""
        return list(config["layers"])

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> Layer:
        return self.layers[index]


class Activation(Layer):
    """An activation that was given to a sequence."""

    settings = ("activation",)

    def __init__(self, activation: str | Callable[..., Tensor]) -> None:
        self.activation, _ = activation_called(activation, "ag_sequential")

    def forward(self, x: TensorLike) -> Tensor:
        """The activation of `x`, in its shape."""
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
    >>> import numpy
    >>> ag.ag_residual(ag.ag_conv2d_layer(4, 4, 3, padding=1), activation="relu")(numpy.ones((4, 8, 8, 2))).shape
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
        x = x if isinstance(x, Tensor) else ag_tensor(x)
        y, shortcut = self.body.forward(x), x if self.shortcut is None else self.shortcut.forward(x)
        if y.shape != shortcut.shape:
            raise ShapeError(f"ag_residual: the body gives {y.shape} and the shortcut {shortcut.shape}; they must be "
                             f"equal, so give a shortcut that changes the shape as the body does.")
        y = ag_add(y, shortcut)
        return y if self._activate is None else self._activate(y)

    def config(self) -> dict[str, object]:
        """The configurations of body and shortcut, and the activation."""
        shortcut = None if self.shortcut is None else self.shortcut.config()
        return {**super().config(), "body": self.body.config(), "shortcut": shortcut}

    @classmethod
    def configs_inside(cls, config: Settings) -> list[Settings]:
        """Those of body and shortcut."""
        return [config["body"], *([] if config["shortcut"] is None else [config["shortcut"]])]


ag_residual = Residual
ag_sequential = Sequential
