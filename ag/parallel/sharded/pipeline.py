"""Layers one after the other on several devices: `ModelParallel`, of which one works at a time, and `Pipeline`.

Automatic placement cuts where the fullest device has most room left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any, NamedTuple

from ag.autograd.tape import backward, no_grad, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree
from ag.engine.buffer import Buffer
from ag.engine.device import ag_device, backend_of, default_devices
from ag.engine.shape import along
from ag.errors import ArenaError, ShapeError
from ag.nn.layer import Layer, state_of
from ag.nn.sequential import Sequential
from ag.ops.arithmetic import ag_add, ag_mul
from ag.ops.creation import ag_to_device
from ag.ops.reduce import ag_sum
from ag.parallel.comm.tensor_collectives import moved, scatter, sizes_along

__all__ = ["ModelParallel", "Pipeline"]

Layers = Sequence[Layer] | Mapping[str, Layer] | Sequential
DeviceMap = str | Sequence[str] | Mapping[str | int, str]

_COPIES = 4  # of a parameter: its values, its gradient, and two moments of Adam


class ModelParallel(Layer):
    """Layers one after the other on several devices, for models that are too large for one.

    Only one device works at a time; `Pipeline` keeps all busy.
    Reference: ML Odyssey ``ModelParallel``; Hugging Face Accelerate ``device_map="auto"``.

    Parameters
    ----------
    layers : sequence of Layer, dict of str to Layer, or ag_sequential
        Moved to their devices.  A layer may return a tuple of tensors, which the next one gets as arguments.
    device_map : sequence of str, dict, or "auto", optional
        The device of each layer; in a dict, by the layer's name or its number, a layer that is not named being where
        the one before is.  "auto" measures what the layers need and what the devices have.
    devices : sequence of str, optional
        For "auto": which to use, in order; default: the device that `ag_device` was given, else every card.
    budgets : dict of str to int, optional
        For "auto": how many bytes may be used of a device; default: what is free.
    sample : Tensor, or tuple of them, optional
        For "auto": a batch, so that what layers keep for the backward pass is counted, beside parameters, gradients
        and two moments.

    Raises
    ------
    ValueError, TypeError
        If there is no layer, or `device_map` does not give each layer, and no other, a device.
    ArenaError
        If the layers do not fit, with the bytes that are needed and the bytes that are free.

    Examples
    --------
    >>> import ag
    >>> model = ag.ModelParallel([ag.ag_linear(2, 3), ag.ag_linear(3, 1)], ["cpu", "cpu:1"])
    >>> model.devices, model(ag.ag_tensor([[1.0], [2.0]])).device
    (['cpu', 'cpu:1'], 'cpu:1')
    """

    def __init__(self, layers: Layers, device_map: DeviceMap = "auto", devices: Sequence[str] | None = None,
                 budgets: Mapping[str, int] | None = None, sample: Tree = None) -> None:
        named = _named(layers)
        self.layers = list(named.values())
        if isinstance(device_map, str):
            if device_map != "auto":
                raise ValueError(f"ModelParallel: device_map is {device_map!r}; it must be 'auto', or give each layer "
                                 f"a device.")
            self.devices = _automatic(self.layers, devices, budgets, sample)
        else:
            self.devices = _mapped(list(named), device_map)
        for layer, device in zip(self.layers, self.devices, strict=True):
            layer.to(device)

    def children(self) -> dict[str, Layer]:
        """Layers by name: ``layer1``, ``layer2``, …"""
        return {f"layer{i}": layer for i, layer in enumerate(self.layers, 1)}

    def replace_devices(self, instead: Mapping[str, str]) -> None:
        """Replace failed devices."""
        self.devices = [instead.get(name, name) for name in self.devices]

    def forward(self, *x: Tree) -> Tree:
        """Return the last layer's output, on its device."""
        out: Tree = x
        for layer, device in zip(self.layers, self.devices, strict=True):
            held = next(iter(state_of(layer).values()), None)
            here = device if held is None else held.device  # elsewhere in a replica
            with ag_device(here):
                out = layer(*moved(out if isinstance(out, tuple) else (out,), here))
        return out


