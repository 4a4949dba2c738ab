"""Start: `dp_train` under the names of ResNetImageNet.jl, for samples that are pairs of input and target.

Knows nothing of devices or replicas but how many there are; `dp_train` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from ag.autograd.tensor import Tensor
from ag.engine.devices import default_devices
from ag.optim.optimizer import Optimizer
from ag.parallel.trainer.dp_train import DPResult, dp_train

__all__ = ["start"]


def start(loss: Callable[[Tensor, Any], Tensor], data: Sequence[Any], model_fn: Callable[[], Any],
          workers: int | None = None, *, cycles: int = 1, batchsize: int = 48, nsamples: int | None = None,
          opt: Callable[[dict[str, Tensor]], Optimizer] | None = None, verbose: bool = False,
          devices: Sequence[str] | None = None, **options: Any) -> DPResult:
    """Train a model on several devices, as many cycles through its samples as asked for.

    Parameters
    ----------
    loss : callable
        ``loss(output, target)``: a loss of one element.
    data : sequence of pairs
        ``(input, target)`` of each sample, tensors or arrays.
    model_fn : callable
        Returns a new model.
    workers : int, optional
        Number of replicas; default: one per Vulkan device, at least one.
    cycles : int, optional
        How often each worker takes `nsamples` samples.
    batchsize : int, optional
        Samples per worker and step.
    nsamples : int, optional
        Samples per worker and cycle; default: its share of `data`, so that a cycle is a pass through all.
    opt : callable, optional
        ``opt(params)``: the optimizer; default: Adam.
    verbose : bool, optional
        Print the loss of every step.
    devices : sequence of str, optional
        Device of every worker, instead of `workers`.
    **options : object
        Passed on to `dp_train`, such as ``seed``, ``lr``, ``shuffle`` or ``checkpoint``.

    Returns
    -------
    DPResult

    Raises
    ------
    ValueError
        If there are no samples, or a number is out of range.

    Notes
    -----
    A step takes ``workers * batchsize`` samples; every pass has an order of its own, or that of `data` with
    ``shuffle=False``.  The original draws samples with replacement and has the workers step one optimizer each.

    References
    ----------
    ResNetImageNet.jl ``start``.

    Examples
    --------
    >>> import ag, numpy as np
    >>> data = [(np.ones((2, 1)), np.ones((1, 1))), (np.zeros((2, 1)), np.ones((1, 1)))]
    >>> done = ag.start(ag.ag_mse_loss, data, lambda: ag.ag_linear(2, 1), cycles=3, batchsize=1, devices=["cpu"] * 2)
    >>> len(done.loss_history)
    3
    """
    for name, value in (("cycles", cycles), ("batchsize", batchsize), ("nsamples", nsamples), ("workers", workers)):
        if value is not None and value < 1:
            raise ValueError(f"start: {name} is {value}; it must be at least 1.")
    if not len(data):
        raise ValueError("start: data is empty; give at least one (input, target) pair.")
    count = len(devices) if devices is not None else workers or len(default_devices())
    if nsamples is None:
        each = min(batchsize, -(-len(data) // max(1, count)))
        steps = cycles * -(-len(data) // (each * max(1, count)))
    else:
        each, steps = min(batchsize, nsamples), cycles * -(-nsamples // batchsize)
    return dp_train(model_fn, data, loss, lambda model, sample: model.forward(sample[0]), itemgetter(1), workers, steps,
                    verbose=verbose, devices=devices, optimizer=opt, micro_batch=each, **options)
