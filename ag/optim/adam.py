"""Adam and AdamW: tables of what `Optimizer` needs, and checks of the numbers.

The update rule is the primitive `adam_update` of `ag.engine.kernels.optimizer`.  Training loops and `ag.parallel` call
these optimizers.
"""

from __future__ import annotations

from ag.engine.kernels.optimizer import adam_update
from ag.optim.optimizer import Optimizer

__all__ = ["Adam", "AdamW", "optimizer_adam", "optimizer_adamw"]


class Adam(Optimizer):
    """Adam: adaptive moment estimation.

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
    One launch per step over all parameters.  The step count and the bias corrections are on the device, so a
    captured step goes on counting.

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
    _state = ("lr", "c1", "c2", "t")
    settings: tuple[str, ...] = ("lr", "beta1", "beta2", "eps")

    def __init__(self, params: object, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
                 eps: float = 1e-8) -> None:
        self._start(params, lr, beta1, beta2, eps, 0.0)

    def _start(self, params: object, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> None:
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0 <= beta < 1:
                raise ValueError(f"{self._function}: {name} is {beta}; it must be in [0, 1).")
        for name, value in (("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"{self._function}: {name} is {value}; it must be 0 or more.")
        self.beta1, self.beta2, self.eps, self.weight_decay = beta1, beta2, eps, weight_decay
        Optimizer.__init__(self, params, lr, rate1=1 - beta1, rate2=1 - beta2, eps=float(eps),
                           weight_decay=float(weight_decay))


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
    settings = (*Adam.settings, "weight_decay")

    def __init__(self, params: object, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
                 eps: float = 1e-8, weight_decay: float = 0.01) -> None:
        self._start(params, lr, beta1, beta2, eps, weight_decay)


optimizer_adam = Adam
optimizer_adamw = AdamW
