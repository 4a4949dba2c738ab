"""The residual block: a layer whose input is added to its output.

It knows of the layers inside it only `forward` and `config`.  Users' models call it.
"""

from __future__ import annotations

from types import MappingProxyType

from ag.autograd.create import ag_tensor
from ag.autograd.tensor import Tensor, TensorLike
from ag.errors import ShapeError
from ag.nn.layer import Layer, Settings
from ag.nn.settings import activation_called
from ag.ops.arithmetic import ag_add

__all__ = ["Residual", "ag_residual"]


class Residual(Layer):
    """Residual block, ``activation(body(x) + shortcut(x))``.

    Parameters
    ----------
    body : Layer
        Often a sequence.
    shortcut : Layer or None, optional
        Gives the input the shape of the body's output, such as a convolution with the same stride and a kernel of
        size 1; default: the input itself.
    activation : str or None, optional
        A function of `ag.ops.activation` by its name without the prefix, such as ``"relu"`` for `ag_relu`,
        applied to the sum.

    Raises
    ------
    TypeError
        If `body` or `shortcut` is not a layer.
    ValueError
        If the activation is unknown.

    Notes
    -----
    Parameters are called ``body_…`` and ``shortcut_…``.

    References
    ----------
    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.

    Examples
    --------
    >>> import ag, numpy
    >>> block = ag.ag_residual(ag.ag_conv2d_layer(4, 4, 3, padding=1), activation="relu")
    >>> block(numpy.ones((4, 8, 8, 2))).shape
    (4, 8, 8, 2)
    """

    _adjustable = MappingProxyType({})
    settings = ("activation",)

    def __init__(self, body: Layer, shortcut: Layer | None = None, activation: str | None = None) -> None:
        for name, layer in (("body", body), ("shortcut", shortcut)):
            if not isinstance(layer, Layer) and (layer is not None or name == "body"):
                raise TypeError(f"ag_residual: {name} is a {type(layer).__name__}; it must be a layer.")
        self.body = body
        self.shortcut = shortcut
        self.activation = activation
        self._activate = activation_called(activation, "ag_residual")

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
