"""The sequence: layers one after the other.

It knows of the layers inside it only `forward` and `config`.  Users make most of their models of it;
`ag.parallel.sharded` cuts them into stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from ag.autograd.tensor import Tensor, TensorLike
from ag.nn.layer import Layer, Settings

__all__ = ["Sequential", "ag_sequential"]


class Sequential(Layer):
    """Layers one after the other.

    Parameters
    ----------
    *layers : Layer
        Or one list of them.

    Raises
    ------
    TypeError
        If an item is not a layer.

    Notes
    -----
    Parameters are called ``layer1_W``, ``layer1_b``, ``layer2_W``, …, counted from 1 as in ggmlR.

    References
    ----------
    ggmlR ``ag_sequential``.

    Examples
    --------
    >>> import ag
    >>> model = ag.ag_sequential(ag.ag_linear(4, 8, activation="relu"), ag.ag_linear(8, 3))
    >>> list(model.parameters())
    ['layer1_W', 'layer1_b', 'layer2_W', 'layer2_b']
    """

    def __init__(self, *layers: Layer | Sequence[Layer]) -> None:
        items: list[Any] = list(layers)
        if len(items) == 1 and isinstance(items[0], (list, tuple)):
            items = list(items[0])
        for i, layer in enumerate(items, 1):
            if not isinstance(layer, Layer):
                raise TypeError(f"ag_sequential: item {i} is a {type(layer).__name__}; every item must be a layer. "
                                f"{_instead(layer)}")
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


def _instead(item: object) -> str:
    if isinstance(item, type) and issubclass(item, Layer):
        return f"Make one with {item.__name__}(...)."
    return "A function goes into the forward of a layer of your own, and an activation into activation=\"relu\"."


ag_sequential = Sequential