def _named(layers: Layers) -> dict[str, Layer]:
    if isinstance(layers, Sequential):
        layers = list(layers)
    named = dict(layers) if isinstance(layers, Mapping) else {str(i): layer for i, layer in enumerate(layers)}
    if not named:
        raise ValueError("ModelParallel: layers is empty; at least one layer is required.")
    device = next((layer for layer in named.values() if isinstance(layer, str)), None)
    if device is not None:
        raise TypeError(f"ModelParallel: {device!r} is among the layers; layers come first and their devices second, "
                        f"as in ModelParallel(layers, device_map).")
    return named


def _mapped(names: list[str], device_map: Sequence[str] | Mapping[str | int, str]) -> list[str]:
    if not isinstance(device_map, Mapping):
        if len(device_map) != len(names):
            raise ValueError(f"ModelParallel: device_map has {len(device_map)} devices for {len(names)} layers; give "
                             f"one for each.")
        return [backend_of(device).name for device in device_map]
    mapped = {str(name): device for name, device in device_map.items()}
    unknown = [name for name in mapped if name not in names]
    if unknown or names[0] not in mapped:
        what = f"names {', '.join(unknown)}" if unknown else f"leaves out the first layer, {names[0]}"
        raise ValueError(f"ModelParallel: device_map {what}; the layers are {', '.join(names)}; it has the device of "
                         f"each layer, as in {{{names[0]!r}: 'cpu'}}.")
    devices: list[str] = []
    for name in names:
        devices.append(backend_of(mapped[name]).name if name in mapped else devices[-1])
    return devices


def _automatic(layers: list[Layer], devices: Sequence[str] | None, budgets: Mapping[str, int] | None,
               sample: Tree) -> list[str]:
    names = [backend_of(device).name for device in devices or default_devices()]
    for layer in layers:
        layer.to("cpu")
    needs = [need.total for need in measured(layers, sample, _COPIES)]
    return [names[i] for i in place(needs, free_bytes(names, budgets), names)]


class LayerNeed(NamedTuple):
    """Bytes that a layer needs: `state` for parameters, gradients and moments; `activations` for the backward pass."""

    state: int
    activations: int

    @property
    def total(self) -> int:
        return self.state + self.activations


def measured(layers: Sequence[Layer], sample: Tree, copies: int) -> list[LayerNeed]:
    """Return what layers on the CPU need: `copies` of each parameter, and the activations of `sample`, if given."""
    states = [sum(t.buffer.nbytes * (copies if t.requires_grad else 1) for t in state_of(layer).values())
              for layer in layers]
    if sample is None:
        return [LayerNeed(state, 0) for state in states]
    arena, needs = backend_of("cpu").arena, []
    with ag_device("cpu"), with_grad_tape():
        x = sample if isinstance(sample, tuple) else (sample,)
        with no_grad():
            x = tuple(Tensor(ag_to_device(t, "cpu").buffer, True) if isinstance(t, Tensor) else t for t in x)
        results = []
        for layer, state in zip(layers, states, strict=True):
            before = arena.stats().live
            out = layer(*x)
            needs.append(LayerNeed(state, arena.stats().live - before))
            x = out if isinstance(out, tuple) else (out,)
            results.append(x)  # as the backward pass would
    return needs


def free_bytes(devices: Sequence[str], budgets: Mapping[str, int] | None) -> list[int]:
    """Return the free memory of each device, at most its budget."""
    free_of = []
    for name in devices:
        backend = backend_of(name)
        free = backend.info.memory_bytes - backend.arena.stats().reserved
        free_of.append(free if budgets is None else min(free, budgets.get(name, free)))
    return free_of


