"""One replica of a model on one device: gradients of its samples, summed; weights in.

All parameters are one flat buffer.  A row holds all gradients, the loss and its weight, and the movements of buffers:

    row     | gradient of W1 | of b1 | ... | loss, 1 . . | movement of running_mean | of running_var |
    in      | weights |   | buffers |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from time import perf_counter
from typing import Any

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.half import LossScale
from ag.autograd.tape import backward, no_grad, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree, tree_leaves, tree_map
from ag.engine.buffer import Buffer
from ag.engine.device import ag_device, backend_of
from ag.engine.kernels.elementwise import add, copy, scale
from ag.engine.primitive import Array
from ag.engine.random import set_stream
from ag.errors import CommError
from ag.nn.layer import Model
from ag.ops.arithmetic import ag_scale
from ag.optim.flat import FlatGroup, flat_groups, named_parameters
from ag.optim.optimizer import refuse_untrained
from ag.parallel.comm.tree_reduction import Node, TreeSum
from ag.parallel.trainer.load_balance import DeviceClock
from ag.parallel.trainer.model_buffers import ReplicaBuffers
from ag.parallel.trainer.plans import CapturePolicy, Numbers, Plans
from ag.parallel.trainer.stacks import Stack

LossOf = Callable[[Model, Tree], Tensor]  # (model, sample) -> loss
MakeModel = Callable[[], Model]
LOSS_WORDS = 4  # behind the gradients: the loss and its weight, padded to 16 bytes
_ROWS, _ROWS_BYTES = 8, 4 << 20  # rows that are adjacent, so that one transfer brings several, and their bytes at most


class Replica:
    """A model on a device."""

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
        if len(groups) > 1 and all(group.continues for group in groups[1:]):
            raise CommError(f"dp_train: {sum(group.size for group in groups)} parameters of replica {index} do not fit "
                            f"into a buffer, of which {self.device} addresses {self.backend.arena.largest_block} "
                            f"bytes; make a smaller model, or train it with ag_capture or ZeroOptimizer.")
        if len(groups) != 1 or groups[0].backend is not self.backend:
            places = ", ".join(sorted({f"{p.device} ({p.dtype})" for p in self.params.values()}))
            raise CommError(f"dp_train: the model of replica {index} has parameters on {places}; make_model must "
                            f"create all of them on the default device, {self.device} here, with one element type.")
        self.group: FlatGroup = groups[0]
        self._scale: float | None = None
        self._scaling: LossScale | None = None
        self.used: set[str] = set()  # parameters that samples have used
        self._loss_of = loss_of
        self.plans = Plans(self.backend, self._gradients, policy, (loss_of, getattr(self.model, "forward", None)))
        self.buffers = ReplicaBuffers(self.model, self.backend, self.group.dtype)
        ahead = self.group.size + LOSS_WORDS
        self.row = self.backend.zeros((ahead + self.buffers.size,), self.group.dtype)  # of the stack passed last
        self._grad_views = self.group.split(self.row)
        self._loss_view = self.row.view((), self.group.size)
        self._moved_view = self.row.view((self.buffers.size,), ahead)
        self._rows: list[Buffer] = []  # for the nodes of the tree
        self._tree: TreeSum[Buffer] = TreeSum(self._added)
        self.counted = 0  # stacks of this step that are in the tree, as their random numbers were counted
        self.given: tuple[Sequence[Stack], int, int | None] = (), 0, None  # arguments of the next `run`
        self.collected: list[Node] = []
        self.begin_anew()
        self.began = self.ended = self._elapsed_s = self._wait_s = 0.0
        self._samples = self._shard = 0
        self.clock = DeviceClock()

    # -------------------------------------------------------------------------------------- a step

    def start(self) -> None:
        """`run` what is `given`, and time it on the host and the device."""
        self.began = perf_counter()
        given, self.given = self.given, ((), 0, None)  # samples are released after the step
        if (meter := self.clock.meter) is not None:
            self.backend.meter(meter)
        try:
            self.run(*given)
        finally:
            if meter is not None:
                self.backend.meter(None)

    def finish(self) -> None:
        """`collect`, and note the time."""
        self.collected = self.collect()
        self.ended = perf_counter()

    def start_and_finish(self) -> None:
        """Do both, on a synchronous device, which computes in the thread that launches."""
        self.start()
        self.finish()

    def run(self, stacks: Sequence[Stack], first: int, draws: int | None) -> None:
        """Start computing the summed gradients of some stacks; an asynchronous device is not waited for.

        `first`, the number of stacks in earlier steps, decides the random streams.  A stack takes `draws` streams.
        """
        done, self.counted = self.counted, 0
        if not done:
            self._tree = TreeSum(self._added)
        for stack in stacks[done:]:
            self._pass(stack, stack.streams(first, draws), len(stacks) == 1)
        self.backend.submit()

    def count(self, stack: Stack) -> None:
        """Compute the first stack of the job; `run` goes on behind it.  `plans.drawn` is how many streams it took."""
        self._tree = TreeSum(self._added)
        self._pass(stack, stack.streams(0, None), False)
        self.counted = 1

    def _pass(self, stack: Stack, streams: Numbers, alone: bool) -> None:
        """Add the row of a stack to the tree; `alone`: the step has no other."""
        if stack.passes:
            self.plans.run(stack.together, streams)
            row = self._weighed(stack, len(self._tree.nodes), alone)
        else:
            row = self._sum_of(stack)
        self._tree.push(stack.place, stack.parts, row)

    def _sum_of(self, stack: Stack) -> Buffer:
        """Return the row of a stack whose samples are passed one by one and added up in their own tree."""
        inner: TreeSum[Buffer] = TreeSum(self._added)
        for one in stack.one_by_one():
            self.plans.run(one.together, one.streams(0, 0))
            inner.push(one.place, 1, self._weighed(one, len(self._tree.nodes) + len(inner.nodes), False))
        return inner.total()

    def gradients_of(self, stack: Stack, stream: int) -> Buffer:
        """Return the row of one stack, uncaptured; other stacks exchange values with its layers.

        So the loss is weighed before the backward pass.
        """
        set_stream(self.backend, stream)
        weight = stack.weight
        self._gradients(stack.together, weight)
        row: Buffer = self.backend.launch(copy, self.row)
        if weight != 1.0:
            moved = row.view((self.buffers.size,), self.group.size + LOSS_WORDS)
            if self.buffers.size:
                self.backend.launch(scale, moved, factor=weight, into=moved)
            self._count(row, weight)
        return row

    def add_up(self, rows: Sequence[tuple[Stack, Buffer]]) -> None:
        """Sum the rows of stacks for `collect`."""
        self._tree = TreeSum(self._added)
        for stack, row in rows:
            into = self._row(len(self._tree.nodes))
            self._tree.push(stack.place, stack.parts, self.backend.launch(copy, row, into=into))

    def _row(self, depth: int) -> Buffer:
        """Return the memory for nodes at this depth."""
        while len(self._rows) <= depth:
            count = min(max(1, _ROWS_BYTES // self.row.nbytes), _ROWS)
            rows = self.backend.alloc((count, self.row.size), self.group.dtype)
            self._rows += [rows.view((self.row.size,), i * self.row.size) for i in range(count)]
        return self._rows[depth]

    def _count(self, row: Buffer, weight: float) -> None:
        """Write the weight of its stack into a row."""
        self.backend.upload(np.array([weight]), row.view((1,), self.group.size + 1))

    def _weighed(self, stack: Stack, depth: int, alone: bool) -> Buffer:
        """Return the row just computed times the stack's weight, in the memory for nodes at this depth."""
        weight = stack.weight
        if weight != 1.0:
            return self.backend.launch(scale, self.row, factor=weight, into=self._row(depth))
        return self.row if alone else self.backend.launch(copy, self.row, into=self._row(depth))

    def _added(self, left: Buffer, right: Buffer) -> Buffer:
        result: Buffer = self.backend.launch(add, left, right, into=left)
        return result

    def collect(self) -> list[Node]:
        """Wait for the sums that `run` started and return them, valid until the next `run`."""
        nodes = self._tree.nodes
        if not nodes:
            return []
        if len(nodes) == 1:
            start, count, row = nodes[0]
            return [(start, count, self.backend.look(row))]
        rows: list[Array] = []
        for _, side_by_side in groupby((row for _, _, row in nodes), lambda row: row.block):  # node i is in row i
            first, *others = side_by_side
            rows.extend(self.backend.look(first.view((1 + len(others), first.size))))
        return [(start, count, row) for (start, count, _), row in zip(nodes, rows, strict=True)]

    def loss_of(self, sample: Tree) -> float:
        """Return the loss of a sample or stack in the model's current mode; waits for the device."""
        with ag_device(self.device), no_grad():
            return float(self._loss_of(self.model, self._here(sample)).item())

    def _here(self, sample: Tree) -> Tree:
        """Move the tensors of a sample to this device."""
        if any(isinstance(x, Tensor) and x.device != self.device for x in tree_leaves(sample)):
            return tree_map(lambda x: ag_tensor(x, self.device) if isinstance(x, Tensor) else x, sample)
        return sample

    def _gradients(self, sample: Tree, weight: float = 1.0) -> None:
        """Write the gradients and the loss of a sample or stack to `row`."""
        self.buffers.begin()
        with ag_device(self.device), with_grad_tape():
            loss = self._loss_of(self.model, self._here(sample))
            if not isinstance(loss, Tensor):
                raise TypeError(f"dp_train: the loss is a {type(loss).__name__}; loss_fn (or forward_fn, without "
                                f"loss_fn) must return a tensor of one element.")
            if weight != 1.0:
                loss = ag_scale(loss, weight)
        grads = backward(loss)
        used = {name: grads[p] for name, p in self.params.items() if p in grads}
        if len(used) < len(grads):
            refuse_untrained(self.model, self.params, "dp_train")
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
        """Add a step to the report: samples, time, and time waiting for the last replica."""
        self._shard = samples
        self._samples += samples
        self._elapsed_s += elapsed_s
        self._wait_s += wait_s
        self.clock.note(samples)

    def report(self) -> dict[str, Any]:
        """Return this replica's part of `DPResult.report`."""
        timed = self.backend.timestamps
        compute_s = self.clock.seconds if timed else self._elapsed_s
        return {"replica": self.index, "device": self.device, "driver": self.backend.info.driver,
                "samples": self._samples, "shard": self._shard, "clock": "device" if timed else "host",
                "compute_ms": compute_s * 1e3, "elapsed_ms": self._elapsed_s * 1e3, "wait_ms": self._wait_s * 1e3}

    def begin_anew(self) -> None:
        """Reset the model's buffers, and the row: zeros everywhere (clears NaN in the padding), weight 1."""
        self.backend.upload(np.zeros(self.row.shape, np.float32), self.row)
        self._count(self.row, 1.0)
        self.buffers.begin()

    def settle(self) -> None:
        """Discard an interrupted step, except for weights and buffers."""
        self._tree, self.counted = TreeSum(self._added), 0
        self.plans.clear()
        for p in self.params.values():
            p.grad = None

    def close(self) -> None:
        """Release the captured steps, whose functions hold the replica, and its memory."""
        self.plans.clear()

    def not_finite(self, row: Array) -> str:
        """Name the first value in a row that is not finite."""
        name = _not_finite(self.params, self.group.offsets, row)
        if name is None and np.isfinite(row[self.group.size]):
            moved = row[self.group.size + LOSS_WORDS :]
            return f"buffer {_not_finite(self.buffers.tensors, self.buffers.offsets, moved)}"
        return "the loss" if name is None else f"the gradient of {name}"

    def parameter_at(self, i: int) -> str:
        """Name the parameter that has element `i` of the flat layout."""
        return max((start, name) for name, start in self.group.offsets.items() if start <= i)[1]

    def load(self, weights: Array | None, buffers: Array) -> None:
        """Overwrite parameters (unless None) and buffers, given in the flat layout; does not wait."""
        self.group.adopt(keep=False)
        if weights is not None:
            self.backend.upload(weights, self.group.values)
            self.group.store()
        self.buffers.load(buffers)

    def changed_since(self, time: int) -> bool:
        """Return whether parameters or buffers were set after `time` (`ag.engine.arena.now`)."""
        return self.group.changed_since(time) or self.buffers.changed_since(time)

    def followed(self) -> tuple[Array, Array]:
        """Return weights and buffers that a callback may have set, in flat layouts; waits for the device."""
        self.group.adopt()
        self.group.take_changes()
        return self.backend.download(self.group.values), self.buffers.followed()

    def scale_gradients(self, scale: float | None) -> None:
        """Use this loss scale from now on; None changes nothing."""
        if scale is None:
            return
        if self._scaling is None:
            self._scaling = LossScale((), [self.backend])
        self._scaling.claim(self.params.values())  # a callback's optimizer may have adopted them
        if scale != self._scale:
            self._scaling.set(scale)
        self._scale = scale

    def state(self) -> tuple[Array, Array]:
        """Return parameters and buffers in their flat layouts; waits for the device."""
        return (self.backend.download(self.group.values), self.buffers.read())


def _not_finite(tensors: dict[str, Tensor], offsets: dict[str, int], flat: Array) -> str | None:
    """Name the first tensor that is not finite in a flat array."""
    return next((name for name, x in tensors.items()
                 if not np.isfinite(flat[offsets[name] : offsets[name] + x.size]).all()), None)
