"""Steps that several ranks make together, for `train_distributed`.

Each rank computes the gradients of its share of a batch.  Times samples they are added up over the ranks, and divided
once, so every sample counts the same.  Ranks first tell each other their place in the data, and faults since the last
step.  A step counts for all of them or for none (`ag.parallel.comm.comm.Member`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree, tree_leaves
from ag.engine.device import ag_default_device, backend_of
from ag.engine.primitive import Array
from ag.engine.random import generator_snapshot, set_stream
from ag.errors import CheckpointError, CommError, ShapeError
from ag.io.safetensors_file import elements_of
from ag.nn.layer import Model, buffers_of, load_into, state_of
from ag.nn.mode import objects_in
from ag.parallel.comm.comm import Comm, Json, Member, everyone, this_process
from ag.parallel.comm.tensor_collectives import cut, sizes_along, syncgrads
from ag.parallel.comm.tree_reduction import shard_sizes
from ag.parallel.elastic.world import DistributedWorld
from ag.parallel.replicas.compression import CompressedDataParallel
from ag.parallel.replicas.data_parallel import DataParallel
from ag.parallel.replicas.sync_batch_norm import SyncBatchNorm
from ag.version import __version__


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
        """Return this rank's share of a batch that all ranks have."""
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