def place(needs: Sequence[int], free: Sequence[int], devices: Sequence[str]) -> list[int]:
    """Return the number of each layer's device; an ArenaError says what does not fit."""
    if sum(needs) <= free[0]:
        return [0] * len(needs)
    starts = [0, *accumulate(needs)]
    # Dynamic programming: with n layers on the devices so far, how full the fullest is, and how many layers each has.
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for room in free:
        longer: dict[int, tuple[float, list[int]]] = {}
        for begin, (fullest, counts) in best.items():
            for end in range(begin, len(needs) + 1):
                load = starts[end] - starts[begin]
                if load > room:
                    break
                fill = max(fullest, load / max(1, room)), [*counts, end - begin]
                longer[end] = min(longer.get(end, fill), fill)
        best = longer
    if len(needs) not in best:
        rooms = ", ".join(f"{room:,} on {device}" for device, room in zip(devices, free, strict=True))
        raise ArenaError(f"ModelParallel: the layers need {sum(needs):,} bytes, the largest {max(needs):,}; there are "
                         f"{rooms}. Give more devices, cut layers up, or use smaller batches.")
    return [device for device, count in enumerate(best[len(needs)][1]) for _ in range(count)]


LossFn = Callable[[Any, Any], Tensor]  # (output, targets) -> loss


class Pipeline(Layer):
    """Stages on devices, through which micro-batches pass by a schedule.

    `step` gives the gradients of the unsplit model.  Batch norm sees a micro-batch at a time.  A stage may itself be
    `DataParallel` or tensor parallel.
    Reference: Huang et al., "GPipe"; Narayanan et al., "PipeDream" (1F1B); PyTorch ``torch.distributed.pipelining``.

    Parameters
    ----------
    stages : sequence of Layer
        Called one after the other.  A stage may return a tuple of tensors, which the next one gets as arguments.
    devices : sequence of str, optional
        Where each stage works; its parameters are moved there.  Default: where they are.
    micro_batches : int, optional
        How many parts a batch is cut into.
    schedule : {"1f1b", "gpipe"}, optional
        "1f1b" holds the results of at most as many micro-batches as there are stages, "gpipe" those of all.
    dim, axis : int, optional
        The axis along which a batch is cut; default -1.

    Raises
    ------
    ValueError
        If there is no stage, not one device per stage, or the schedule is unknown.

    Examples
    --------
    >>> import ag
    >>> pipe = ag.Pipeline([ag.ag_linear(2, 3), ag.ag_linear(3, 1)], ["cpu", "cpu:1"], micro_batches=2)
    >>> print(pipe.table(2))
    stage 0  F0 F1  . B0  . B1
    stage 1   . F0 B0 F1 B1  .
    >>> x, y = ag.ag_tensor([[1.0, 2.0], [3.0, 4.0]]), ag.ag_tensor([[1.0, 0.0]])
    >>> pipe.step(x, y, ag.ag_mse_loss).shape
    ()
    """

    def __init__(self, stages: Sequence[Layer], devices: Sequence[str] | None = None, micro_batches: int = 4,
                 schedule: str = "1f1b", dim: int = -1, *, axis: int | None = None) -> None:
        if not stages or (devices is not None and len(devices) != len(stages)) or micro_batches < 1:
            raise ValueError(f"Pipeline: there are {len(stages)} stages, devices are {devices} and micro_batches is "
                             f"{micro_batches}; at least one stage, a device for each, and one micro-batch are "
                             f"required.")
        if schedule not in SCHEDULES:
            raise ValueError(f"Pipeline: schedule is {schedule!r}; it must be one of {', '.join(SCHEDULES)}.")
        self.stages = list(stages)
        self.micro_batches, self.schedule, self.dim = micro_batches, schedule, along("Pipeline", dim, axis)
        if devices is not None:
            for stage, device in zip(self.stages, devices, strict=True):
                stage.to(device)
        self.devices = [_device_of(stage) for stage in stages] if devices is None else [
            backend_of(device).name for device in devices]

    def replace_devices(self, instead: Mapping[str, str]) -> None:
        """Replace failed devices."""
        self.devices = [instead.get(name, name) for name in self.devices]

    def timetable(self, micros: int) -> Table:
        """Return the timetable for so many micro-batches: one row per tick, one entry per stage."""
        return timetable(SCHEDULES[self.schedule](len(self.stages), micros))

    def table(self, micros: int | None = None) -> str:
        """Return the timetable as text."""
        return shown(self.timetable(self.micro_batches if micros is None else micros))

    def forward(self, x: Tree) -> Tree:
        """Return the last stage's result for a whole batch."""
        for stage, device in zip(self.stages, self.devices, strict=True):
            x = _called(stage, device, tuple(ag_to_device(t, device) for t in _tuple(x)))
        return x

    def step(self, x: Tensor, y: Tree, loss_fn: LossFn) -> Tensor:
        """Make the forward and backward passes of a batch, by the schedule; return the mean loss, on the last device.

        Parameters
        ----------
        x, y : Tensor or array of shape (..., batch), or tuple of them
            What the first stage gets, and the targets.
        loss_fn : callable
            ``loss_fn(output, targets)``: the mean loss of a micro-batch.

        Raises
        ------
        ShapeError
            If `x` and `y` have no batch axis of one size, or are empty.
        """
        sizes = sizes_along((x, y), self.dim)
        if len(sizes) != 1 or 0 in sizes:
            counts = " and ".join(map(str, sorted(sizes))) or "no"
            raise ShapeError(f"Pipeline.step: x and y have {counts} samples; one size of at least 1 is required.")
        (count,) = sizes
        first, last = self.devices[0], self.devices[-1]
        xs, ys = (scatter(z, [device] * self.micro_batches, self.dim) for z, device in ((x, first), (y, last)))
        shares = [max(sizes_along(part, self.dim)) / count for part in ys]
        run = _Run(self, [_tuple(part) for part in xs], ys, shares, loss_fn)
        for tick in self.timetable(len(xs)):
            for stage, work in enumerate(tick):
                if work is not None:
                    run.backward(stage, work.micro) if work.backward else run.forward(stage, work.micro)
                    backend_of(self.devices[stage]).submit()
        return reduce(ag_add, run.losses)


