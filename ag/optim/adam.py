"""Adam and AdamW: tables of what `Optimizer` needs.

The update rule is the primitive `adam_update` of `ag.engine.kernels.optimizer`.  Knows no layer, no tape and no file.
Training loops and `ag.parallel` call these optimizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ag.engine.kernels.optimizer import adam_update
from ag.engine.primitive import Array
from ag.names import answers
from ag.names.elsewhere import OPTIMIZER_ARGUMENTS
from ag.optim.optimizer import Optimizer
from ag.optim.settings import NOT_NEGATIVE, PART, Check

__all__ = ["Adam", "AdamW", "optimizer_adam", "optimizer_adamw"]


class Adam(Optimizer):
    """Adam: adaptive moment estimation; `optimizer_adamw` has weight decay, too.

    Parameters
    ----------
    params : dict of str to Tensor, list of Tensor, or model
        Parameters to train; they become views of one flat buffer per device.
    lr : float, optional
        Learning rate, at least 0.
    beta1, beta2 : float, optional
        Decay of the first and second moment, in [0, 1).
    eps : float, optional
        Added to the root of the second moment.

    Raises
    ------
    ValueError
        If there are no parameters, one is listed twice, two share a name, or a number is out of range.

    Notes
    -----
    One launch per step over all parameters.  Settings, step counts and bias corrections are on the device, so a
    captured step goes on counting, and follows a setting that is assigned.  Every parameter has a count of its own: a
    gradient that comes late is corrected as a first one.  A finite gradient beyond 2^64 in float32, whose square is
    none, counts as 2^64.

    References
    ----------
    ggmlR ``optimizer_adam``; Kingma and Ba, "Adam: A Method for Stochastic Optimization", algorithm 1.

    Examples
    --------
    >>> import ag
    >>> W = ag.ag_param([[1.0]])
    >>> opt = ag.optimizer_adam({"W": W}, lr=0.1)
    >>> opt.step({"W": ag.ag_tensor([[2.0]])})
    >>> round(W.item(), 4)
    0.9
    """

    _function = "optimizer_adam"
    _rule = adam_update
    _moments = ("m", "v")
    _never_negative = ("v",)
    _counts = ("c1", "c2", "t")
    _for_each = True
    _checks: ClassVar[Mapping[str, Check]] = {"lr": NOT_NEGATIVE, "beta1": PART, "beta2": PART, "eps": NOT_NEGATIVE}
    settings: tuple[str, ...] = ("lr", "beta1", "beta2", "eps")
    beta1: float
    beta2: float
    eps: float

    @answers("optimizer_adam", OPTIMIZER_ARGUMENTS)
    def __init__(self, params: object, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
                 eps: float = 1e-8) -> None:
        super().__init__(params, lr=lr, beta1=beta1, beta2=beta2, eps=eps)

    def _words(self, values: Mapping[str, Any]) -> list[float]:
        beta1, beta2 = values["beta1"], values["beta2"]
        return [values["lr"], 1 - beta1, 1 - beta2, values["eps"], values.get("weight_decay", 0.0), beta1, beta2]

    def _use(self, values: Mapping[str, Any]) -> None:
        super()._use(values)
        betas = np.array([values["beta1"], values["beta2"]])
        if self._slots and betas.tolist() != [self.beta1, self.beta2]:
            for slots in self._slots:
                slots.change_counts(lambda rows: np.hstack([_corrections(betas, rows[:, 2:]), rows[:, 2:]]))


def _corrections(betas: Array, t: Array) -> Array:
    """1 - beta^t."""
    with np.errstate(divide="ignore", invalid="ignore"):  # beta is 0
        return np.where(t == 0, 0.0, -np.expm1(t * np.log(betas)))


class AdamW(Adam):
    """Adam with decoupled weight decay.

    Parameters
    ----------
    params : dict of str to Tensor, list of Tensor, or model
        Parameters to train; they become views of one flat buffer per device.
    lr : float, optional
        Learning rate, at least 0.
    beta1, beta2 : float, optional
        Decay of the first and second moment, in [0, 1).
    eps : float, optional
        Added to the root of the second moment.
    weight_decay : float, optional
        Every step multiplies the parameters by ``1 - lr * weight_decay``.

    Raises
    ------
    ValueError
        If there are no parameters, one is listed twice, two share a name, or a number is out of range.

    References
    ----------
    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2.

    Examples
    --------
    >>> import ag
    >>> opt = ag.optimizer_adamw([ag.ag_param([[1.0]])], lr=0.1)
    >>> opt.t
    0
    """

    _function = "optimizer_adamw"
    _checks: ClassVar[Mapping[str, Check]] = {**Adam._checks, "weight_decay": NOT_NEGATIVE}
    settings = (*Adam.settings, "weight_decay")
    weight_decay: float

    @answers("optimizer_adamw", OPTIMIZER_ARGUMENTS)
    def __init__(self, params: object, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
                 eps: float = 1e-8, weight_decay: float = 0.01) -> None:
        Optimizer.__init__(self, params, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)


optimizer_adam = Adam
optimizer_adamw = AdamW
