"""Start: `dp_train` under the names of ResNetImageNet.jl, for samples that are pairs of input and target.

Knows nothing of devices or replicas but how many there are, on this rank and all others; `dp_train` does the work.
Users call it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from ag.autograd.tensor import Tensor
from ag.data.dataloader import DataLoader
from ag.engine.device import default_devices
from ag.optim.optimizer import Optimizer
from ag.parallel.comm.comm import Comm, HasComm
from ag.parallel.trainer.dp_train import DPResult, dp_train
from ag.parallel.trainer.ranks import Ranks

__all__ = ["start"]


def start(loss: Callable[[Tensor, Any], Tensor], data: Sequence[Any] | DataLoader, model_fn: Callable[[], Any],
          workers: int | None = None, *, cycles: int = 1, batchsize: int = 48, nsamples: int | None = None,
          opt: Callable[[dict[str, Tensor]], Optimizer] | None = None, verbose: bool = False,
          devices: Sequence[str] | None = None, world: Comm | HasComm | None = None, **options: Any) -> DPResult:
    """Train a model on several devices, as many cycles through its samples as asked for.

    Parameters
    ----------
    loss : callable
        ``loss(output, target)``: a loss of one element, the mean over the samples it is given.
    data : sequence of pairs, `ag_dataloader` or `ag_image_folder`
        ``(input, target)`` of each sample, tensors or arrays; or a loader of inputs and targets, whose own batch size
        does not count.
    model_fn : callable
        Returns a new model.
    workers : int, optional
        Number of replicas, on this rank; default: one per Vulkan device, at least one.
    cycles : int, optional
        How often each worker takes `nsamples` samples.
    batchsize : int, optional
        Samples per worker and step, which are passed at once where they are alike.
    nsamples : int, optional
        Samples per worker and cycle; default: its share of `data`, so that a cycle is a pass through all.
    opt : callable, optional
        ``opt(params)``: the optimizer; default: Adam.
    verbose : bool, optional
        Print the loss of every step.
    devices : sequence of str, optional
        Device of every worker, instead of `workers`; default: those of `world`, if it has some.
    world : communicator, or something that has one as ``comm``, optional
        This rank's place among others that make the same call.  The workers of all ranks share the samples, so a cycle
        is a pass through all whatever their number.
    **options : object
        Passed on to `dp_train`, such as ``seed``, ``lr``, ``shuffle``, ``stack`` or ``checkpoint``.

    Returns
    -------
    DPResult

    Raises
    ------
    ValueError
        If there are no samples, or a number is out of range.
    CommError
        If ranks have different numbers of samples, or another one fails.

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
    samples = data.n_samples if isinstance(data, DataLoader) else len(data)
    if not samples:
        raise ValueError("start: data is empty; give at least one (input, target) pair.")
    if devices is None and workers is None:
        devices = getattr(world, "devices", None)
    mine = len(devices) if devices is not None else workers or len(default_devices())
    with Ranks(world) as ranks:
        count = max(1, sum(ranks.gather(mine)))
        ranks.finish()
    if nsamples is None:
        each = min(batchsize, -(-samples // count))
        step = options.get("batch") or each * count * options.get("accumulate", 1)
        steps = cycles * -(-samples // step)
    else:
        each, steps = min(batchsize, nsamples), cycles * -(-nsamples // batchsize)
    return dp_train(model_fn, data, loss, lambda model, sample: model.forward(sample[0]), itemgetter(1), workers, steps,
                    verbose=verbose, devices=devices, optimizer=opt, micro_batch=each, world=world, **options)
