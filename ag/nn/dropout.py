"""Dropout: a layer that sets elements to 0 at random in train mode."""

from __future__ import annotations

from types import MappingProxyType

from ag.autograd.create import ag_tensor
from ag.autograd.tensor import Tensor, TensorLike
from ag.nn.layer import Layer, number
from ag.ops.elementwise import dropped

__all__ = ["Dropout", "ag_dropout"]


_rate = number("ag_dropout: rate", lambda x: 0 <= x < 1, "in [0, 1)")


class Dropout(Layer):
    """Set elements to 0 at random while training.

    Kept elements are divided by ``1 - rate``, so eval mode needs no scaling.  The mask comes from the device's
    counter-based generator and is the same on every device after the same `ag_seed`.  Each replay of a captured step
    draws a new one.
    Reference: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting".

    Parameters
    ----------
    rate : float
        Probability of being dropped, in [0, 1).

    Examples
    --------
    >>> layer = ag.ag_eval(ag.ag_dropout(0.5))
    >>> layer(ag.ag_tensor([1.0, 2.0])).numpy().ravel().tolist()
    [1.0, 2.0]
    """

    settings = ("rate",)
    _elsewhere = MappingProxyType({"p": "rate"})
    _adjustable = MappingProxyType({"rate": _rate})
    rate: float

    def __init__(self, rate: float) -> None:
        self.rate = _rate(rate)

    def forward(self, x: TensorLike) -> Tensor:
        """`x` with elements dropped in train mode, `x` itself in eval mode."""
        x = x if isinstance(x, Tensor) else ag_tensor(x)
        return dropped(x, self.rate) if self.training and self.rate else x


ag_dropout = Dropout
