"""The elastic training loop: trains a model on the devices of a world, and goes on when one of them fails.

Between two steps a training is a checkpoint file and a place in the data.  When a device fails, another takes over its
part of the model, everything is loaded from the file, and the steps since then are done again:

    step       0  1  2  [save]  3  4  x          cpu:1 fails in step 5
    recovery                  load, on cpu and cpu:2
    step                        3  4  5  6 ...   with the bits of an undisturbed training

Knows models by how they are called, an optimizer and a world; neither how replicas compute nor what a checkpoint holds.
Users call it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ag.autograd.tape import backward, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.data.dataloader import Batch
from ag.engine.device import ag_default_device, ag_device
from ag.engine.shape import counts
from ag.errors import CommError, DeviceError
from ag.io.checkpoint import Stateful, ag_load_checkpoint, ag_save_checkpoint
from ag.io.safetensors_file import check_writable
from ag.nn.layer import state_of
from ag.optim.adam import Adam
from ag.optim.optimizer import Optimizer
from ag.parallel.comm.failed_devices import failed_among
from ag.parallel.comm.scatter import moved
from ag.parallel.comm.tree import Tree
from ag.parallel.elastic.recovery import evacuate, is_timeout, substitutes
from ag.parallel.elastic.world import DistributedWorld
from ag.parallel.sharded.pipeline import Pipeline

__all__ = ["train_distributed"]

LossFn = Callable[[Any, Any], Tensor]  # (output, targets) -> loss

log = logging.getLogger("ag")


def train_distributed(model: Any, data: Iterable[Tree], world: DistributedWorld,
                      loss_fn: LossFn | None = None, optimizer: Optimizer | None = None,
                      epochs: int = 1, checkpoint: str | os.PathLike[str] | None = None,
                      checkpoint_every: int | None = None, max_restarts: int = 3, resume: bool = False) -> list[float]:
    """Train a model that is spread over the devices of a world.

    Parameters
    ----------
    model : DataParallel, ModelParallel, Pipeline, or any layer
    data : iterable of Batch, or of pairs of input and targets
        Such as `ag_dataloader`; passed through once per epoch.
    world : DistributedWorld
        Waited for at the end of every epoch.
    loss_fn : callable, optional
        ``loss_fn(output, targets)``: the mean loss.  Default: the model is called with input and targets and returns
        its loss.
    optimizer : Optimizer, optional
        Of the model's parameters; default: Adam.
    epochs : int, optional
    checkpoint : path, optional
        File to write the job's state to: at the start, at the end, and as `checkpoint_every` says.  With it, the job
        goes on by itself when a device fails.
    checkpoint_every : int, optional
        After how many steps; default: after every epoch.
    max_restarts : int, optional
        How many failures are too many after which the job goes on.
    resume : bool, optional
        Go on from `checkpoint` if that file exists; `epochs` counts those done before, too.

    Returns
    -------
    list of float
        The loss of every step.

    Raises
    ------
    ValueError
        If there is no batch, a `Pipeline` comes without `loss_fn`, or an argument is out of range.
    DeviceError
        If a device fails and there is no checkpoint, no device is left, or it is one failure too many.
    CommError
        Likewise, where a replica fails; or if a replica fails for another reason than its device.
    CheckpointError
        If `checkpoint` cannot be read or belongs to another job.

    Notes
    -----
    When a device fails, those that are left take over: every replica, stage or layer that was on it goes to the one
    that has least to do, the state of the last checkpoint is loaded, and the steps since then are done again.  The
    model and its parameters are the same objects as before, and ``world.devices`` names the devices that work now.  A
    log message says so once.

    Replicas are as many as before and get the same samples, so a restarted job ends with the weights and losses of an
    undisturbed one, on like devices to the bit.  The exception is models that draw random numbers, as devices draw
    from streams of their own.  A failed device is one that cannot compute any more; that a replica did not come in time
    is a failure, too.  Any other error is raised at once.

    References
    ----------
    ML Odyssey ``train_distributed``.

    Examples
    --------
    >>> import ag
    >>> world = ag.DistributedWorld.init(devices=["cpu", "cpu:1"])
    >>> model = ag.DataParallel(ag.ag_linear(2, 1), world.devices)
    >>> data = [(ag.ag_tensor([[1.0, 2.0], [3.0, 4.0]]), ag.ag_tensor([[1.0, 0.0]]))]
    >>> losses = ag.train_distributed(model, data, world, ag.ag_mse_loss, epochs=20)
    >>> losses[-1] < losses[0]
    True
    """
    if isinstance(model, Pipeline) and loss_fn is None:
        raise ValueError("train_distributed: a Pipeline needs loss_fn, as its last stage gets no targets.")
    if not counts(epochs, least=0) or isinstance(epochs, bool):
        raise ValueError(f"train_distributed: epochs is {epochs!r}; a whole number of at least 0 is required.")
    optimizer = Adam(model.parameters()) if optimizer is None else optimizer
    if checkpoint is None:
        if resume or checkpoint_every is not None:
            raise ValueError("train_distributed: resume or checkpoint_every was given without checkpoint; name the "
                             "file.")
        return _Loop(model, data, world, loss_fn, optimizer, epochs).run()
    for name, value, least in (("checkpoint_every", checkpoint_every, 1), ("max_restarts", max_restarts, 0)):
        if value is not None and not counts(value, least=least):
            raise ValueError(f"train_distributed: {name} is {value!r}; a whole number of at least {least} is required.")
    if isinstance(data, Iterator):
        raise ValueError(f"train_distributed: data is a {type(data).__name__}, which cannot go back to a checkpoint; "
                         f"give a list or an ag_dataloader.")
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"train_distributed: checkpoint was given with a {type(optimizer).__name__}, whose state "
                         f"cannot go to another device; use an ordinary optimizer.")
    check_writable(checkpoint, "train_distributed")
    loop = _SavedLoop(model, data, world, loss_fn, optimizer, epochs, Path(checkpoint), checkpoint_every, max_restarts)
    with ag_device(ag_default_device()):
        loop.begin(resume)
        while True:
            try:
                return loop.run()
            except (DeviceError, CommError) as error:
                loop.recover(error)


class _Loop:
    """The training loop, and its place in the data."""

    def __init__(self, model: Any, data: Iterable[Tree], world: DistributedWorld,
                 loss_fn: LossFn | None, optimizer: Optimizer, epochs: int) -> None:
        self.model, self.data, self.world, self.loss_fn = model, data, world, loss_fn
        self.optimizer, self.epochs = optimizer, epochs
        self.epoch = self.batch = 0  # epochs done, and batches done of the next one
        self.losses: list[Tensor | float] = []

    def run(self) -> list[float]:
        """Train to the end; the loss of every step."""
        while self.epoch < self.epochs:
            for batch in self._rest_of_epoch():
                x, y = (batch.x, batch.y) if isinstance(batch, Batch) else batch
                self.optimizer.zero_grad()
                loss = _step(self.model, x, y, self.loss_fn)
                self.optimizer.step()
                self.losses.append(loss)
                self.batch += 1
                self.after_step()
            if not self.losses:
                raise ValueError("train_distributed: data has no batch; give at least one.")
            self.world.barrier()
            self.epoch, self.batch = self.epoch + 1, 0
            self.after_epoch()
        return self.losses_so_far()

    def _rest_of_epoch(self) -> Iterator[Tree]:
        """The batches that are left; a loader knows its place itself."""
        return iter(self.data) if hasattr(self.data, "load_state_dict") else islice(self.data, self.batch, None)

    def losses_so_far(self) -> list[float]:
        """Losses as numbers; waits for the devices."""
        numbers = [loss.item() if isinstance(loss, Tensor) else loss for loss in self.losses]
        self.losses = list(numbers)
        return numbers

    def after_step(self) -> None:
        """Called between two steps."""

    def after_epoch(self) -> None:
        """Called between two epochs."""


class _SavedLoop(_Loop):
    """A training loop with a checkpoint to go back to."""

    def __init__(self, model: Any, data: Iterable[Tree], world: DistributedWorld,
                 loss_fn: LossFn | None, optimizer: Optimizer, epochs: int, path: Path,
                 every: int | None, restarts: int) -> None:
        super().__init__(model, data, world, loss_fn, optimizer, epochs)
        self._path, self._every, self._restarts = path, every, restarts
        self._loader = data if isinstance(data, Stateful) else None
        self._saved = 0  # the step of the checkpoint
        self._failed = False  # whether to load the checkpoint first

    def begin(self, resume: bool) -> None:
        """Load the checkpoint that is there, or write a first one."""
        check_writable(self._path, "train_distributed")
        self._load() if resume and self._path.exists() else self._save()

    def run(self) -> list[float]:
        if self._failed:
            self._load()
        return super().run()

    def after_step(self) -> None:
        if self._every is not None and len(self.losses) % self._every == 0:
            self._save()

    def after_epoch(self) -> None:
        if self._every is None or self.epoch == self.epochs:
            self._save()

    def _save(self) -> None:
        extra = {"epoch": self.epoch, "batch": self.batch, "losses": self.losses_so_far()}
        ag_save_checkpoint(self._path, self.model, self.optimizer, dataloader=self._loader, step=len(self.losses),
                           extra=extra)
        self._saved = len(self.losses)

    def _load(self) -> None:
        checkpoint = ag_load_checkpoint(self._path, self.model, self.optimizer, dataloader=self._loader)
        self.epoch, self.batch = checkpoint.extra["epoch"], checkpoint.extra["batch"]
        self.losses = list(checkpoint.extra["losses"])
        self._saved, self._failed = checkpoint.step, False

    def recover(self, error: DeviceError | CommError) -> None:
        """Prepare `run` to go on from the checkpoint on devices that work, or raise where that is not possible."""
        step, before = len(self.losses), self.world.devices
        failed = failed_among([*before, *(x.device for x in state_of(self.model).values()), ag_default_device()])
        if not failed and not is_timeout(error):
            raise error
        what = f"{', '.join(failed)} failed" if failed else "a replica did not answer"
        advice = f"mend what failed and go on from {self._path} with resume=True"
        if set(before) <= set(failed):
            raise DeviceError(f"train_distributed: {what} in step {step} and no device is left; {advice}.") from error
        if not self._restarts:
            raise DeviceError(f"train_distributed: {what} in step {step} and max_restarts are used up; {advice}."
                              ) from error
        self._restarts -= 1
        instead = substitutes(before, failed)
        self.world.devices = tuple(instead.get(device, device) for device in before)
        ag_device(instead.get(ag_default_device(), ag_default_device()))
        evacuate(self.model, self.optimizer, instead)
        self._failed = True
        log.warning("train_distributed: %s in step %d (%s); going on from step %d on %s.", what, step, error,
                    self._saved, ", ".join(dict.fromkeys(self.world.devices)))


def _step(model: Any, x: Tree, y: Tree, loss_fn: LossFn | None) -> Tensor:
    """The loss of a batch; gradients are added to the parameters."""
    if isinstance(model, Pipeline) and loss_fn is not None:
        return model.step(x, y, loss_fn)
    with with_grad_tape():
        if loss_fn is None:
            loss: Tensor = model(x, y)
        else:
            out = model(x)
            loss = loss_fn(out, moved(y, out.device) if isinstance(out, Tensor) else y)
    backward(loss)
    return loss
