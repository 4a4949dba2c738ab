"""`train_distributed`: trains a model on the devices of a world, and goes on when a device or a rank is lost.

Between two steps a training is a checkpoint file and a place in the data.  Ranks tell each other their place in the
data and faults before each step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import islice
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.tape import backward, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree, tree_leaves
from ag.data.dataloader import Batch, DataLoader
from ag.engine.device import ag_default_device, ag_device, backend_of, same_default
from ag.engine.primitive import Array
from ag.engine.random import generator_snapshot, set_stream
from ag.engine.shape import counts
from ag.errors import CheckpointError, CommError, DeviceError, RankLostError, ShapeError
from ag.io.checkpoint import Stateful, ag_load_checkpoint, ag_save_checkpoint
from ag.io.safetensors_file import check_writable, elements_of
from ag.log import log
from ag.nn.layer import Layer, Model, buffers_of, load_into, state_of
from ag.nn.mode import objects_in
from ag.optim.optimizer import Adam, Optimizer
from ag.parallel.comm.comm import Comm, Json, Member, everyone, this_process
from ag.parallel.comm.device_threads import failed_among
from ag.parallel.comm.tensor_collectives import cut, moved, sizes_along, syncgrads
from ag.parallel.comm.tree_reduction import shard_sizes
from ag.parallel.elastic.world import DistributedWorld
from ag.parallel.replicas.compression import CompressedDataParallel
from ag.parallel.replicas.data_parallel import DataParallel, SyncBatchNorm
from ag.parallel.sharded.pipeline import ModelParallel, Pipeline
from ag.version import __version__

LossFn = Callable[[Any, Any], Tensor]  # (output, targets) -> loss


def train_distributed(model: Any, data: Iterable[Tree], world: DistributedWorld,
                      loss_fn: LossFn | None = None, optimizer: Optimizer | None = None,
                      epochs: int = 1, checkpoint: str | os.PathLike[str] | None = None,
                      checkpoint_every: int | None = None, max_restarts: int = 3, resume: bool = False) -> list[float]:
    """Train a model that is spread over the devices of a world.

    docs/parallel.md says what ranks share, and how the job goes on without a device or a rank.
    Reference: ML Odyssey ``train_distributed``.

    Parameters
    ----------
    model : DataParallel, ModelParallel, Pipeline, or any layer
    data : iterable of Batch, or of pairs of input and targets
        Such as `ag_dataloader`; passed through once per epoch, so a generator is for one epoch.  All ranks give the
        same data, of which each takes its share of every batch.
    world : DistributedWorld
        After a loss it has the devices and ranks that are left.
    loss_fn : callable, optional
        ``loss_fn(output, targets)``: the mean loss.  Default: the model takes input and targets and returns its loss.
    optimizer : Optimizer, optional
        Of the model's parameters; default: Adam.
    epochs : int, optional
    checkpoint, checkpoint_every : path and int, optional
        File for the job's state, written at the start, at the end, and after so many steps, or each epoch.  With it,
        the job goes on when a device fails or a rank is lost.
    max_restarts : int, optional
        After how many failures the job goes on.
    resume : bool, optional
        Go on from `checkpoint` if that file exists; `epochs` counts those done before, too.

    Returns
    -------
    list of float
        The loss of every step, of all ranks' samples.

    Raises
    ------
    ValueError
        If there is no batch, `loss_fn` is missing where the model takes no targets, or an argument is out of range.
    FloatingPointError
        If a loss is not finite; weights are those before the step.
    DeviceError, CommError
        If a device, replica or rank fails and there is no checkpoint, too little is left, or it is one failure too
        many; if ranks were given different models, data or arguments; a replica's error of another kind.
    CheckpointError
        If `checkpoint` cannot be read or belongs to another job.

    Notes
    -----
    When a device fails, or a replica does not come in time, each replica, stage or layer that was on it goes to the
    device that has least to do, and the steps since the last checkpoint are done again.  The model and its parameters
    stay the same objects; ``world.devices`` names the devices that work now.  The job ends with the weights and losses
    of an undisturbed one, on like devices to the bit, unless the model draws random numbers.

    With several ranks all make the same call, each with devices of its own.  When a rank is lost, the others take its
    share over, if they are more than half of the ranks, or half of them with the lowest.  Results then differ by
    rounding.  After the loss of rank 0 the next one reads the file, so it must be in a folder that all hosts share.

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
    if isinstance(data, Iterator) and (epochs > 1 or checkpoint is not None):
        what = f"epochs is {epochs}" if checkpoint is None else "there is a checkpoint to go back to"
        raise ValueError(f"train_distributed: data is a {type(data).__name__}, which can be passed through once, and "
                         f"{what}; give a list or an ag_dataloader.")
    if loss_fn is None and not _takes_targets(model):
        raise ValueError(f"train_distributed: loss_fn was not given, and {type(model).__name__} takes no targets; give "
                         f"loss_fn, such as ag.ops.mse_loss, or a model whose forward(x, y) returns its loss.")
    optimizer = Adam(model.parameters()) if optimizer is None else optimizer
    if world.size > 1 and not isinstance(optimizer, Optimizer):
        raise ValueError(f"train_distributed: there are {world.size} ranks and the optimizer is a "
                         f"{type(optimizer).__name__}, which divides its state among the devices of one process; use "
                         f"an ordinary optimizer.")
    if checkpoint is None and (resume or checkpoint_every is not None):
        raise ValueError("train_distributed: resume or checkpoint_every was given without checkpoint; name the file.")
    for name, value, least in (("checkpoint_every", checkpoint_every, 1), ("max_restarts", max_restarts, 0)):
        if value is not None and not counts(value, least=least):
            raise ValueError(f"train_distributed: {name} is {value!r}; a whole number of at least {least} is required.")
    if checkpoint is not None and not isinstance(optimizer, Optimizer):
        raise ValueError(f"train_distributed: checkpoint was given with a {type(optimizer).__name__}, whose state "
                         f"cannot go to another device; use an ordinary optimizer.")
    path = None if checkpoint is None else Path(os.path.abspath(checkpoint))  # the program may change its folder
    loop = _Loop(model, data, world, loss_fn, optimizer, epochs, path, checkpoint_every, max_restarts, resume)
    with same_default(), loop.ranks or nullcontext():
        loop.begin()
        while True:
            try:
                return loop.run()
            except (DeviceError, CommError) as error:
                loop.recover(error)