class _Run:
    """A batch on its way through the pipeline: inputs and outputs of stages, by (stage, micro-batch)."""

    def __init__(self, pipe: Pipeline, xs: list[tuple[Tensor, ...]], ys: list[Tree], shares: list[float],
                 loss_fn: LossFn) -> None:
        self._pipe, self._ys, self._shares, self._loss_fn = pipe, ys, shares, loss_fn
        self._end = len(pipe.stages) - 1
        self._inputs: dict[tuple[int, int], tuple[Tensor, ...]] = {(0, m): x for m, x in enumerate(xs)}
        self._outputs: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self._cotangents: dict[tuple[int, int], list[Buffer | None]] = {}  # of outputs, from the stage behind
        self.losses: list[Tensor] = []

    def forward(self, stage: int, micro: int) -> None:
        pipe, device = self._pipe, self._pipe.devices[stage]
        with with_grad_tape(), ag_device(device):
            out = _called(pipe.stages[stage], device, self._inputs[stage, micro])
            if stage == self._end:
                out = ag_mul(self._loss_fn(out, self._ys[micro]), self._shares[micro])
                with no_grad():
                    self.losses.append(Tensor(out.buffer))
        self._outputs[stage, micro] = outputs = _tuple(out)
        if stage < self._end:
            with no_grad():  # the next stage's input is a leaf, whose gradient comes back
                self._inputs[stage + 1, micro] = tuple(
                    Tensor(ag_to_device(t, pipe.devices[stage + 1]).buffer, t.requires_grad) for t in outputs)

    def backward(self, stage: int, micro: int) -> None:
        outputs, inputs = self._outputs.pop((stage, micro)), self._inputs.pop((stage, micro))
        with with_grad_tape(), ag_device(self._pipe.devices[stage]):
            if stage == self._end:
                parts = [outputs[0]] if outputs[0].requires_grad else []
            else:  # a number whose gradient by each output is the cotangent that came back
                cotangents = self._cotangents.pop((stage, micro))
                parts = [ag_sum(ag_mul(t, Tensor(g))) for t, g in zip(outputs, cotangents, strict=True)
                         if g is not None and t.requires_grad]
            total = reduce(ag_add, parts) if parts else None
        if total is not None:
            backward(total)
        if stage > 0:
            before = self._pipe.devices[stage - 1]
            self._cotangents[stage - 1, micro] = [None if t.grad is None else ag_to_device(t.grad, before).buffer
                                                  for t in inputs]


