"""Learning rate finder: short training of a copy, with a rate that grows from step to step until it is too large."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.engine.shape import counts
from ag.optim.optimizer import Optimizer
from ag.optim.settings import number_or_nan
from ag.training.callbacks import Callback, Run
from ag.training.evaluation import Axes, Loss, Trained, pyplot_for
from ag.training.fit import fit, in_the_name_of

__all__ = ["LRCurve", "find_lr"]

_SMOOTH = 0.9  # of a running mean of losses, as in the reference
_DIVERGED = 4.0  # times the least smoothed loss


@dataclass(frozen=True)
class LRCurve:
    """Losses by learning rate, which ``plot()`` draws.

    Attributes
    ----------
    rates, losses : ndarray
        One per step: growing rates, and running means of the losses.
    suggestion : float
        A rate to begin with: a tenth of the one where the loss was least.

    Examples
    --------
    >>> curve = ag.training.find_lr(ag.nn.Linear(1, 1), ([[0.0], [1.0]], [[0.0], [1.0]]), steps=10, seed=0)
    >>> len(curve.rates) == len(curve.losses)
    True
    """

    rates: Array
    losses: Array
    suggestion: float

    def plot(self) -> Axes:
        """Draw losses over rates, with the suggestion, and return matplotlib's axes."""
        place: Axes
        _, place = pyplot_for("LRCurve.plot").subplots(figsize=(4.8, 3.6), layout="constrained")
        place.plot(self.rates, self.losses)
        place.axvline(self.suggestion, linestyle="--", color="grey", label=f"suggestion: {self.suggestion:.2g}")
        place.set(xscale="log", xlabel="learning rate", ylabel="loss")
        place.legend()
        return place


def find_lr(model: Trained, train: object, loss: Loss | str | None = None, *, lowest: float = 1e-6,
            highest: float = 1.0, steps: int = 100, batch_size: int | None = None, seed: int | None = None,
            optimizer: Callable[[dict[str, Tensor]], Optimizer] | str | None = None) -> LRCurve:
    """Try learning rates on a copy of a model, each larger than the one before.

    Reference: Smith, "Cyclical learning rates for training neural networks", section 3.3; fastai ``lr_find``.

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
        Stays as it is.
    train : pair of arrays, ag_dataloader, ag_image_folder or dataset
    loss, batch_size, seed, optimizer : optional
        As in `fit`.
    lowest, highest, steps : optional
        The first rate, the last, and how many, or fewer: up to a loss of 4 times the least before, or an infinite one.

    Examples
    --------
    >>> import ag, numpy as np
    >>> X = np.random.default_rng(0).normal(size=(64, 2))
    >>> 1e-7 < ag.training.find_lr(ag.ag_linear(2, 1), (X, X[:, :1]), steps=20, seed=0).suggestion <= 0.1
    True
    """
    if not (counts(steps, least=5) and steps <= 1_000_000):
        raise ValueError(f"find_lr: steps is {steps!r:.60}; a whole number from 5 to a million is required.")
    if not 0 < number_or_nan(lowest) < number_or_nan(highest) < np.inf:
        raise ValueError(f"find_lr: lowest is {lowest!r:.60} and highest {highest!r:.60}; give 0 < lowest < highest.")
    with np.errstate(all="ignore"):
        rates = np.geomspace(float(lowest), float(highest), int(steps))
    losses = _Losses(int(steps))
    with in_the_name_of("find_lr", train), suppress(FloatingPointError):  # of a rate that is too large by far
        fit(deepcopy(model), train, None, int(steps), loss, callbacks=losses, batch_size=batch_size, verbose=False,
            optimizer=optimizer, scheduler=lambda made: _Growing(made, rates), seed=seed)
    smooth = losses.smooth
    while smooth and not isfinite(smooth[-1]):
        smooth.pop()
    if len(smooth) < 5:
        raise ValueError(f"find_lr: {len(smooth)} losses were finite, from the rate {rates[0]:.3g} on, and at least 5 "
                         f"are required; give a lower lowest, or look at the loss.")
    return LRCurve(rates[: len(smooth)], np.array(smooth), float(rates[int(np.argmin(smooth))]) / 10)


class _Losses(Callback):
    """Keep running means of the losses, and stop when they diverge, or after so many steps."""

    def __init__(self, steps: int) -> None:
        self.smooth: list[float] = []
        self._steps, self._mean = steps, 0.0

    def on_step_end(self, run: Run, step: int, loss: float) -> None:
        self._mean = _SMOOTH * self._mean + (1 - _SMOOTH) * loss
        self.smooth.append(self._mean / (1 - _SMOOTH ** (step + 1)))
        if not (self.smooth[-1] <= _DIVERGED * min(self.smooth) or min(self.smooth) <= 0) or step + 1 == self._steps:
            run.stop("the rates were tried")


class _Growing:
    """A schedule that gives an optimizer the rates of a list, one after the other."""

    def __init__(self, optimizer: Optimizer, rates: Array) -> None:
        self._optimizer, self._rates = optimizer, iter(rates.tolist())
        self.step()

    def step(self) -> None:
        self._optimizer.lr = next(self._rates, self._optimizer.lr)
