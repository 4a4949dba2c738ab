"""One replica of a model on one device: gradients of its samples, summed; weights in.

All parameters are one flat buffer.  A row holds all gradients, the loss and its weight, and the movements of buffers:

    row     | gradient of W1 | of b1 | ... | loss, 1 . . | movement of running_mean | of running_var |
    in      | weights |   | buffers |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import is_
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.half import LossScale
from ag.autograd.tape import backward, no_grad, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree, take_over, tree_flatten, tree_leaves, tree_map
from ag.capture.step import CapturedStep, CrowdedError
from ag.engine.backend import Backend, Meter
from ag.engine.buffer import Buffer
from ag.engine.device import ag_device, backend_of
from ag.engine.dtype import DType
from ag.engine.interpreter import recording_here
from ag.engine.kernels.elementwise import add, copy, scale, sub
from ag.engine.primitive import Array
from ag.engine.random import Streams, set_stream
from ag.errors import CaptureError, CommError
from ag.log import log
from ag.nn.layer import Model, buffers_of, load_into
from ag.ops.arithmetic import ag_scale
from ag.optim.flat import FlatGroup, flat_groups, named_parameters
from ag.optim.optimizer import refuse_untrained
from ag.parallel.comm.tree_reduction import Node, TreeSum
from ag.parallel.trainer.samples import Numbers, Stack

LossOf = Callable[[Model, Tree], Tensor]  # (model, sample) -> loss
MakeModel = Callable[[], Model]
LOSS_WORDS = 4  # behind the gradients: the loss and its weight, padded to 16 bytes
_ROWS, _ROWS_BYTES = 8, 4 << 20  # rows that are adjacent, so that one transfer brings several, and their bytes at most
METERED_EVERY = 16  # steps
_KINDS = 32  # of samples with captured steps, per replica; yet others are passed eagerly
_RECORDED = 6  # times that a kind of samples is recorded, if no more are replayed


class CapturePolicy:
    """A switch for captured steps; "auto" turns it off at the first step that cannot be captured."""

    def __init__(self, wanted: bool | str) -> None:
        self.on = bool(wanted)
        self.must = wanted is True  # a step that cannot be captured is an error
        self._out = False
        self._one = Lock()  # replicas call from their device's thread, and a warning is logged once

    def refused(self, error: Exception) -> None:
        """Continue uncaptured and log why; with ``capture=True``, raise `error`."""
        if self.must:
            raise error
        with self._one:
            on, self.on = self.on, False
        if on:
            log.warning("dp_train: steps run uncaptured, which is slower: %s", error)

    def ran_out(self) -> None:
        """Log once that samples are of too many kinds to keep a program for each."""
        with self._one:
            out, self._out = self._out, True
        if not out:
            log.warning("dp_train: the samples have more than %d different shapes or numbers in them; from the next "
                        "on they run uncaptured, which is slower. Give numbers that differ as arrays.", _KINDS)


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
                                f"a model needs forward(x) and parameters(), such as ag.nn.Linear(4, 3), or as "
                                f"types.SimpleNamespace(forward=..., parameters=...) has them.")
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
        self._policy, self._streams = policy, Streams(self.backend)
        # A function of this module, as attributes of what a method belongs to would be guarded.
        self._captured: CapturedStep[[Tree], None] = CapturedStep(
            lambda sample: self._once(sample), self.backend, calls=(loss_of, getattr(self.model, "forward", None)),
            trial=not policy.must, kinds=_KINDS)
        self._sample: Tree = None  # that is passed now, as it was given
        self._begin_capture()
        self.buffers = ReplicaBuffers(self.model, self.backend, self.group.dtype)
        ahead = self.group.size + LOSS_WORDS
        self.row = self.backend.zeros((ahead + self.buffers.size,), self.group.dtype)  # of the stack passed last
        self._grad_views = self.group.split(self.row)
        self._loss_view = self.row.view((), self.group.size)
        self._moved_view = self.row.view((self.buffers.size,), ahead)
        self._rows: list[Buffer] = []  # for the nodes of the tree
        self._memory: dict[int, tuple[Buffer, Array]] = {}  # of rows, where it is the host's
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
        self.collected = self.collect()
        self.ended = perf_counter()

    def start_and_finish(self) -> None:
        """Do both, on a synchronous device, which computes in the thread that launches."""
        self.start()
        self.finish()

    def run(self, stacks: Sequence[Stack], first: int, draws: int | None) -> None:
        """Start computing the summed gradients of stacks; `first` were before, and each takes `draws` streams."""
        done, self.counted = self.counted, 0
        if not done:
            self._tree = TreeSum(self._added)
        for stack in stacks[done:]:
            self._pass(stack, stack.streams(first, draws), len(stacks) == 1)
        if self.backend.asynchronous:
            self.backend.submit()

    def count(self, stack: Stack) -> None:
        """Compute the first stack of the job; `run` goes on behind it.  `drawn` is how many streams it took."""
        self._tree = TreeSum(self._added)
        self._pass(stack, stack.streams(0, None), False)
        self.counted = 1

    def _pass(self, stack: Stack, streams: Numbers, alone: bool) -> None:
        """Add the row of a stack to the tree; `alone`: the step has no other."""
        if stack.passes:
            self._compute(stack.together, streams)
            row = self._weighed(stack, len(self._tree.nodes), alone)
        else:
            row = self._sum_of(stack)
        self._tree.push(stack.place, stack.parts, row)

    # -------------------------------------------------------------------------------------- a sample

    @property
    def drawn(self) -> int:
        """Return how often the last sample has drawn random numbers."""
        return self._streams.drawn

    def _begin_capture(self) -> None:
        """Count anew what is recorded and replayed."""
        self._draws = 0  # of random numbers in a call, at most
        self._replayed = self._recorded = self._completed = 0  # calls; the last are recorded ones that were finished

    def _compute(self, sample: Tree, numbers: Numbers) -> None:
        """Write the gradients of a sample, which draws from these streams, to `row`."""
        if not self._policy.on:
            self._eagerly(sample, numbers)
            return
        self._sample, recorded, completed = sample, self._recorded, self._completed
        try:
            self._streams.prepare(*numbers, self._draws)
            self._captured.result((sample,))
        except CrowdedError:
            self._policy.ran_out()
            self._eagerly(sample, numbers)
            return
        except (CaptureError, TypeError) as error:  # C code raises TypeError for a placeholder where it needs an array
            if self._captured.replayed or (isinstance(error, TypeError) and self._policy.must):
                raise  # earlier replays may have been wrong
            self._policy.refused(error)
            if self._completed == completed:  # otherwise the call was complete, and only cannot be replayed
                self._eagerly(sample, numbers)
            return
        if self._recorded == recorded:
            self._replayed += 1
            return
        self._draws = max(self._draws, self._streams.drawn)
        if self._recorded > max(_RECORDED * max(1, self._captured.kinds), self._replayed):
            self._policy.refused(CaptureError(
                "dp_train: the callback, the data or the functions of the job change what the functions read, such as "
                "an attribute of the model, so a step had to be recorded again and again; pass what changes as part "
                "of the samples."))

    def _eagerly(self, sample: Tree, numbers: Numbers) -> None:
        self._streams.prepare(*numbers, 0)
        with self._streams.counted():
            self._gradients(self._here(sample))

    def _once(self, sample: Tree) -> None:
        """Write the gradients of a sample to `row` where Python runs: what the captured step records."""
        if recording_here() is None:
            with self._streams.counted():
                self._gradients(self._here(sample))
            return
        self._recorded += 1
        leaves, structure = tree_flatten(sample)
        with self._streams.counted():
            self._gradients(sample)
        self._completed += 1
        now, changed = tree_flatten(sample)
        if changed != structure or not all(map(is_, now, leaves)):
            take_over(self._sample, sample, dict(zip(map(id, leaves), tree_flatten(self._sample)[0], strict=True)))
            raise CaptureError("dp_train: a function of the job changes lists or dicts in its samples, and a replay "
                               "would not; keep what changes elsewhere.")

    def _sum_of(self, stack: Stack) -> Buffer:
        """Return the row of a stack whose samples are passed one by one and added up in their own tree."""
        inner: TreeSum[Buffer] = TreeSum(self._added)
        for one in stack.one_by_one():
            self._compute(one.together, one.streams(0, 0))
            inner.push(one.place, 1, self._weighed(one, len(self._tree.nodes) + len(inner.nodes), False))
        return inner.total()

    def gradients_of(self, stack: Stack, stream: int) -> Buffer:
        """Return the row of one stack, uncaptured, weighed before the backward pass: others exchange values with it."""
        set_stream(self.backend, stream)
        weight = stack.weight
        self._gradients(self._here(stack.together), weight)
        row: Buffer = self.backend.launch(copy, self.row)
        if weight != 1.0:
            moved = row.view((self.buffers.size,), self.group.size + LOSS_WORDS)
            if self.buffers.size:
                self.backend.launch(scale, moved, factor=weight, into=moved)
            self._count(row, weight)
        return row

    def add_up(self, rows: Sequence[tuple[Stack, Buffer]]) -> None:
        self._tree = TreeSum(self._added)
        for stack, row in rows:
            into = self._row(len(self._tree.nodes))
            self._tree.push(stack.place, stack.parts, self.backend.launch(copy, row, into=into))

    def _row(self, depth: int) -> Buffer:
        while len(self._rows) <= depth:
            count = min(max(1, _ROWS_BYTES // self.row.nbytes), _ROWS)
            rows = self.backend.alloc((count, self.row.size), self.group.dtype)
            self._rows += [rows.view((self.row.size,), i * self.row.size) for i in range(count)]
        return self._rows[depth]

    def _count(self, row: Buffer, weight: float) -> None:
        self.backend.upload(np.array([weight]), row.view((1,), self.group.size + 1))

    def _weighed(self, stack: Stack, depth: int, alone: bool) -> Buffer:
        """Return the row just computed times the stack's weight, in the memory for nodes at this depth."""
        weight = stack.weight
        if weight == 0.0:  # what counts nothing may be NaN
            zeros = self.backend.zeros(self.row.shape, self.row.dtype)
            return self.backend.launch(copy, zeros, into=self._row(depth))
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
            if (found := self._memory.get(id(row))) is None:
                found = row, self.backend.look(row)
                if not self.backend.asynchronous:
                    self._memory[id(row)] = found
            return [(start, count, found[1])]
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
        if any(isinstance(x, Tensor) and x.device != self.device for x in tree_leaves(sample)):
            return tree_map(lambda x: ag_tensor(x, self.device) if isinstance(x, Tensor) else x, sample)
        return sample

    def _gradients(self, sample: Tree, weight: float = 1.0) -> None:
        """Write the gradients and the loss of a sample or stack to `row`."""
        self.buffers.begin()
        with ag_device(self.device), with_grad_tape():
            loss = self._loss_of(self.model, sample)
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
        self._captured.close()
        self._begin_capture()
        for p in self.params.values():
            p.grad = None

    def close(self) -> None:
        self._captured.close()

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
        return (self.backend.download(self.group.values), self.buffers.read())


