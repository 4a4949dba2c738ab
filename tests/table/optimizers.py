"""The table of optimizers: a row says what one is, and the tests follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ag

Array = np.ndarray


@dataclass(frozen=True)
class Optimizer:
    name: str
    rule: Callable[..., Array]  # rule(p, grads, lr, **settings): p in float64 after a step each; lr(t): from t = 1 on
    settings: dict[str, dict[str, Any]]  # by the name of the case; each has an lr
    bad: list[tuple[dict[str, Any], list[str]]] = field(default_factory=list)  # refused, and what the error says

    def make(self, params: Any, **settings: Any) -> Any:
        """One for these parameters."""
        return getattr(ag, self.name)(params, **settings)


def adam(p: Array, grads: list[Array], lr: Callable[[int], float], beta1: float = 0.9, beta2: float = 0.999,
         eps: float = 1e-8, weight_decay: float = 0.0) -> Array:
    """Kingma and Ba, algorithm 1; with decay Loshchilov and Hutter, algorithm 2."""
    m = v = np.zeros_like(p)
    for t, g in enumerate(grads, 1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        p = p - lr(t) * (m_hat / (np.sqrt(v_hat) + eps) + weight_decay * p)
    return p


def adamw(p: Array, grads: list[Array], lr: Callable[[int], float], weight_decay: float = 0.01,
          **settings: Any) -> Array:
    """The same with the default decay."""
    return adam(p, grads, lr, weight_decay=weight_decay, **settings)


def sgd(p: Array, grads: list[Array], lr: Callable[[int], float], momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False) -> Array:
    """The rule in optimizer_sgd's docstring."""
    b = np.zeros_like(p)
    for t, g in enumerate(grads, 1):
        d = g + weight_decay * p
        b = momentum * b + d
        p = p - lr(t) * (d + momentum * b if nesterov else b)
    return p


OPTIMIZERS = [
    Optimizer("optimizer_adam", adam, {
        "adam": {"lr": 0.05},
        "adam, other betas": {"lr": 0.05, "beta1": 0.5, "beta2": 0.9, "eps": 1e-3},
    }, bad=[
        ({"lr": -1.0}, ["lr is -1.0"]),
        ({"lr": float("nan")}, ["lr is nan"]),
        ({"beta1": 1.0}, ["beta1 is 1.0", "[0, 1)"]),
        ({"beta2": -0.1}, ["beta2 is -0.1"]),
        ({"eps": -1e-8}, ["eps is -1e-08"]),
    ]),
    Optimizer("optimizer_adamw", adamw, {
        "adamw": {"lr": 0.05, "weight_decay": 0.1},
        "adamw, its default decay": {"lr": 0.05},
    }, bad=[({"weight_decay": -1.0}, ["weight_decay is -1.0"])]),
    Optimizer("optimizer_sgd", sgd, {
        "sgd": {"lr": 0.05},
        "sgd, weight decay": {"lr": 0.05, "weight_decay": 0.1},
        "sgd, momentum": {"lr": 0.02, "momentum": 0.8},
        "sgd, all": {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.1, "nesterov": True},
    }, bad=[
        ({"weight_decay": -1.0}, ["weight_decay is -1.0"]),
        ({"momentum": 1.0}, ["momentum is 1.0", "[0, 1)"]),
        ({"nesterov": True}, ["nesterov", "momentum is 0"]),
    ]),
]

RULES = {name: (row, settings) for row in OPTIMIZERS for name, settings in row.settings.items()}
