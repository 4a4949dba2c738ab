"""One replica of a model on one device: gradients of its samples, summed; weights in.

All parameters are one flat buffer, and so is a row: all gradients, behind them the loss, then how far the sample moved
the model's buffers.  A step moves one array each way, and one more in if there are such buffers:

    row     | gradient of W1 | of b1 | ... | loss . . . | movement of running_mean | of running_var |
    in      | weights |   | buffers |

The gradients of one sample are computed eagerly and captured on first sight, and replayed for every later sample of the
same structure.  Knows its device, its model and how to sum rows; no other replica, no optimizer.  The trainer calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from ag.autograd.capture import CapturedStep
from ag.autograd.create import ag_tensor
from ag.autograd.loss_scale import set_scale
from ag.autograd.tape import backward, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.engine.backend import Meter
from ag.engine.buffer import Buffer
from ag.engine.device import ag_device, backend_of
from ag.engine.kernels.elementwise import add, copy
from ag.engine.primitive import Array
from ag.engine.random import set_stream
from ag.errors import CaptureError, CommError
from ag.nn.layer import Model
from ag.optim.flat import FlatGroup, flat_groups, named_parameters
from ag.parallel.comm.tree import Leaf, Tree, TreeDef, opaque_type, tree_flatten, tree_leaves, tree_map, tree_unflatten
from ag.parallel.comm.tree_reduction import TreeSum
from ag.parallel.trainer.model_buffers import ReplicaBuffers

__all__ = ["LOSS_WORDS", "CapturePolicy", "DeviceClock", "LossOf", "MakeModel", "Node", "Replica", "Sample"]

LossOf = Callable[[Model, Tree], Tensor]  # (model, sample) -> loss
MakeModel = Callable[[], Model]
Sample = tuple[int, int | None, Tree]  # position in the step, index in the data if it is held there, sample
_Plan = tuple[Tree, CapturedStep | None, list[Leaf]]  # a sample, the captured step to replay, and its arguments
Node = tuple[int, int, Array]  # first sample, number of samples, their summed row: gradients, loss, movement of buffers

LOSS_WORDS = 4  # the loss sits behind the gradients, padded to 16 bytes
PROGRAMS_KEPT = 32  # captured steps per replica; samples of yet other shapes run eagerly
METERED_EVERY = 16  # steps

log = logging.getLogger("ag")


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
    policy : CapturePolicy
        Shared by the replicas of a training.
    """

    def __init__(self, index: int, device: str, make_model: MakeModel, loss_of: LossOf,
                 policy: CapturePolicy) -> None:
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
        self._policy = policy
        self._programs: dict[TreeDef, CapturedStep] = {}
        self._plans: dict[int, _Plan] = {}
        self.buffers = ReplicaBuffers(self.model, self.backend, self.group.dtype)
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

    def start(self, shard: Sequence[Sample], first: int, draws: int | None) -> None:
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

    def start_and_finish(self, shard: Sequence[Sample], first: int, draws: int | None) -> None:
        """Both, on a synchronous device, which computes in the thread that launches."""
        self.start(shard, first, draws)
        self.finish()

    def run(self, shard: Sequence[Sample], first: int, draws: int | None) -> None:
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
                row = self._work if len(shard) == 1 else self._copied(self._work, len(tree.nodes))
                tree.push(position, 1, row)
        self.nodes = tree.nodes
        self.backend.submit()

    def gradients_of(self, sample: Tree, stream: int) -> Buffer:
        """The gradients and the loss of one sample, uncaptured, in a row of its own."""
        set_stream(self.backend, stream)
        self._gradients(sample)
        row: Buffer = self.backend.launch(copy, self._work)
        return row

    def add_up(self, rows: Sequence[tuple[int, Buffer]]) -> None:
        """Sum these rows for `collect`; each comes with its sample's position in the step."""
        tree: TreeSum[Buffer] = TreeSum(self._added)
        self._reserve(len(rows))
        with self.backend.quiet():
            for position, row in rows:
                tree.push(position, 1, self._copied(row, len(tree.nodes)))
        self.nodes = tree.nodes

    def _reserve(self, samples: int) -> None:
        """Have a row for every node that can be left when a shard is summed: at most two of each size."""
        most = 2 * samples.bit_length()
        if len(self._stack) < most:
            length = self._work.size
            rows = self.backend.alloc((most, length), self.group.dtype)
            self._stack = [rows.view((length,), i * length) for i in range(most)]

    def _copied(self, row: Buffer, depth: int) -> Buffer:
        """A copy of a row, in the memory for nodes at this depth of the tree's stack."""
        result: Buffer = self.backend.launch(copy, row, into=self._stack[depth])
        return result

    def _added(self, left: Buffer, right: Buffer) -> Buffer:
        result: Buffer = self.backend.launch(add, left, right, into=left)
        return result

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

    def _one_sample(self, index: int | None, sample: Tree) -> None:
        """Leave the sample's gradients and loss in the work row."""
        plan = None if index is None else self._plans.get(index)
        if plan is None or plan[0] is not sample:
            plan = self._planned(sample)
            if index is not None:
                self._plans[index] = plan
        _, captured, leaves = plan
        if captured is None or not self._policy.on:
            self._gradients(sample)
            return
        try:
            captured(*leaves)
        except CaptureError as error:
            self._policy.refused(error)
            self._gradients(sample)

    def _planned(self, sample: Tree) -> _Plan:
        if not self._policy.on:
            return sample, None, []
        leaves, treedef = tree_flatten(sample)
        kind = opaque_type(treedef)
        if kind is not None:
            self._policy.refused(CaptureError(
                f"dp_train: a sample holds a {kind}, and a replay would not see what changes in it; give samples as "
                f"arrays, numbers and strings, and dicts, lists and tuples of them."))
            return sample, None, []
        captured = self._programs.get(treedef)
        if captured is None:
            if len(self._programs) == PROGRAMS_KEPT:
                self._policy.ran_out()
                return sample, None, []
            captured = CapturedStep(lambda *xs: self._gradients(tree_unflatten(treedef, xs)), self.backend)
            self._programs[treedef] = captured
        return sample, captured, leaves

    def _gradients(self, sample: Tree) -> None:
        if any(isinstance(x, Tensor) and x.device != self.device for x in tree_leaves(sample)):
            sample = tree_map(lambda x: ag_tensor(x, self.device) if isinstance(x, Tensor) else x, sample)
        self.buffers.begin()
        with ag_device(self.device), with_grad_tape():
            loss = self._loss_of(self.model, sample)
        if not isinstance(loss, Tensor):
            raise TypeError(f"dp_train: the loss is a {type(loss).__name__}; loss_fn (or forward_fn, without loss_fn) "
                            f"must return a tensor of one element.")
        grads = backward(loss)
        used = {name: grads[p] for name, p in self.params.items() if p in grads}
        for p in self.params.values():
            p.grad = None
        self.used |= used.keys()
        self.group.gather(used, self._grad_views)
        for name in self.params.keys() - used.keys():
            view = self._grad_views[name]
            self.backend.launch(copy, self.backend.zeros(view.shape, view.dtype), into=view)
        self.backend.launch(copy, loss.buffer.view(()), into=self._loss_view)
        self.buffers.end(self._moved_view)

    def note(self, samples: int, elapsed_s: float, wait_s: float) -> None:
        """Add a step to the report: the size of the shard, its time, and how long it waited for the last replica."""
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
        """Release the captured steps, whose functions hold the replica, and with them its memory."""
        self._programs.clear()
        self._plans.clear()

    def not_finite(self, row: Array) -> str:
        """The first thing in a row that is not finite, in words."""
        name = _not_finite(self.params, self.group.offsets, row)
        if name is None and np.isfinite(row[self.group.size]):
            moved = row[self.group.size + LOSS_WORDS :]
            return f"buffer {_not_finite(self.buffers.tensors, self.buffers.offsets, moved)}"
        return "the loss" if name is None else f"the gradient of {name}"

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