def _called(stage: Layer, device: str, args: tuple[Tree, ...]) -> Tree:
    with ag_device(device):
        return stage(*args)


def _tuple(x: Tree) -> tuple[Tree, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _device_of(stage: Layer) -> str:
    first = next(iter(stage.parameters().values()), None)
    if first is None:
        raise ValueError("Pipeline: a stage has no parameters that tell its device; pass devices.")
    return first.device


# Every forward (F) and backward (B) pass takes one tick.  A column is a tick of two stages with three micro-batches:
#
#     gpipe    stage 0  F0 F1 F2  .  . B2 B1 B0        1f1b     stage 0  F0 F1  . B0 F2 B1  . B2
#              stage 1   . F0 F1 F2 B2 B1 B0  .                 stage 1   . F0 B0 F1 B1 F2 B2  .


class Work(NamedTuple):
    """A pass of one micro-batch through one stage: forward, or backward."""

    backward: bool
    micro: int

    def __str__(self) -> str:
        return f"{'B' if self.backward else 'F'}{self.micro}"


Orders = list[list[Work]]  # per stage
Table = list[list[Work | None]]  # per tick, per stage


def gpipe(stages: int, micros: int) -> Orders:
    """All forward passes, then all backward passes, the last micro-batch first; a stage holds all results."""
    forward = [Work(False, m) for m in range(micros)]
    backward = [Work(True, m) for m in reversed(range(micros))]
    return [forward + backward for _ in range(stages)]


def one_forward_one_backward(stages: int, micros: int) -> Orders:
    """As few forward passes ahead as keep every stage busy, then one backward, one forward, and so on (1F1B)."""
    orders = []
    for stage in range(stages):
        ahead = min(micros, stages - stage)
        order = [Work(False, m) for m in range(ahead)]
        for m in range(micros):
            order.append(Work(True, m))
            if ahead + m < micros:
                order.append(Work(False, ahead + m))
        orders.append(order)
    return orders


SCHEDULES: dict[str, Callable[[int, int], Orders]] = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def timetable(orders: Orders) -> Table:
    """Return the timetable: one row per tick, one entry per stage; no stage waits longer than it must."""
    stages, done = len(orders), [set[Work]() for _ in orders]
    waiting = [list(order) for order in orders]
    table: Table = []
    while any(waiting):
        tick: list[Work | None] = [None] * stages
        for stage, order in enumerate(waiting):
            if order and _is_ready(order[0], stage, done):
                tick[stage] = order.pop(0)
        if not any(tick):
            stuck = ", ".join(f"stage {s} for {order[0]}" for s, order in enumerate(waiting) if order)
            raise ValueError(f"timetable: the stages wait for each other, {stuck}; no order of work ends like this.")
        for stage, work in enumerate(tick):
            if work is not None:
                done[stage].add(work)
        table.append(tick)
    return table


def _is_ready(work: Work, stage: int, done: list[set[Work]]) -> bool:
    if not work.backward:
        return stage == 0 or work in done[stage - 1]
    behind = stage == len(done) - 1 or work in done[stage + 1]
    return behind and Work(False, work.micro) in done[stage]


def shown(table: Table) -> str:
    """The table as text: a row per stage, a column per tick."""
    cells = [[str(work or ".") for work in column] for column in zip(*table, strict=True)]
    width = max(len(cell) for row in cells for cell in row)
    return "\n".join(f"stage {s}  " + " ".join(cell.rjust(width) for cell in row) for s, row in enumerate(cells))
