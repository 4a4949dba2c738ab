"""Learning rate finder: short training of a copy, with a rate that grows from step to step until it is too large."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, cast

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.engine.shape import counts
from ag.names import Making
from ag.optim.optimizer import Optimizer
from ag.optim.rules import Adam
from ag.optim.settings import number_or_nan
from ag.parallel.trainer.callbacks import DPStep
from ag.parallel.trainer.dp_train import dp_train
from ag.parallel.trainer.samples import LoaderSample
from ag.training.data import Data, Leaves
from ag.training.evaluation import Loss, Trained, check_batch_size, check_model, loss_for, pyplot_for
from ag.training.fit import ReplicaModels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LRCurve", "find_lr"]

_SMOOTH = 0.9  # of a running mean of losses, as in the reference
_DIVERGED = 4.0  # times the least smoothed loss


@dataclass(frozen=True)
class LRCurve:
    """Losses by learning rate.

    Attributes
    ----------
    rates : ndarray
        One per step, growing.
    losses : ndarray
        Running means of the losses of the steps.
    suggestion : float
        A rate to begin with: a tenth of the one where the loss was least.

    Examples
    --------
    >>> import ag
    >>> curve = ag.training.find_lr(ag.nn.Linear(1, 1), ([[0.0], [1.0]], [[0.0], [1.0]]), steps=10, seed=0)
    >>> len(curve.rates) == len(curve.losses)
    True
    """

    __signature__ = Making()
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


def find_lr(model: Trained, train: object, loss: Loss | None = None, *, lowest: float = 1e-6, highest: float = 1.0,
            steps: int = 100, batch_size: int | None = None,
            optimizer: Callable[[dict[str, Tensor]], Optimizer] | None = None, seed: int | None = None) -> LRCurve:
    """Try learning rates on a copy of a model, each larger than the one before.

    Reference: Smith, "Cyclical learning rates for training neural networks", section 3.3; fastai ``lr_find``.

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
        Stays as it is.
    train : pair of arrays, ag_dataloader, ag_image_folder or dataset
        As in `fit`, like `loss`, `batch_size`, `optimizer` and `seed`.
    loss : callable, optional
    lowest, highest : float, optional
        The first rate and the last one.
    steps : int, optional
        How many rates; fewer are tried where the loss grows to 4 times its least before, or is not finite.
    batch_size : int, optional
    optimizer : callable, optional
    seed : int, optional

    Returns
    -------
    LRCurve

    Examples
    --------
    >>> import ag, numpy as np
    >>> X = np.random.default_rng(0).normal(size=(64, 2))
    >>> 1e-7 < ag.training.find_lr(ag.ag_linear(2, 1), (X, X[:, :1]), steps=20, seed=0).suggestion <= 0.1
    True
    """
    check_model("find_lr", model)
    check_batch_size("find_lr", batch_size)
    if not (counts(steps, least=5) and steps <= 1_000_000):
        raise ValueError(f"find_lr: steps is {steps!r:.60}; a whole number from 5 to a million is required.")
    if not 0 < number_or_nan(lowest) < number_or_nan(highest) < np.inf:
        raise ValueError(f"find_lr: lowest is {lowest!r:.60} and highest {highest!r:.60}; two positive numbers are "
                         f"required, the second one larger.")
    data = Data(train, "find_lr: train", batch_size, shuffle=True)
    with np.errstate(all="ignore"):
        rates = np.geomspace(float(lowest), float(highest), int(steps))
    smooth: list[float] = []
    mean = 0.0

    def note(step: DPStep) -> bool:
        nonlocal mean
        mean = _SMOOTH * mean + (1 - _SMOOTH) * step.loss
        smooth.append(mean / (1 - _SMOOTH ** (step.step + 1)))
        return smooth[-1] <= _DIVERGED * min(smooth) or min(smooth) <= 0

    copies = ReplicaModels("find_lr", model, None, own=False)
    try:
        dp_train(copies.make, cast(Sequence[LoaderSample], Leaves(data, data.batch_size, int(steps))),
                 loss_for("find_lr", loss, data), n_iter=int(steps), verbose=False, devices=copies.devices,
                 optimizer=optimizer or Adam, scheduler=lambda made: _Growing(made, rates), batch=1, stack=1,
                 shuffle=False, seed=seed, callback=note)
    except FloatingPointError:
        pass  # a rate is too large by far: the curve ends before it
    finally:
        data.close()
    while smooth and not isfinite(smooth[-1]):
        smooth.pop()
    if len(smooth) < 5:
        raise ValueError(f"find_lr: {len(smooth)} losses were finite, from the rate {rates[0]:.3g} on, and at least 5 "
                         f"are required; give a lower lowest, or look at the loss.")
    losses = np.array(smooth)
    return LRCurve(rates[: len(losses)], losses, float(rates[int(np.argmin(losses))]) / 10)


class _Growing:
    """A schedule that gives an optimizer the rates of a list, one after the other."""

    def __init__(self, optimizer: Optimizer, rates: Array) -> None:
        self._optimizer, self._rates = optimizer, iter(rates.tolist())
        self.step()

    def step(self) -> None:
        self._optimizer.lr = next(self._rates, self._optimizer.lr)
