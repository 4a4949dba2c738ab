"""Stochastic gradient descent: a table of what `Optimizer` needs.

The update rule is the primitive `sgd_update` of `ag.engine.kernels.optimizer`.  Knows no layer, no tape and no file.
Training loops and `ag.parallel` call this optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ag.engine.kernels.optimizer import sgd_update
from ag.names import answers
from ag.names.elsewhere import OPTIMIZER_ARGUMENTS
from ag.optim.optimizer import Optimizer
from ag.optim.settings import NOT_NEGATIVE, PART, Check, flag

__all__ = ["SGD", "optimizer_sgd"]


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if wanted.

    Parameters
    ----------
    params : dict of str to Tensor, list of Tensor, or model
        Parameters to train; they become views of one flat buffer per device.
    lr : float, optional
        Learning rate, at least 0.
    momentum : float, optional
        In [0, 1).
    weight_decay : float, optional
        L2 penalty: `weight_decay` times the parameter is added to its gradient.
    nesterov : bool, optional
        Look ahead by one momentum step; needs ``momentum > 0``.

    Raises
    ------
    ValueError
        If there are no parameters, one is listed twice, two share a name, or a number is out of range.

    Notes
    -----
    ``b = momentum * b + g``; ``p -= lr * b``, or ``p -= lr * (g + momentum * b)`` with `nesterov`.

    References
    ----------
    ggmlR ``optimizer_sgd``; Sutskever et al., "On the importance of initialization and momentum", 2013.

    Examples
    --------
    >>> import ag
    >>> W = ag.ag_param([[1.0]])
    >>> opt = ag.optimizer_sgd({"W": W}, lr=0.5)
    >>> opt.step({"W": ag.ag_tensor([[1.0]])})
    >>> W.item()
    0.5
    """

    _function = "optimizer_sgd"
    _rule = sgd_update
    _moments = ("momentum",)
    _checks: ClassVar[Mapping[str, Check]] = {
        "lr": NOT_NEGATIVE, "momentum": PART, "weight_decay": NOT_NEGATIVE, "nesterov": flag}
    settings = ("lr", "momentum", "weight_decay", "nesterov")
    momentum: float
    weight_decay: float
    nesterov: bool

    @answers("optimizer_sgd", OPTIMIZER_ARGUMENTS)
    def __init__(self, params: object, lr: float = 0.01, momentum: float = 0.0, *,
                 weight_decay: float = 0.0, nesterov: bool = False) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)

    def _agree(self, values: Mapping[str, Any]) -> None:
        if values["nesterov"] and not values["momentum"]:
            raise ValueError("optimizer_sgd: nesterov needs momentum > 0, and momentum is 0.")

    def _words(self, values: Mapping[str, Any]) -> list[float]:
        return [float(values[name]) for name in self.settings]


optimizer_sgd = SGD
