"""Adam, AdamW and SGD: tables for `Optimizer` beside their primitives in `ag.engine.kernels.optimizer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ag.engine.kernels.optimizer import adam_update, sgd_update
from ag.engine.primitive import Array
from ag.optim.optimizer import Optimizer
from ag.optim.settings import NOT_NEGATIVE, PART, Check, flag

__all__ = ["Adam", "AdamW", "SGD", "optimizer_adam", "optimizer_adamw", "optimizer_sgd"]


class Adam(Optimizer):
    """Adam: adaptive moment estimation; `optimizer_adamw` has weight decay, too.

    One launch per step over all parameters; a captured step goes on counting.  Every parameter has a count of its own:
    a gradient that comes late is corrected as a first one.  A finite gradient beyond 2^64 in float32, whose square is
    none, counts as 2^64.
    Reference: ggmlR ``optimizer_adam``; Kingma and Ba, "Adam: A Method for Stochastic Optimization", algorithm 1.

    Parameters
    ----------
    params : dict of str to Tensor, list of Tensor, or model
        They become views of one flat buffer per device.
    lr : float, optional
    beta1, beta2 : float, optional
        Decay of the first and second moment, in [0, 1).
    eps : float, optional
        Added to the root of the second moment.

    Examples
    --------
    >>> W = ag.ag_param([[1.0]])
    >>> ag.optimizer_adam({"W": W}, lr=0.1).step({"W": [[2.0]]})
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

    def __init__(self, params: object, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
                 eps: float = 1e-8) -> None:
        super().__init__(params, lr=lr, beta1=beta1, beta2=beta2, eps=eps)

    def _words(self, values: Mapping[str, float]) -> list[float]:
        beta1, beta2 = values["beta1"], values["beta2"]
        return [values["lr"], 1 - beta1, 1 - beta2, values["eps"], values.get("weight_decay", 0.0), beta1, beta2]

    def _use(self, values: Mapping[str, float]) -> None:
        super()._use(values)
        betas = np.array([values["beta1"], values["beta2"]])
        if self._slots and betas.tolist() != [self.beta1, self.beta2]:
            def corrected(rows: Array) -> Array:
                t = rows[:, 2:]
                with np.errstate(divide="ignore", invalid="ignore"):  # beta is 0
                    return np.hstack([np.where(t == 0, 0.0, -np.expm1(t * np.log(betas))), t])  # 1 - beta^t

            for slots in self._slots:
                slots.change_counts(corrected)


class AdamW(Adam):
    """Adam with decoupled weight decay.

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2.

    Parameters
    ----------
    params : dict of str to Tensor, list of Tensor, or model
    lr, beta1, beta2, eps : float, optional
        As of `optimizer_adam`.
    weight_decay : float, optional
        Every step multiplies the parameters by ``1 - lr * weight_decay``.

    Examples
    --------
    >>> ag.optimizer_adamw([ag.ag_param([[1.0]])], lr=0.1).t
    0
    """

    _function = "optimizer_adamw"
    _checks: ClassVar[Mapping[str, Check]] = {**Adam._checks, "weight_decay": NOT_NEGATIVE}
    settings = (*Adam.settings, "weight_decay")
    weight_decay: float

    def __init__(self, params: object, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
                 eps: float = 1e-8, weight_decay: float = 0.01) -> None:
        Optimizer.__init__(self, params, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if wanted.

    ``b = momentum * b + g``; ``p -= lr * b``, or ``p -= lr * (g + momentum * b)`` with `nesterov`.
    Reference: ggmlR ``optimizer_sgd``; Sutskever et al., "On the importance of initialization and momentum", 2013.

    Parameters
    ----------
    params : dict of str to Tensor, list of Tensor, or model
    lr : float, optional
    momentum : float, optional
        In [0, 1); `nesterov` needs a positive one.
    weight_decay : float, optional
        L2 penalty: `weight_decay` times the parameter is added to its gradient.
    nesterov : bool, optional

    Examples
    --------
    >>> W = ag.ag_param([[1.0]])
    >>> ag.optimizer_sgd({"W": W}, lr=0.5).step({"W": [[1.0]]})
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

    def __init__(self, params: object, lr: float = 0.01, momentum: float = 0.0, *,
                 weight_decay: float = 0.0, nesterov: bool = False) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)

    def _agree(self, values: Mapping[str, float]) -> None:
        if values["nesterov"] and not values["momentum"]:
            raise ValueError("optimizer_sgd: nesterov needs momentum > 0, and momentum is 0.")


optimizer_adam = Adam
optimizer_adamw = AdamW
optimizer_sgd = SGD
