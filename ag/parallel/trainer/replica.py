"""One replica of a model on one device: gradients of its samples, summed; weights in.

All parameters are one flat buffer, and so are all gradients with the loss behind them and what the sample does to the
model's buffers: a step moves one array each way, and one more in if there are such buffers.  The gradient computation
of one sample is captured on first sight and replayed after that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ag.autograd.capture import CapturedStep
from ag.autograd.create import ag_tensor
from ag.autograd.loss_scale import set_scale
from ag.autograd.tape import backward, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer
from ag.engine.device import ag_device, backend_of
from ag.engine.kernels.elementwise import add, copy
from ag.engine.primitive import Array
from ag.engine.random import set_stream, streams_used
from ag.errors import CaptureError, CommError
from ag.optim.flat import FlatGroup, flat_groups, named_parameters
from ag.parallel.comm.tree import flatten, opaque, unflatten
from ag.parallel.comm.tree_reduction import TreeSum
from ag.parallel.trainer.capturing import PROGRAMS_KEPT, Capturing
from ag.parallel.trainer.device_clock import DeviceClock
from ag.parallel.trainer.model_buffers import MovingBuffers

__all__ = ["LOSS_WORDS", "LossOf", "Node", "Replica"]

LossOf = Callable[[Any, Any], Tensor]  # (model, sample) -> loss
Node = tuple[int, int, Array]  # first sample, number of samples, their summed row: gradients, loss, movement of buffers

LOSS_WORDS = 4  # the loss sits behind the gradients, padded to 16 bytes


class Replica:
    """A model on a device.

    Parameters
    ----------
    index : int
        Number of the replica, for messages.
    device : str
    make_model : callable
        Called once, with `device` as the default device.
    loss_of : callable
        ``loss_of(model, sample)``: the sample's loss.
    capturing : Capturing
        Shared by the replicas of a job.
    """

    def __init__(self, index: int, device: str, make_model: Callable[[], Any], loss_of: LossOf,
                 capturing: Capturing) -> None:
        self.index = index
        self.backend = backend_of(device)
        self.device = self.backend.name
        self.name = f"replica {index} ({self.device})"
        with ag_device(self.device):
            self.model = make_model()
        for needed in ("forward", "parameters"):
            if not callable(getattr(self.model, needed, None)):
                raise TypeError(f"dp_train: make_model returned a {type(self.model).__name__} without {needed}(); "
                                f"a model needs forward(x) and parameters().")
        self.params = named_parameters(self.model, "dp_train")
        groups = flat_groups(self.params)
        if len(groups) != 1 or groups[0].backend is not self.backend:
            places = ", ".join(sorted({f"{p.device} ({p.dtype})" for p in self.params.values()}))
            raise CommError(f"dp_train: the model of replica {index} has parameters on {places}; make_model must "
                            f"create all of them on the default device, {self.device} here, with one element type.")
        self.group: FlatGroup = groups[0]
        self._scale: float | None = None
        self._scaling: Buffer | None = None  # keeps the device's loss scale
        self.used: set[str] = set()
        self._loss_of = loss_of
        self._capturing = capturing
        self._programs: dict[Any, CapturedStep] = {}
        self._plans: dict[int, tuple[Any, CapturedStep | None, list[Any]]] = {}
        self.buffers = MovingBuffers(self.model, self.backend, self.group.dtype)
        ahead = self.group.size + LOSS_WORDS
        self._work = self.backend.zeros((ahead + self.buffers.size,), self.group.dtype)
        self.row_size = self._work.size
        self._grad_views = self.group.split(self._work)
        self._loss_view = self._work.view((), self.group.size)
        self._moved_view = self._work.view((self.buffers.size,), ahead)
        self._stack: list[Buffer] = []  # rows of one buffer, for the nodes of the tree
        self.nodes: list[tuple[int, int, Buffer]] = []
        self.collected: list[Node] = []
        self.began = self.ended = 0.0
        self._samples = self._shard = 0
        self.clock = DeviceClock()
        self._elapsed_s = self._wait_s = 0.0

    # -------------------------------------------------------------------------------------- gradients

    def start(self, shard: Sequence[tuple[int, int | None, Any]], first: int, draws: int | None) -> None:
        """`run`, noting the time, here and on the device."""
        self.began = perf_counter()
        self.backend.meter(self.clock.meter)
        try:
            self.run(shard, first, draws)
        finally:
            self.backend.meter(None)

    def finish(self) -> None:
        """`collect`, noting the time."""
        self.collected = self.collect()
        self.ended = perf_counter()

    def start_and_finish(self, shard: Sequence[tuple[int, int | None, Any]], first: int, draws: int | None) -> None:
        """Both, on a device that works while it is given work."""
        self.start(shard, first, draws)
        self.finish()

    def run(self, shard: Sequence[tuple[int, int | None, Any]], first: int, draws: int | None) -> None:
        """Start computing the summed gradients of some samples; does not wait on an asynchronous device.

        Parameters
        ----------
        shard : sequence of (position in the step, index in the data or None, sample)
            A sample with an index is remembered, with what it takes to run it again.
        first : int
            Number of samples trained on before this step; decides the random streams.
        draws : int or None
            Random streams per sample; 0 if the model draws no random numbers, None if not known yet.
        """
        tree: TreeSum[Buffer] = TreeSum(self._added)
        self._reserve(len(shard))
        for position, index, sample in shard:
            if draws != 0:
                set_stream(self.backend, (first + position) * (draws or 0))
            self._one_sample(index, sample)
            with self.backend.quiet():
                tree.push(position, 1, self._work if len(shard) == 1 else self._kept(len(tree.nodes)))
        self.nodes = tree.nodes
        self.backend.submit()

    def gradients_of(self, sample: Any, stream: int) -> Buffer:
        """The gradients and the loss of one sample, uncaptured, in a row of its own."""
        set_stream(self.backend, stream)
        self._gradients(sample)
        row: Buffer = self.backend.launch(copy, self._work)
        return row

    def add_up(self, rows: Sequence[tuple[int, Buffer]]) -> None:
        """Let `collect` find the sums of these rows, each with its sample's position in the step."""
        tree: TreeSum[Buffer] = TreeSum(self._added)
        self._reserve(len(rows))
        with self.backend.quiet():
            for position, row in rows:
                tree.push(position, 1, self.backend.launch(copy, row, into=self._stack[len(tree.nodes)]))
        self.nodes = tree.nodes

    def _reserve(self, samples: int) -> None:
        """Have a row for every node that the tree of a shard can be left with."""
        most = 2 * samples.bit_length()
        if len(self._stack) < most:
            length = self._work.size
            rows = self.backend.alloc((most, length), self.group.dtype)
            self._stack = [rows.view((length,), i * length) for i in range(most)]

    def _kept(self, depth: int) -> Buffer:
        """A copy of the work row, in the row for nodes at this depth of the tree's stack."""
        result: Buffer = self.backend.launch(copy, self._work, into=self._stack[depth])
        return result

    def _added(self, left: Buffer, right: Buffer) -> Buffer:
        result: Buffer = self.backend.launch(add, left, right, into=left)
        return result

    def streams_used(self) -> int:
        """How many random streams the samples since the last `set_stream` took; waits."""
        return streams_used(self.backend)

    def collect(self) -> list[Node]:
        """The sums that `run` started, on the host, in one transfer; waits for the device."""
        if not self.nodes:
            return []
        if len(self.nodes) == 1:
            start, count, row = self.nodes[0]
            return [(start, count, self.backend.download(row))]
        first = self.nodes[0][2]
        rows = self.backend.download(first.view((len(self.nodes), first.size)))  # node i is in row i of the stack
        return [(start, count, row) for (start, count, _), row in zip(self.nodes, rows, strict=True)]

    def _one_sample(self, index: int | None, sample: Any) -> None:
        """Leave the sample's gradients and loss in the work row."""
        plan = None if index is None else self._plans.get(index)
        if plan is None or plan[0] is not sample:
            plan = self._planned(sample)
            if index is not None:
                self._plans[index] = plan
        _, captured, leaves = plan
        if captured is None or not self._capturing.on:
            self._gradients(sample)
            return
        try:
            captured(*leaves)
        except CaptureError as error:
            self._capturing.refused(error)
            self._gradients(sample)

    def _planned(self, sample: Any) -> tuple[Any, CapturedStep | None, list[Any]]:
        if not self._capturing.on:
            return sample, None, []
        structure, leaves = flatten(sample)
        kind = opaque(structure)
        if kind is not None:
            self._capturing.refused(CaptureError(
                f"dp_train: a sample holds a {kind}, and a replay would not see what changes in it; give samples as "
                f"arrays, numbers and strings, and dicts, lists and tuples of them."))
            return sample, None, []
        captured = self._programs.get(structure)
        if captured is None:
            if len(self._programs) == PROGRAMS_KEPT:
                self._capturing.ran_out()
                return sample, None, []
            captured = CapturedStep(lambda *xs: self._gradients(unflatten(structure, xs)), self.backend)
            self._programs[structure] = captured
        return sample, captured, leaves

    def _gradients(self, sample: Any) -> None:
        structure, leaves = flatten(sample)
        if any(isinstance(x, Tensor) and x.device != self.device for x in leaves):
            sample = unflatten(structure, [ag_tensor(x, self.device) if isinstance(x, Tensor) else x for x in leaves])
        self.buffers.begin()
        with ag_device(self.device), with_grad_tape():
            loss = self._loss_of(self.model, sample)
        if not isinstance(loss, Tensor):
            raise TypeError(f"dp_train: the loss is a {type(loss).__name__}; loss_fn (or forward_fn, without loss_fn) "
                            f"must return a tensor of one element.")
        grads = backward(loss)
        found = {name: grads[p] for name, p in self.params.items() if p in grads}
        for p in self.params.values():
            p.grad = None
        self.used |= found.keys()
        self.group.gather(found, self._grad_views)
        for name in self.params.keys() - found.keys():
            view = self._grad_views[name]
            self.backend.launch(copy, self.backend.zeros(view.shape, view.dtype), into=view)
        self.backend.launch(copy, loss.buffer.view(()), into=self._loss_view)
        self.buffers.end(self._moved_view)

    def note(self, samples: int, elapsed_s: float, wait_s: float) -> None:
        """Remember a step: the size of the shard, how long it took, how long the last replica took after that."""
        self._shard = samples
        self._samples += samples
        self._elapsed_s += elapsed_s
        self._wait_s += wait_s
        self.clock.note(samples)

    def report(self) -> dict[str, Any]:
        """What `DPResult.report` says of this replica alone."""
        timed = self.backend.timestamps
        compute_s = self.clock.seconds if timed else self._elapsed_s
        return {"replica": self.index, "device": self.device, "driver": self.backend.info.driver,
                "samples": self._samples, "shard": self._shard, "clock": "device" if timed else "host",
                "compute_ms": compute_s * 1e3, "elapsed_ms": self._elapsed_s * 1e3, "wait_ms": self._wait_s * 1e3}

    def close(self) -> None:
        """Let go of the captured steps, whose functions hold the replica, and so of its memory."""
        self._programs.clear()
        self._plans.clear()

    def not_finite(self, row: Array) -> str:
        """What in a row with infinities or NaN is not finite, in words."""
        name = _not_finite(self.params, self.group.offsets, row)
        if name is None and np.isfinite(row[self.group.size]):
            moved = row[self.group.size + LOSS_WORDS :]
            return f"buffer {_not_finite(self.buffers.tensors, self.buffers.offsets, moved)}"
        return "the loss" if name is None else f"the gradient of {name}"

    # -------------------------------------------------------------------------------------- weights

    def load(self, weights: Array, buffers: Array) -> None:
        """Overwrite all parameters and buffers, each given as one array in the flat layout; does not wait."""
        self.group.adopt()
        self.backend.upload(weights, self.group.values)
        self.group.store()
        self.buffers.load(buffers)

    def scale_gradients(self, scale: float | None) -> None:
        """Compute gradients with this loss scale from now on; None, or the one in use, changes nothing."""
        if scale != self._scale and scale is not None:
            self._scaling = set_scale(self.backend, scale)
        self._scale = scale

    def state(self) -> list[Array]:
        """All parameters and all buffers, in their flat layouts; waits for the device."""
        return [self.backend.download(self.group.values), self.buffers.read()]


def _not_finite(tensors: dict[str, Tensor], offsets: dict[str, int], flat: Array) -> str | None:
    """The first of the tensors that are not finite in a flat array."""
    return next((name for name, x in tensors.items()
                 if not np.isfinite(flat[offsets[name] : offsets[name] + x.size]).all()), None)