@dataclass(eq=False)
class _Loop:
    """The training loop, its place in the data, and the checkpoint to go back to, if there is one."""

    model: Any
    data: Iterable[Tree]
    world: DistributedWorld
    loss_fn: LossFn | None
    optimizer: Optimizer
    epochs: int
    path: Path | None
    every: int | None
    restarts: int
    resume: bool

    def __post_init__(self) -> None:
        self.epoch = self.batch = 0  # epochs done, and batches done of the next one
        self.losses: list[float] = []
        self.ranks = RankSteps(self.world, self.model) if self.world.size > 1 else None
        self._loader: Any = self.data if isinstance(self.data, Stateful) else None  # on several ranks, this one's share
        self._saved = 0  # the step of the checkpoint
        self._failed = False  # whether to load the checkpoint first

    def begin(self) -> None:
        """Let all ranks begin alike: from the checkpoint that is there, or from a first one of rank 0."""
        if self.ranks is not None:
            self._meet()
        elif self.path is None:
            return
        with TemporaryDirectory() as folder:
            path, goes_on = self.path or Path(folder) / "state", False
            if self._is_first():
                check_writable(path, "train_distributed")
                goes_on = self.resume and path.exists()
                if not goes_on:
                    self._write(path)
            if self.ranks is not None or goes_on:
                self._load(path)

    def _meet(self) -> None:
        """Compare the arguments of all ranks; take a share of the loader, with the seed of rank 0."""
        assert self.ranks is not None
        data = f"a {type(self.data).__name__}"
        if isinstance(self.data, DataLoader):
            data += (f" of {self.data.n_samples} samples, batch_size={self.data.batch_size}, "
                     f"shuffle={self.data.shuffle}, drop_last={self.data.drop_last}")
        self.ranks.meet([("epochs", self.epochs), ("the optimizer", repr(self.optimizer)), ("data", data),
                         ("checkpoint_every", self.every), ("max_restarts", self.restarts), ("resume", self.resume)])
        if isinstance(self.data, DataLoader):
            state, *_ = self.ranks.exchange(self.data.state_dict())
            self.data.load_state_dict(state)
            self._take_share()

    def _take_share(self) -> None:
        if self.ranks is not None and isinstance(self.data, DataLoader):
            self._loader = self.data.share(self.ranks.rank, self.ranks.size)

    def _is_first(self) -> bool:
        return self.ranks is None or self.ranks.rank == 0

    def run(self) -> list[float]:
        """Train to the end; return the loss of every step."""
        if self._failed and self.path is not None:
            self._load(self.path)
        while self.epoch < self.epochs:
            for batch in self._rest_of_epoch():
                x, y = (batch.x, batch.y) if isinstance(batch, Batch) else batch
                self.optimizer.zero_grad()
                loss = self._finite(self._loss_of(x, y))
                self.optimizer.step()
                self.losses.append(loss)
                self.batch += 1
                if self.every is not None and len(self.losses) % self.every == 0:
                    self._save()
            if not self.batch:
                raise ValueError(f"train_distributed: data has no batch in epoch {self.epoch}; give at least one, in "
                                 f"every epoch.")
            if self.ranks is None:
                self.world.barrier()
            self.epoch, self.batch = self.epoch + 1, 0
            if self.every is None or self.epoch == self.epochs:
                self._save()
        if self.ranks is not None:
            self.ranks.exchange()  # none is lost before all have come here, nor has failed to save
            self.ranks.finish()
            if isinstance(self.data, DataLoader) and isinstance(self._loader, DataLoader):
                self.data.load_state_dict(self._loader.state_dict())
        return [*self.losses]

    def _rest_of_epoch(self) -> Iterator[Tree]:
        """Return the batches that are left; a loader keeps its own place."""
        if isinstance(self._loader, DataLoader):
            return iter(self._loader)
        return iter(self.data) if self._loader is not None else islice(self.data, self.batch, None)

    def _loss_of(self, x: Tree, y: Tree) -> Tensor | float:
        """Add the gradients of a batch to the parameters; return its loss."""
        if self.ranks is None:
            return _loss_and_gradients(self.model, x, y, self.loss_fn)
        self.ranks.place = "in", len(self.losses)
        whole = None if isinstance(self.data, DataLoader) else (x, y)
        mine, targets = (x, y) if whole is None else self.ranks.share(whole)
        return self.ranks.step((mine, targets), (self.epoch, self.batch), whole,
                               lambda: _loss_and_gradients(self.model, mine, targets, self.loss_fn))

    def _finite(self, loss: Tensor | float) -> float:
        """Wait for the loss of a step, which is that of all ranks; return it as a number."""
        value = loss.item() if isinstance(loss, Tensor) else loss
        if not isfinite(value):
            if self.ranks is not None:
                self.ranks.finish()
            raise FloatingPointError(f"train_distributed: the loss of step {len(self.losses)} is {value}; weights are "
                                     f"as before the step. Lower the optimizer's lr, or look for such numbers in the "
                                     f"data.")
        return float(value)

    def _save(self) -> None:
        if self.path is None:
            return
        if self.ranks is not None:
            self.ranks.gather_residuals()
        if self._is_first():
            self._write(self.path)
        self._saved = len(self.losses)

    def _write(self, path: Path) -> None:
        extra = {"epoch": self.epoch, "batch": self.batch, "losses": self.losses}
        ag_save_checkpoint(path, self.model, self.optimizer, dataloader=self._loader, step=len(self.losses),
                           extra=extra)

    def _load(self, path: Path) -> None:
        with nullcontext(path) if self.ranks is None else self.ranks.state(path) as file:
            checkpoint = ag_load_checkpoint(file, self.model, self.optimizer, dataloader=self._loader)
        extra = checkpoint.extra if isinstance(checkpoint.extra, dict) else {}
        losses = extra.get("losses")
        if not (counts(extra.get("epoch"), extra.get("batch"), least=0) and isinstance(losses, list)
                and all(type(x) is float for x in losses) and len(losses) == checkpoint.step):
            raise CheckpointError(f"train_distributed: {path} lacks the epoch, batch and losses of a checkpoint "
                                  f"of train_distributed, or has others than numbers; name another file.")
        if self._failed and self.ranks is not None:
            known = min(len(losses), len(self.losses))
            if not np.array_equal(losses[:known], self.losses[:known]):
                raise CheckpointError(f"train_distributed: {path} on host {self.world.host} is of another job; "
                                      f"name a file in a folder that all hosts share.")
        self.epoch, self.batch, self.losses = extra["epoch"], extra["batch"], losses
        self._saved, self._failed = checkpoint.step, False
        if self.ranks is not None:
            self.restarts = min(self.ranks.exchange(self.restarts))  # a rank may have seen two losses as one

    def recover(self, error: DeviceError | CommError) -> None:
        """Prepare `run` to go on from the checkpoint on devices that work, or raise."""
        if self.path is None and isinstance(error, RankLostError):
            raise CommError(f"{str(error).rstrip('.')}; give checkpoint, so that those who are left go on.") from error
        if self.path is None or (self.ranks is not None and self.ranks.over):
            raise error
        step, before = len(self.losses), self.world.devices
        failed = failed_among([*before, *(x.device for x in state_of(self.model).values()), ag_default_device()])
        told = isinstance(error, (RankLostError, OtherRankError))  # to all ranks
        if not failed and not told and not _is_timeout(error):
            raise error
        what = f"{', '.join(failed)} failed" if failed else "a replica did not answer"
        is_left = not set(before) <= set(failed)
        if self.ranks is not None and (failed or not told):
            self.ranks.tell(what, ends=False, leaves=not is_left)
        if told and not failed:
            what = "a rank was lost" if isinstance(error, RankLostError) else "another rank failed"
        advice = f"mend what failed and go on from {self.path} with resume=True"
        if not is_left:
            raise DeviceError(f"train_distributed: {what} in step {step} and no device is left; {advice}.") from error
        if not self.restarts:
            if self.ranks is not None:
                self.ranks.finish()
            raise DeviceError(f"train_distributed: {what} in step {step} and max_restarts are used up; {advice}."
                              ) from error
        self.restarts -= 1
        if failed:
            instead = _substitutes(before, failed)
            self.world.devices = tuple(instead.get(device, device) for device in before)
            ag_device(instead.get(ag_default_device(), ag_default_device()))
            _evacuate(self.model, self.optimizer, instead)
        self._take_share()
        self._failed = True
        if failed or not told:
            log.warning("train_distributed: %s in step %d (%s); going on from step %d on %s.", what, step, error,
                        self._saved, ", ".join(dict.fromkeys(self.world.devices)))
        elif self._is_first():
            log.warning("%s; going on from step %d on %d ranks.", str(error).rstrip("."), self._saved, self.world.size)