class CapturePolicy:
    """Whether replicas replay captured steps; "auto" stops doing so at the first step that cannot be captured."""

    def __init__(self, wanted: bool | str) -> None:
        self.on = bool(wanted)
        self._must = wanted is True
        self._out = False
        self._one = Lock()  # replicas call from their device's thread, and a warning is logged once

    def refused(self, error: CaptureError) -> None:
        """Go on uncaptured and log why; with ``capture=True``, raise `error`."""
        if self._must:
            raise error
        with self._one:
            on, self.on = self.on, False
        if on:
            log.warning("dp_train: steps run uncaptured, which is slower: %s", error)

    def ran_out(self) -> None:
        """Log once that samples have too many structures to keep a captured step for each."""
        with self._one:
            out, self._out = self._out, True
        if not out:
            log.warning("dp_train: the samples have more than %d different shapes or numbers in them; from the next "
                        "on they run uncaptured, which is slower. Give numbers that differ as arrays.", PROGRAMS_KEPT)


class DeviceClock:
    """Estimates a replica's device time.

    Timestamps cost up to 20 % of a small step, so only steps 0, 1 and every 16th are timed; other steps are charged the
    time per sample of the last timed one.  Step 0 is not typical: it also records.

    Attributes
    ----------
    seconds : float
        Estimated time of the device's work in all steps.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._meter = Meter()
        self._steps = 0
        self._per_sample = 0.0

    @property
    def meter(self) -> Meter | None:
        """The meter of the current step; None if it is not timed."""
        return self._meter if self._steps < 2 or self._steps % METERED_EVERY == 0 else None

    def note(self, samples: int) -> None:
        """End a step with so many samples, after its work is done; a step without samples does not count."""
        if not samples:
            return
        if self.meter is not None:
            self._per_sample = self._meter.seconds / samples
            self._meter.seconds = 0.0
        self.seconds += samples * self._per_sample
        self._steps += 1


def _not_finite(tensors: dict[str, Tensor], offsets: dict[str, int], flat: Array) -> str | None:
    """The first of the tensors that are not finite in a flat array."""
    return next((name for name, x in tensors.items()
                 if not np.isfinite(flat[offsets[name] : offsets[name] + x.size]).all()), None)
