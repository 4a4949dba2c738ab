"""The ranks of a training: members of a group, each with devices of its own, that train one model with `dp_train`.

All ranks do the same in the same order.  Before anything large is exchanged they tell each other in a few bytes that
they are ready, or what went wrong: so one that fails stops all of them at the same step, and no rank waits in vain.
From step 0 on, a rank that is lost, as its process was killed or its host is cut off, stops nobody: the others share
its samples out among them, and make the step again (`ag.parallel.comm.membership`).

Sums of gradients go on in the tree of the samples (`ag.parallel.comm.tree_reduction`), of which every rank has whole
nodes.  Each rank adds up one part of the nodes of all ranks, and the parts are put together (a reduce-scatter and an
all-gather).  Two ranks with one node each, of elements [a b] and [c d]:

    rank 0   sends b to rank 1, adds a + c          sends a + c to rank 1      has [a+c b+d]
    rank 1   sends c to rank 0, adds b + d          sends b + d to rank 0      has [a+c b+d]

Knows a communicator, flat arrays, which samples of a step are this rank's (`positions`), and one of its replicas, which
stands for all; not what a step is, which `ag.parallel.trainer.trainer` knows.  The trainer and `dp_train` call it.
With one rank nothing is exchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np

from ag.engine.primitive import Array
from ag.engine.random import ag_seed, current_seed
from ag.errors import CommError, RankLostError
from ag.parallel.comm.comm import Comm, Json, comm_of, everyone
from ag.parallel.comm.membership import Member, Membership, shared_device, this_process
from ag.parallel.comm.tree_reduction import Node, RowSums, shard_sizes
from ag.parallel.trainer.checkpoint import DPState, load_state
from ag.parallel.trainer.replica import Replica
from ag.version import __version__

__all__ = ["Ranks"]

_HOSTS = 1 << 16  # CPU devices from this number on are the hosts of ranks that are threads of one process


class Ranks(Member):
    """A rank's place among those that train together; as a context it tells the others of an error.

    Parameters
    ----------
    world : Comm, something that has one as ``comm``, or None
        None: this rank is alone.

    Attributes
    ----------
    rank, size : int
    where : str
        How far the training is, for messages.
    begun : bool
        Whether the first step has begun, so that the others go on if a rank is lost.
    host : str
        The device of the optimizer, which no other rank of the process uses.
    used : set of str
        Parameters that samples of some rank have used; empty where there is one rank.
    leaves : bool
        Whether a rank was asked to leave before the last step was done: all of them do so, after the same step.

    Raises
    ------
    TypeError
        If `world` is no communicator.
    """

    advice = "weights are those of the last step that was finished."

    def __init__(self, world: object) -> None:
        super().__init__(Membership(comm_of(world, "dp_train"), "dp_train", getattr(world, "min_ranks", 1)))
        self.begun = False
        self.host = "cpu"
        self.used: set[str] = set()
        self.leaves = False
        self._told: set[str] = set()  # names in `used` that this rank has told the others
        self._shares: list[list[float]] = []  # of every rank, the weights of its replicas
        self._rows, self._parts = RowSums(), RowSums()  # of this rank's replicas, and of all ranks
        self._exchange_s, self._sent = 0.0, 0

    @property
    def replicas(self) -> int:
        """How many replicas all ranks have."""
        return sum(map(len, self._shares))

    # -------------------------------------------------------------------------------------- errors

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        """Make the other ranks raise, too, in their next call."""
        if error is None or self._over or self.size == 1:
            return
        if isinstance(error, Exception):
            self._tell({"error": f"failed {self.where} ({type(error).__name__}: {error})"})
        else:  # KeyboardInterrupt, SystemExit: end at once
            self._abort(error)

    def _tell(self, message: dict[str, Json]) -> None:
        """Let the others know what is no value."""
        try:
            self._values(message)
        except RankLostError as error:
            if error.ranks:
                self._tell(message)
        except CommError:
            pass  # what it was

    def _has_shrunk(self) -> bool:
        if self.begun:
            self._shares = [self._shares[i] for i in self._members.old_ranks]
            self._parts = RowSums()  # which are longer now
        return self.begun

    def _part(self) -> None:
        """Go on without ranks that have no replicas any more; they are a group of their own."""
        stays = bool(self._shares[self.rank])
        try:
            self._members.part(stays, self.where)
        except RankLostError:
            self._shares = [self._shares[i] for i in self._members.old_ranks]
            raise
        self._shares = [shares for shares in self._shares if bool(shares) is stays]
        self._parts = RowSums()
        self._over = not stays

    def exchange(self, value: Json = None) -> list[Json]:
        """The values of all ranks, in their order: anything that JSON can hold.

        Raises
        ------
        RankLostError
            If a rank was lost, or has other replicas now: the step must be made again, with samples dealt out anew.
        CommError
            If a rank failed since the last call, naming it and its error, or did not come in time.
        """
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
        """`exchange` between two steps, where nothing is made again but this call."""
        while True:
            try:
                return self.exchange(value)
            except RankLostError:
                continue

    def compare(self, named: Sequence[tuple[str, object]], advice: str) -> None:
        """Raise unless all ranks have the same names and values; `advice` ends the message."""
        lists = self.gather([(what, str(value)) for what, value in named])
        for rank, theirs in enumerate(lists):
            for first, other in zip_longest(lists[0], theirs):
                if first != other:
                    self._over = True  # every rank raises this
                    what = (first or other)[0]
                    a, b = (pair[1] if pair and pair[0] == what else "not there" for pair in (first, other))
                    raise CommError(f"dp_train: {what} is {a} on rank 0 and {b} on rank {rank}; {advice}.")

    def finish(self) -> None:
        """The training is done: a later error is not told to the other ranks."""
        self._over = True

    # -------------------------------------------------------------------------------------- before the first step

    def meet(self, alike: Sequence[tuple[str, object]], weights: Sequence[float], devices: Sequence[str]) -> None:
        """Compare the arguments of all ranks, and learn their shares of the samples.

        Parameters
        ----------
        alike : sequence of (name, value)
            What must be equal on all ranks.
        weights : sequence of float
            The shares of this rank's replicas.
        devices : sequence of str
            Their devices.

        Raises
        ------
        CommError
            Naming the first difference, or a device that two ranks in one process would share.
        """
        self.compare([("the library's version", __version__), *alike], "all ranks must be given the same")
        process = this_process()
        members = self.gather([list(weights), process, list(devices)])
        self._shares = [theirs[0] for theirs in members]
        if (shared := shared_device([(where, used) for _, where, used in members])) is not None:
            self._over = True
            a, b, device = shared
            raise CommError(f"dp_train: rank {a} and rank {b} are threads of one process and both use {device}; "
                            f"give each rank devices of its own.")
        if [where for _, where, _ in members].count(process) > 1:
            self.host = f"cpu:{_HOSTS + self.rank}"

    def begin_alike(self, first: Replica) -> None:
        """Give weights, buffers and the seed of rank 0 to all ranks, whose models must have the same tensors."""
        if self.size == 1:
            return
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
        """The checkpoint in rank 0's file, on all ranks; None if there is no file."""
        state = load_state(path) if self.rank == 0 else None
        if self.size == 1:
            return state
        content = np.fromfile(path, np.uint8) if state is not None else np.empty(0, np.uint8)
        size = self.gather(content.size)[0]
        content = content if self.rank == 0 else np.empty(size, np.uint8)
        self._agreed(partial(Comm.broadcast, array=content))
        if self.rank == 0 or size == 0:
            return state
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "checkpoint"
            content.tofile(copy)
            return load_state(copy)

    # -------------------------------------------------------------------------------------- in a step

    def positions(self, samples: int) -> range:
        """The positions of this rank's samples in a step: those of its replicas, in the order of all replicas."""
        if self.size == 1:
            return range(samples)
        sizes = iter(shard_sizes(samples, [w for weights in self._shares for w in weights]))
        counts = [sum(next(sizes) for _ in weights) for weights in self._shares]
        start = sum(counts[: self.rank])
        return range(start, start + counts[self.rank])

    def nodes(self, nodes: Sequence[Node], used: Iterable[set[str]], leave: bool = False) -> Sequence[Node]:
        """What is to be added up of a step's rows: these, or the sum over all ranks, the same to the bit on each.

        Parameters
        ----------
        nodes : sequence of Node
            The rows of this rank, of which there may be none.
        used : iterable of set of str
            Parameters that this rank's samples have used.
        leave : bool, optional
            Whether this rank was asked to leave.

        Notes
        -----
        Every rank sends (ranks - 1) / ranks of its nodes and of the sum.  With equal shares of 2**k samples each rank
        has one node, and sends the least that an all-reduce can; with other shares it has up to 2 * log2(samples).
        """
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
        """The sum of the nodes of all ranks, whose samples are in `layouts`."""
        parts = comm.all_to_all([row for _, _, row in nodes])
        part = self._parts.total([(start, count, part) for places, theirs in zip(layouts, parts, strict=True)
                                  for (start, count), part in zip(places, theirs, strict=True)])
        self._sent = part.nbytes * (comm.size - 1) + sum(row.nbytes - theirs.nbytes for (_, _, row), theirs in zip(
            nodes, parts[comm.rank], strict=True))
        return comm.all_gather(part)

    def share(self, weights: Sequence[float]) -> None:
        """From now on this rank's replicas have these shares, as a device was lost; all make the step again.

        If there are none, this rank has left, and the others go on without it.
        """
        self._shares[self.rank] = list(weights)
        if self.size > 1:
            self._tell({"shares": list(weights)})

    def report(self) -> dict[str, Any]:
        """What `DPResult.report` says of the exchange."""
        return {"rank": self.rank, "exchange_ms": self._exchange_s * 1e3, "wire_bytes_per_step": self._sent}