def _takes_targets(model: Any) -> bool:
    inner = getattr(model, "module", model)  # of a DataParallel
    first = inner.layers[0] if isinstance(inner, ModelParallel) else inner
    try:
        signature(getattr(first, "forward", first)).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # written in C
        return True
    return True


def _loss_and_gradients(model: Any, x: Tree, y: Tree, loss_fn: LossFn | None) -> Tensor:
    """Add the gradients of a batch to the parameters; return its loss.  A pipeline makes the step itself."""
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


def _is_timeout(error: BaseException) -> bool:
    """Return whether a replica did not answer in time, rather than raise an error of its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, CommError)


def _substitutes(devices: tuple[str, ...], failed: list[str]) -> dict[str, str]:
    """Choose for each failed device the working one that has least to do, with what it has taken over."""
    serving = [device for device in devices if device not in failed]
    working = list(dict.fromkeys(serving))
    instead: dict[str, str] = {}
    for device in failed:
        instead[device] = min(working, key=serving.count)
        serving.append(instead[device])
    return instead


def _evacuate(model: Model, optimizer: Optimizer, instead: Mapping[str, str]) -> None:
    """Move a model and its optimizer off failed devices.  Values are lost: a lost device does not return them."""
    for device in instead:
        backend_of(device).generators.clear()  # snapshots leave it out
    for x in state_of(model).values():
        x.grad = None
        if x.device in instead:
            x.rebind(backend_of(instead[x.device]).zeros(x.shape, x.buffer.dtype))
    optimizer.follow()
    for part in objects_in(model):
        if isinstance(part, Layer):
            part.replace_devices(instead)


class OtherRankError(CommError):
    """Raised where a device of another rank failed: all ranks go back to the last checkpoint."""


class RankSteps(Member):
    """A rank's place among those that make steps together; the communicator of `world` follows that of those left."""

    who = "train_distributed"
    advice = "mend that and start again, with resume=True if there is a checkpoint."

    def __init__(self, world: DistributedWorld, model: Model) -> None:
        if any(isinstance(part, SyncBatchNorm) for part in objects_in(model)):
            raise ValueError(f"train_distributed: there are {world.size} ranks and the model has a SyncBatchNorm, "
                             f"which knows the replicas of one process; use ag_batch_norm, or one process.")
        super().__init__(world.comm, world.min_ranks)
        self._world, self._model = world, model
        self._dim = model.dim if isinstance(model, DataParallel) else -1

    def _tell_error(self, error: str) -> None:
        self.tell(error, ends=True)

    def tell(self, fault: str, ends: bool, leaves: bool = False) -> None:
        """Tell the others in their next call what went wrong here; with `leaves` this rank then leaves the group."""
        message = {"fault": fault, "ends": ends, "leaves": leaves}
        with suppress(CommError):
            self._at_last(partial(self._told, message))

    def _has_shrunk(self) -> bool:
        self._world.join(self.comm)
        return True

    def _told(self, message: Mapping[str, Json],
              more: Callable[[Comm, list[Json]], object] | None = None) -> list[Json]:
        """Return the values of all ranks; or only what `more` makes of them, in the same agreement."""
        found: list[Json] = []

        def call(comm: Comm) -> list[Mapping[str, Json]]:
            messages: list[Mapping[str, Json]] = everyone(comm, message)
            if more is not None and not any("fault" in theirs for theirs in messages):
                found[:] = [more(comm, [theirs["value"] for theirs in messages])]
            return messages

        messages = self._agreed(call)
        faults = {rank: theirs for rank, theirs in enumerate(messages) if "fault" in theirs}
        if not faults:
            return [theirs["value"] for theirs in messages] if more is None else found
        hosts, me = self.comm.hosts, self.rank
        ends = any(theirs["ends"] for theirs in faults.values())
        self.over |= ends
        if any(theirs["leaves"] for theirs in faults.values()) and not ends:
            self._part(not faults.get(me, {}).get("leaves", False))
        said = "; ".join(f"rank {rank} ({hosts[rank]}) failed {self.where} ({theirs['fault'].rstrip('.')})"
                         for rank, theirs in faults.items())
        raise (CommError if ends else OtherRankError)(f"train_distributed: {said}.")

    def _part(self, stays: bool) -> None:
        """Go on without ranks that have no devices any more."""
        self._at_last(partial(self._split, stays))
        self._world.join(self.comm)
        self.over |= not stays

    def exchange(self, value: Json = None) -> list[Json]:
        """Return the values of all ranks, in their order; a RankLostError or OtherRankError lets this one go on."""
        return self._told({"value": value})

    def meet(self, alike: Sequence[tuple[str, object]]) -> None:
        """Compare versions, arguments, models and devices of all ranks; a CommError names the first difference."""
        model, tensors = self._model, state_of(self._model)
        mine = [("the library's version", __version__), ("the model", type(model).__name__), *alike,
                *((f"tensor {name!r}", f"{x.shape} {x.dtype}") for name, x in tensors.items())]
        pairs = [(what, str(value)) for what, value in mine]
        used = sorted({*self._world.devices, *(x.device for x in tensors.values()), ag_default_device()})
        told = self.exchange([pairs, this_process(), used])
        self._compare([theirs for theirs, _, _ in told], "all ranks must be given the same")
        self._refuse_shared([(where, devices) for _, where, devices in told],
                            "give each rank devices of its own, and make its model and its batches inside "
                            "`with ag.ag_device` of one of them.")

    def gather_residuals(self) -> None:
        """Collect what the replicas of all ranks have not sent yet, before rank 0 saves; all ranks call."""
        if isinstance(self._model, CompressedDataParallel):
            mine = self._model.residual_rows()
            self._model.take_others(self._agreed(partial(Comm.all_gather, part=mine)))

    @contextmanager
    def state(self, path: Path) -> Iterator[Path]:
        """Yield a file like that of rank 0, to load; all ranks call."""
        with self._file_of_first(path) as file:
            if file is None:
                self.finish()
                raise CheckpointError(f"train_distributed: rank 0 ({self.comm.hosts[0]}) has no checkpoint at {path}; "
                                      f"name a file in a folder that all hosts share, and go on with resume=True.")
            if isinstance(self._model, CompressedDataParallel):
                counts = self.exchange(len(self._model.device_ids))
                self._model.join(sum(counts[: self.rank]), sum(counts))
            yield file
        if self.rank:
            stream = max(generator_snapshot()["streams"].values(), default=0)
            for device in self._world.devices:  # which rank 0 need not have: what was drawn there is not drawn again
                set_stream(backend_of(device), stream)

    def share(self, batch: Tree) -> Tree:
        sizes = sizes_along(batch, self._dim)
        if len(sizes) != 1:
            raise ShapeError(f"train_distributed: the sizes of a batch along dim {self._dim} are {sorted(sizes)}; one "
                             f"size is required, of which every rank gets its share.")
        parts = shard_sizes(sizes.pop(), [1.0] * self.size)
        start = sum(parts[: self.rank])
        return cut(batch, self._dim, slice(start, start + parts[self.rank]))

    def step(self, share: Tree, place: Sequence[int], batch: Tree, compute: Callable[[], Tensor]) -> float:
        """Make a step of all ranks, of which `compute` makes this rank's share; return the mean loss of all samples."""
        samples = max(sizes_along(share, self._dim), default=0)
        told = self.exchange([samples, [*place, _digest(batch)]])
        for rank, (_, theirs) in enumerate(told):
            if theirs != told[0][1]:
                self.finish()
                raise CommError(f"train_distributed: rank 0 is at {_named(told[0][1])}, and rank {rank} at "
                                f"{_named(theirs)}; all ranks must be given the same data, of which each takes its "
                                f"share.")
        total = sum(count for count, _ in told)
        if total == 0:
            self.finish()
            raise ShapeError("train_distributed: a batch has no samples; give at least one.")
        compressed = self._model if isinstance(self._model, CompressedDataParallel) else None
        with nullcontext() if compressed is None else compressed.sending(samples / total):
            loss = compute().item() if samples else 0.0
            messages = None if compressed is None else compressed.messages()
        gradients = self._sum(loss, samples, total, messages)
        for name, p in self._model.parameters().items():
            g = gradients[1].get(name)
            p.grad = None if g is None else _at(g, p)
        return gradients[0]

    def _sum(self, loss: float, samples: int, total: int,
             messages: Array | None) -> tuple[float, Mapping[str, Tensor | Array]]:
        """Return the loss and the gradients of all samples; give all ranks the buffers of rank 0."""
        mine = {name: p.grad for name, p in self._model.parameters().items() if p.grad is not None}

        def added(comm: Comm, told: list[Json]) -> tuple[float, Mapping[str, Tensor | Array]]:
            mean = float(sum(theirs[0] * theirs[1] for theirs in told if theirs[1]) / total)
            if isinstance(self._model, CompressedDataParallel) and messages is not None:
                ends = np.cumsum([theirs[2] for theirs in told])
                gradients: Mapping[str, Tensor | Array] = self._model.arrived(
                    np.split(comm.all_gather(messages), ends[:-1]))
            else:
                gradients = syncgrads([mine] if samples else [], [samples] if samples else [], comm)
            self._share_buffers(comm)
            return mean, gradients

        value = [loss, samples, 0 if messages is None else messages.size]
        found: tuple[float, Mapping[str, Tensor | Array]] = self._told({"value": value}, added)[0]
        return found

    def _share_buffers(self, comm: Comm) -> None:
        """Give all ranks the buffers of rank 0, as replicas follow the first one."""
        tensors = buffers_of(self._model)
        if not tensors:
            return
        arrays = {name: elements_of(x) for name, x in tensors.items()}
        content = np.concatenate([np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in arrays.values()])
        comm.broadcast(content)
        if comm.rank:
            ends = np.cumsum([x.nbytes for x in arrays.values()])
            load_into(tensors, {name: part.view(x.dtype).reshape(x.shape) for part, (name, x) in zip(
                np.split(content, ends[:-1]), arrays.items(), strict=True)}, strict=False)


def _at(g: Tensor | Array, p: Tensor) -> Tensor:
    """Return a gradient on the parameter's device, of the type that its gradients have."""
    kind = "f64" if p.dtype == "f64" else "f32"
    if isinstance(g, Tensor) and (g.device, g.dtype) == (p.device, kind):
        return g
    return ag_tensor(g.numpy() if isinstance(g, Tensor) else g, p.device, kind)


def _digest(batch: Tree) -> int:
    code = 0
    for x in tree_leaves(batch):
        array = np.ascontiguousarray(x.numpy() if isinstance(x, Tensor) else x)
        code = crc32(array.reshape(-1).view(np.uint8).data, crc32(repr((array.shape, array.dtype.str)).encode(), code))
    return code


def _named(place: Sequence[int]) -> str:
    epoch, batch, code = place
    return f"batch {batch} of epoch {epoch}" + (f" with checksum {code:08x}" if code else "")