def _not_finite(tensors: dict[str, Tensor], offsets: dict[str, int], flat: Array) -> str | None:
    return next((name for name, x in tensors.items()
                 if not np.isfinite(flat[offsets[name] : offsets[name] + x.size]).all()), None)


class ReplicaBuffers:
    """The buffers of a replica's model that samples may move: of the gradients' type, and not with infinities."""

    def __init__(self, model: Model, backend: Backend, dtype: DType) -> None:
        self._model = model
        self._backend = backend
        self.tensors: dict[str, Tensor] = {}
        for name, x in buffers_of(model).items():
            held = x.buffer.backend is backend and x.buffer.dtype is dtype and np.isfinite(x.numpy()).all()
            if held and not any(x is other for other in self.tensors.values()):
                self.tensors[name] = x
        self.size, self.offsets = 0, dict[str, int]()
        self._start: Buffer | None = None  # values at the begin of every sample
        if self.tensors:
            group = FlatGroup(self.tensors)
            self.size, self.offsets = group.size, group.offsets
            self._values = group.values
            self._views = group.split(group.values)
            self._start = group.zeros()
            backend.assign(self._start, self._values)

    def begin(self) -> None:
        """Reset the model's buffers to those of the begin of the step."""
        self.go_on(self._start)

    def end(self, into: Buffer) -> None:
        """Write the movement of the buffers since `begin` to a flat buffer."""
        if self._start is not None:
            self._bind(keep=True)
            self._backend.launch(sub, self._values, self._start, into=into)

    def set_aside(self) -> Buffer | None:
        if not self.tensors:
            return None
        self._bind(keep=True)
        aside: Buffer = self._backend.launch(copy, self._values)
        return aside

    def go_on(self, aside: Buffer | None) -> None:
        if aside is not None:
            self._bind(keep=False)
            self._backend.launch(copy, aside, into=self._values)

    def _bind(self, keep: bool) -> None:
        """Rebind buffers that a layer has replaced to the flat buffer, with their values (`keep`) or those there."""
        current = buffers_of(self._model)
        for name, view in self._views.items():
            x = current.get(name)
            if x is not None and x.buffer is not view:
                if keep:
                    self._backend.launch(copy, x.buffer, into=view)
                x.rebind(view)

    def load(self, values: Array) -> None:
        """Start the next step with these values; does not wait."""
        if self._start is not None:
            self._backend.upload(values, self._start)
            self.begin()

    def changed_since(self, time: int) -> bool:
        """Return whether a buffer was set after `time` (`ag.engine.arena.now`)."""
        if self._start is None:
            return False
        current = buffers_of(self._model)
        return self._values.changed_since(time) or any(
            name in current and current[name].buffer is not view for name, view in self._views.items())

    def followed(self) -> Array:
        """Return `read` with what a callback has set."""
        if self.tensors:
            self._bind(keep=True)
        return self.read()

    def read(self) -> Array:
        """Return the values of all buffers in the flat layout; waits for the device."""
        return self._backend.download(self._values) if self.tensors else np.zeros(0, np.float32)

    def named(self, values: Array) -> dict[str, Array]:
        """Return values in the flat layout by the names of the buffers."""
        return {name: values[self.offsets[name] :][: x.size].reshape(x.shape) for name, x in self.tensors.items()}

    def restored(self, state: Mapping[str, Array]) -> Array:
        """Load what `named` returned, and return it; a CheckpointError says where names or shapes differ."""
        load_into(self.tensors, state, source="dp_train: the checkpoint")
        return self.followed()


class DeviceClock:
    """Estimates a replica's device time from some steps, as timestamps cost up to 20 % of a small one."""

    def __init__(self) -> None:
        self.seconds = self._per_sample = 0.0  # of all steps; of the last timed one
        self._meter = Meter()
        self._steps = 0

    @property
    def meter(self) -> Meter | None:
        """Return the meter of the current step; None if it is not timed."""
        return self._meter if self._steps < 2 or self._steps % METERED_EVERY == 0 else None

    def note(self, samples: int) -> None:
        """End a step; one without samples does not count."""
        if not samples:
            return
        if self.meter is not None:
            self._per_sample = self._meter.seconds / samples
            self._meter.seconds = 0.0
        self.seconds += samples * self._per_sample
        self._steps += 1
