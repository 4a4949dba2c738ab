"""The ranks of a training: members of a group, each with its devices, that train one model with `dp_train`.

Each rank adds up one part of all nodes (reduce-scatter), then parts are put together (all-gather).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from ag.engine.primitive import Array
from ag.engine.random import ag_seed, current_seed
from ag.errors import CommError, RankLostError
from ag.parallel.comm.comm import Comm, Json, comm_of, everyone
from ag.parallel.comm.membership import Member, this_process
from ag.parallel.comm.tree_reduction import Node, RowSums, shard_sizes
from ag.parallel.trainer.callbacks import Place
from ag.parallel.trainer.checkpoint import DPState, load_state
from ag.parallel.trainer.replica import Replica
from ag.version import __version__

_HOSTS = 1 << 16  # CPU devices from this number on are the hosts of ranks that are threads of one process


class Ranks(Member, Place):
    """A rank's place among several that train together."""

    who = "dp_train"
    advice = "weights are those of the last step that was finished."

    def __init__(self, world: object) -> None:
        Place.__init__(self)
        Member.__init__(self, comm_of(world, "dp_train"), getattr(world, "min_ranks", 1))
        self._told: set[str] = set()  # names in `used` that this rank has told the others
        self._rows, self._parts = RowSums(), RowSums()  # of this rank's replicas, and of all ranks
        self._exchange_s, self._sent = 0.0, 0

    # -------------------------------------------------------------------------------------- errors

    def _tell_error(self, error: str) -> None:
        self._tell({"error": f"failed {self.where} ({error})"})

    def _tell(self, message: dict[str, Json]) -> None:
        try:
            self._values(message)
        except RankLostError as error:
            if error.ranks:
                self._tell(message)
        except CommError:
            pass  # the first error is raised

    def _has_shrunk(self) -> bool:
        if self.begun:
            self._shares = [self._shares[i] for i in self.old_ranks]
            self._parts = RowSums()  # which are longer now
        return self.begun

    def _part(self) -> None:
        """Split off the ranks that have no replicas left."""
        stays = bool(self._shares[self.rank])
        try:
            self._split(stays)
        except RankLostError:
            self._shares = [self._shares[i] for i in self.old_ranks]
            raise
        self._shares = [shares for shares in self._shares if bool(shares) is stays]
        self._parts = RowSums()
        self._over = not stays

    def exchange(self, value: Json = None) -> list[Json]:
        """Return the values of all ranks, in their order; after a RankLostError the step must be made again."""
        if self.size == 1:
            return [value]
        return self._values({"value": value})

    def _values(self, message: dict[str, Json]) -> list[Json]:
        messages = self._agreed(partial(everyone, value=message))
        for rank, theirs in enumerate(messages):
            if "error" in theirs:
                self._over = True
                raise CommError(f"dp_train: rank {rank} {theirs['error']}; weights are those of the last step that all "
                                f"ranks made.")
        changed = {rank: theirs["shares"] for rank, theirs in enumerate(messages) if "shares" in theirs}
        if changed:
            self._shares = [changed.get(rank, shares) for rank, shares in enumerate(self._shares)]
            if not all(self._shares):
                self._part()
            raise RankLostError(f"dp_train: rank {', '.join(map(str, changed))} has lost a device {self.where}.")
        return [theirs["value"] for theirs in messages]

    def gather(self, value: Json = None) -> list[Json]:
        """`exchange` between two steps, where only this call is made again."""
        while True:
            try:
                return self.exchange(value)
            except RankLostError:
                continue

    def compare(self, named: Sequence[tuple[str, object]], advice: str) -> None:
        self._compare(self.gather([(what, str(value)) for what, value in named]), advice)

    # -------------------------------------------------------------------------------------- before the first step

    def meet(self, alike: Sequence[tuple[str, object]], weights: Sequence[float], devices: Sequence[str]) -> None:
        """Compare what must be `alike` on all ranks, and exchange the shares and devices of their replicas.

        A CommError names the first difference, or a device that two ranks in one process would share.
        """
        self.compare([("the library's version", __version__), *alike], "all ranks must be given the same")
        process = this_process()
        members = self.gather([list(weights), process, list(devices)])
        self._shares = [theirs[0] for theirs in members]
        self._refuse_shared([(where, used) for _, where, used in members], "give each rank devices of its own.")
        if [where for _, where, _ in members].count(process) > 1:
            self.host = f"cpu:{_HOSTS + self.rank}"

    def begin_alike(self, first: Replica) -> None:
        """Copy weights, buffers and the seed of rank 0 to all ranks, whose models must have the same tensors."""
        table = [(f"parameter {i}", f"{name} {p.shape} {p.dtype}") for i, (name, p) in enumerate(first.params.items())]
        table += [(f"buffer {i}", f"{name} {x.shape} {x.dtype}")
                  for i, (name, x) in enumerate(first.buffers.tensors.items())]
        self.compare(table, "make_model must build the same model on all ranks")
        weights, buffers = first.state()
        seed = self.gather(current_seed())[0]
        if seed != current_seed():
            ag_seed(seed)
        for array in (weights, buffers):
            if array.size:
                self._agreed(partial(Comm.broadcast, array=array))
        first.load(weights, buffers)

    def state(self, path: str | os.PathLike[str]) -> DPState | None:
        state = load_state(path) if self.rank == 0 else None
        with self._file_of_first(Path(path)) as copy:
            return load_state(copy) if self.rank and copy is not None else state

    # -------------------------------------------------------------------------------------- in a step

    def positions(self, samples: int) -> range:
        sizes = iter(shard_sizes(samples, [w for weights in self._shares for w in weights]))
        counts = [sum(next(sizes) for _ in weights) for weights in self._shares]
        start = sum(counts[: self.rank])
        return range(start, start + counts[self.rank])

    def nodes(self, nodes: Sequence[Node], used: Iterable[set[str]], leave: bool = False) -> Sequence[Node]:
        """Return the rows to add up: these of a single rank, else their sum over all ranks, equal bits on each."""
        self.leaves = leave
        if self.size == 1:
            return nodes
        joined = self._rows.joined(nodes)
        new = set().union(*used) - self._told
        layouts = self.exchange([[(start, count) for start, count, _ in joined], sorted(new), leave])
        self._told |= new
        self.used.update(name for _, names, _ in layouts for name in names)
        self.leaves = any(leaves for *_, leaves in layouts)
        began = perf_counter()
        total = self._agreed(partial(self._added_up, joined, [places for places, *_ in layouts]))
        self._exchange_s += perf_counter() - began
        return [(0, 1, total)]

    def _added_up(self, nodes: Sequence[Node], layouts: list[list[tuple[int, int]]], comm: Comm) -> Array:
        """Return the sum of the nodes of all ranks, whose samples are in `layouts`."""
        parts = comm.all_to_all([row for _, _, row in nodes])
        part = self._parts.total([(start, count, part) for places, theirs in zip(layouts, parts, strict=True)
                                  for (start, count), part in zip(places, theirs, strict=True)])
        self._sent = part.nbytes * (comm.size - 1) + sum(row.nbytes - theirs.nbytes for (_, _, row), theirs in zip(
            nodes, parts[comm.rank], strict=True))
        return comm.all_gather(part)

    def share(self, weights: Sequence[float]) -> None:
        """Tell all ranks this rank's shares after a device was lost; without shares, the others go on without it."""
        self._shares[self.rank] = list(weights)
        if self.size > 1:
            self._tell({"shares": list(weights)})

    def report(self) -> dict[str, Any]:
        return {"rank": self.rank, "exchange_ms": self._exchange_s * 1e3, "wire_bytes_per_step": self._sent}


def place_in(world: object, held: ExitStack) -> Place:
    """Return this rank's place in a world; with several ranks, an error that ends `held` is told to the others."""
    return held.enter_context(Ranks(world)) if comm_of(world, "dp_train").size > 1 else Place()
