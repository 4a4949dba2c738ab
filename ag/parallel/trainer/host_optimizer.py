"""The optimizers of a training, on the host's copies of the parameters, and their learning rate schedules.

Gradients come in and weights go out as one array in the layout of the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from math import isfinite
from operator import attrgetter
from threading import get_ident
from typing import Any, TypeVar, cast

from ag.autograd.create import ag_param
from ag.autograd.operands import lift
from ag.autograd.tensor import Tensor
from ag.engine.backend import Backend
from ag.engine.buffer import Buffer, copy_on_write, note_written
from ag.engine.compile.pipeline import record
from ag.engine.dtype import BF16, F16, F32
from ag.engine.kernels.convert import narrow
from ag.engine.kernels.elementwise import copy
from ag.engine.primitive import Array
from ag.engine.program import Program
from ag.errors import CheckpointError
from ag.io.checkpoint import Stateful
from ag.log import log
from ag.nn.layer import load_into
from ag.ops.loss import ag_bce_with_logits_loss, ag_mse_loss, ag_softmax_cross_entropy_loss
from ag.ops.losses import huber_loss, l1_loss
from ag.optim.clipping import clip_grad_norm
from ag.optim.flat import FlatGroup
from ag.optim.optimizer import SGD, Adam, AdamW, Optimizer
from ag.optim.schedule import CosineSchedule, Schedule, StepSchedule, WarmupSchedule
from ag.parallel.comm.comm import Json

T = TypeVar("T")
MakeOptimizer = Callable[[dict[str, Tensor]], Optimizer | Sequence[Optimizer]]


@dataclass(frozen=True)
class _Part:
    """An optimizer, and where its parameters lie."""

    optimizer: Optimizer
    group: FlatGroup
    grads: Buffer
    names: dict[str, str]  # of its parameters, by their names in the model
    places: list[tuple[int, int, int]]  # of each: start in the layout of the replicas, start in its own, length

    def to_mine(self, flat: Buffer, mine: Buffer) -> None:
        for there, here, length in self.places:
            flat.backend.launch(copy, flat.view((length,), there), into=mine.view((length,), here))

    def from_mine(self, mine: Buffer, flat: Buffer) -> None:
        for there, here, length in self.places:
            flat.backend.launch(copy, mine.view((length,), here), into=flat.view((length,), there))


class HostOptimizers:
    """All optimizers of a job, which step together on copies of a replica's parameters, in its layout."""

    def __init__(self, replica: FlatGroup, gradient: Buffer, make: MakeOptimizer, max_norm: float, device: str,
                 tells: bool) -> None:
        self.params: dict[str, Tensor] = {}  # the host's copies
        for name, p in replica.params.items():
            self.params[name] = ag_param(p.numpy(), device=device, dtype=p.dtype)
            self.params[name].name = name
        self._names = {p.id: name for name, p in self.params.items()}
        returned = make(dict(self.params))
        self.several = isinstance(returned, Sequence)
        self.optimizers = list(returned) if isinstance(returned, Sequence) else [returned]
        owners = self._owners(returned)
        self._frozen = [name for name in self.params if name not in owners]
        if self._frozen and tells:
            log.warning("dp_train: no optimizer has %s; they keep their values.", ", ".join(self._frozen))
        self._offsets, self._grads = replica.offsets, gradient
        whole = self.optimizers[0].groups[0]
        if len(self.optimizers) == 1 and whole.offsets == self._offsets:
            self.values = whole.values
            self._parts = [self._part(self.optimizers[0], gradient, places=[])]
        else:
            apart = FlatGroup({name: ag_param(p.numpy(), device=device, dtype=p.dtype)
                               for name, p in self.params.items()})
            self.values = apart.values
            self._parts = [self._part(o, o.flat_gradients(o.groups[0])) for o in self.optimizers]
        self._memory: Array = self.values.backend.look(self.values)
        self._trained = {name: p for name, p in self.params.items() if name in owners}
        self._trained_grads = {name: Tensor(self._grads.view(p.shape, self._offsets[name]))
                               for name, p in self._trained.items()}
        self._max_norm = max_norm
        self._used: set[str] = set()
        self._tells = tells
        self._step: Program | None = None
        self._written, self._copies = [self.values], list[Callable[[], Buffer]]()
        self._settings_of: list[Callable[[], object]] = [partial(attrgetter("settings", *(
            name for name in o.settings if name != "lr")), o) for o in self.optimizers]
        self._settings: list[object] = []  # at the time the step was recorded
        self.scaled = whole.stored_dtype is F16  # gradients have a loss scale
        for optimizer in self.optimizers:
            optimizer.restart_loss_scale()

    def made(self) -> dict[str, str]:
        """Describe what a step does, except for the learning rate."""
        return {"max_norm": repr(self._max_norm), "optimizer": ", ".join(
            f"{type(each).__name__}({', '.join(f'{k}={getattr(each, k)!r}' for k in each.settings if k != 'lr')})"
            for each in self.optimizers)}

    def tell_of_unused(self, lr: float) -> None:
        """Log that `lr` of `dp_train` has no effect, where the given optimizers have other rates."""
        rates = [each.lr for each in self.optimizers]
        if self._tells and lr != 1e-3 and lr not in rates:  # the default was not chosen by the caller
            log.warning("dp_train: lr=%r is not used, as optimizer(params) has the rate %s; give it there alone.", lr,
                        ", ".join(map(repr, rates)))

    def _owners(self, returned: object) -> dict[str, Optimizer]:
        """Return the optimizer of every parameter that has one."""
        if not self.optimizers or not all(isinstance(o, Optimizer) for o in self.optimizers):
            raise ValueError(f"dp_train: optimizer(params) returned {returned!r}; an optimizer over parameters from "
                             f"params is required, or several in a list.")
        owners: dict[str, Optimizer] = {}
        for optimizer in self.optimizers:
            for own_name, p in optimizer.params.items():
                name = self._names.get(p.id)
                if name is None:
                    raise ValueError(f"dp_train: the optimizer has a parameter {own_name} that is none of params; "
                                     f"make it with those that optimizer(params) is given.")
                if name in owners:
                    raise ValueError(f"dp_train: parameter {name} is in two optimizers; give it to one of them.")
                owners[name] = optimizer
        return owners

    def _part(self, optimizer: Optimizer, grads: Buffer, places: list[tuple[int, int, int]] | None = None) -> _Part:
        (group,) = optimizer.groups  # all copies are on one device and of one type
        names = {self._names[p.id]: own for own, p in group.params.items()}
        if places is None:
            places = [(self._offsets[name], group.offsets[own], group.params[own].size) for name, own in names.items()]
        return _Part(optimizer, group, grads, names, places)

    def use(self, used: Collection[str], frozen: Collection[str] = ()) -> None:
        """Step only `used` parameters that are not frozen from now on; log the unused ones once."""
        self._used, self._step = {*used}.difference(frozen), None
        unused = [name for name in self.params if name not in used and name not in self._frozen]
        if unused and self._tells:
            log.warning("dp_train: no sample so far uses %s; they keep their values.", ", ".join(unused))
            self._tells = False

    def reach(self, groups: Iterable[FlatGroup]) -> set[FlatGroup]:
        """Let `step` write weights to those groups of replicas, too, whose memory the host reaches; return these."""
        backend, found = cast(Backend, self.values.backend), set[FlatGroup]()
        self._written, self._copies, self._step = [self.values], [], None
        for group in groups:
            values, stored = backend.reached(group.values), backend.reached(group.stored)
            if values is not None and stored is not None:
                found.add(group)
                self._written += group.values, group.stored
                self._copies.append(partial(backend.launch, copy, self.values, into=values))
                if group.stored is not group.values:
                    self._copies.append(partial(backend.launch, narrow, self.values, into=stored,
                                                bfloat=group.stored_dtype is BF16))
        return found

    def step(self) -> None:
        """Clip and step.  The step is recorded once, and replayed until other parameters or settings are used."""
        note_written(*self._written)  # a replay does not note its writes, and the buffers may be lent
        if isfinite(self._max_norm):
            clip_grad_norm(self._trained, self._trained_grads, self._max_norm)
        settings = [of_optimizer() for of_optimizer in self._settings_of]
        if self._step is not None and settings == self._settings:
            self._step.run()
            return
        with record(cast(Backend, self._grads.backend)) as recording:
            for part in self._parts:
                part.to_mine(self._grads, part.grads)
                runs = part.group.runs([own for name, own in part.names.items() if name in self._used])
                part.optimizer.update(part.group, part.grads, runs)
                part.from_mine(part.group.values, self.values)
            for copied in self._copies:
                copied()
        self._step, self._settings = recording.finished(), settings

    def move_loss_scale(self, bad: float) -> None:
        """Update the loss scale of f16 gradients after a step, alike for all optimizers."""
        backend = cast(Backend, self._grads.backend)
        for optimizer in self.optimizers:
            optimizer.move_loss_scale({backend: lift(bad, backend, F32, "dp_train").buffer})

    @property
    def loss_scale(self) -> float | None:
        """Return the factor of gradients stored in f16; None if there are none."""
        return self.optimizers[0].loss_scale

    def take(self, weights: Array) -> None:
        self.values.backend.upload(weights, self.values)
        for part in self._parts:
            part.to_mine(self.values, part.group.values)
            part.group.store()
        for name in self._frozen:
            p = self.params[name]
            p.data = weights[self._offsets[name] : self._offsets[name] + p.size].reshape(p.shape)

    def changed_since(self, time: int) -> bool:
        """Return whether one of the host's copies was set after `time` (`ag.engine.arena.now`)."""
        return any(part.group.changed_since(time) for part in self._parts) or any(
            self.params[name].buffer.changed_since(time) for name in self._frozen)

    def followed(self) -> Array:
        """Return `weights` with what a callback has set in the host's copies."""
        for part in self._parts:
            part.group.adopt()
            part.group.take_changes()
            part.from_mine(part.group.values, self.values)
        self._read_frozen()
        return self.weights()

    def _read_frozen(self) -> None:
        for name in self._frozen:
            p = self.params[name]
            self.values.backend.upload(p.numpy(), self.values.view(p.shape, self._offsets[name]))

    def weights(self) -> Array:
        """Return all float32 parameters in the flat layout; valid until the next step."""
        return self._memory

    def lend(self) -> Callable[[], Array]:
        """Return a function that returns `weights` as they are now; they are copied if they change before."""
        return partial(self.values.backend.look, copy_on_write(self.values, get_ident()))

    def state(self) -> dict[str, Array] | list[dict[str, Array]]:
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        return states if self.several else states[0]

    def load(self, weights: dict[str, Array], states: list[dict[str, Array]], rates: list[float]) -> None:
        """Load parameters, optimizer states and, if they are known, exact learning rates."""
        if len(states) != len(self.optimizers):
            raise CheckpointError(f"dp_train: the checkpoint holds the state of {len(states)} optimizer(s) and "
                                  f"optimizer(params) made {len(self.optimizers)}; make as many as before.")
        load_into(self.params, weights, source="dp_train: the checkpoint")
        for optimizer, state in zip(self.optimizers, states, strict=True):
            settings = optimizer.state_dict().get("settings")
            if settings is not None and state.get("settings", settings).shape == settings.shape:
                state = {**state, "settings": settings}  # the job's settings hold; other shapes are of another kind
            optimizer.load_state_dict(state)
        for optimizer, rate in zip(self.optimizers, rates, strict=False):
            optimizer.lr = rate
        self._read_frozen()
        for part in self._parts:
            part.from_mine(part.group.values, self.values)


class RateSchedules:
    """The schedules that `scheduler` makes, one for each optimizer."""

    def __init__(self, scheduler: Callable[[Optimizer], Any] | None, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._schedules = [scheduler(optimizer) for optimizer in optimizers] if scheduler is not None else []
        for schedule in self._schedules:
            if not hasattr(schedule, "step"):
                raise TypeError(f"dp_train: scheduler(optimizer) returned {schedule!r}; an object with step() is "
                                f"required.")

    def step(self) -> None:
        for schedule in self._schedules:
            schedule.step()

    def made(self) -> dict[str, str]:
        return {"scheduler": ", ".join(type(schedule).__name__ for schedule in self._schedules) or "None"}

    def state(self) -> list[Json]:
        """Return the state of each schedule; None for those without."""
        return [schedule.state_dict() if isinstance(schedule, Stateful) else None for schedule in self._schedules]

    def restore(self, step: int, states: Sequence[Json], rates: Sequence[float]) -> None:
        """Load the states, or step `step` times where there are none; log where the job's rates differ from `rates`."""
        if states and self._schedules and len(states) != len(self._schedules):
            raise CheckpointError(f"dp_train: the checkpoint holds the state of {len(states)} schedule(s) and the job "
                                  f"has {len(self._schedules)}, one for each optimizer; make as many as before.")
        given: list[Json] = self.state() or [{"lr": optimizer.lr} for optimizer in self._optimizers]
        for mine, saved in zip(given, states or [{"lr": rate} for rate in rates], strict=False):
            if isinstance(mine, dict) and isinstance(saved, dict) and mine.get("lr") != saved.get("lr"):
                log.warning("dp_train: lr is %s and the checkpoint's is %s; the job goes on with that.",
                            mine.get("lr"), saved.get("lr"))
        for schedule, state in zip_longest(self._schedules, states if self._schedules else ()):
            if state is not None and isinstance(schedule, Stateful):
                schedule.load_state_dict(state)
                continue
            for _ in range(step):
                schedule.step()


LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "cross_entropy": ag_softmax_cross_entropy_loss, "mse": ag_mse_loss, "bce_with_logits": ag_bce_with_logits_loss,
    "l1": l1_loss, "huber": huber_loss}
OPTIMIZERS: Mapping[str, type[Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": SGD}


def _warmup(optimizer: Optimizer, steps: int) -> WarmupSchedule:
    rise = -(-steps // 10)
    return WarmupSchedule(optimizer, rise, after=CosineSchedule(optimizer, T_max=max(1, steps - rise)))


SCHEDULES: Mapping[str, Callable[[Optimizer, int], Schedule]] = {
    "cosine": lambda optimizer, steps: CosineSchedule(optimizer, T_max=steps),
    "step": lambda optimizer, steps: StepSchedule(optimizer, step_size=-(-steps // 3)),
    "warmup": _warmup}
_LENGTHS = ("T_max", "step_size", "warmup")  # settings that follow from the number of steps
_CLASSES = {CosineSchedule: "cosine", StepSchedule: "step", WarmupSchedule: "warmup"}


def named(function: str, argument: str, table: Mapping[str, T], given: object) -> Any:
    """Return what a name stands for in a table, or what was given instead of one."""
    if not isinstance(given, str):
        return given
    if given not in table:
        raise ValueError(f"{function}: there is no {argument} {given!r}; use {', '.join(map(repr, table))}, or a "
                         f"function.")
    return table[given]


def optimizer_for(function: str, given: object, **settings: float) -> Any:
    """Return a maker of the optimizer; `settings` are those of one that is named, or not given."""
    made = named(function, "optimizer", OPTIMIZERS, "adam" if given is None else given)
    return partial(made, **settings) if given is None or isinstance(given, str) else made


def schedule_for(function: str, given: object, steps: int) -> Any:
    """Return a maker of the schedule; one that is named, or given as its class, is made for so many steps."""
    name = _CLASSES.get(given, given) if isinstance(given, type) else given
    made = named(function, "scheduler", SCHEDULES, name)
    return partial(_spanning, function, made, max(1, steps)) if isinstance(name, str) else made


def _spanning(function: str, make: Callable[[Optimizer, int], Schedule], steps: int, optimizer: Optimizer) -> Schedule:
    """Make a schedule that keeps its length of all steps when it goes on with the state of a shorter or longer one."""
    schedule = make(optimizer, steps)
    load = schedule.load_state_dict

    def go_on(state: Mapping[str, object]) -> None:
        longer = _with_lengths(state, schedule.state_dict()) if isinstance(state, Mapping) else state
        if longer != state:
            log.warning("%s: the checkpoint's schedule was made for another number of steps; it goes on as one of %d "
                        "steps, whose rates differ.", function, steps)
        load(longer)

    vars(schedule)["load_state_dict"] = go_on
    return schedule


def _with_lengths(state: Mapping[str, object], mine: Mapping[str, object]) -> Mapping[str, object]:
    """Return the state of a schedule with the lengths of another, also of one inside."""
    made = dict(state)  # if it is of something else, the schedule says so
    for name, own in mine.items():
        if name in _LENGTHS and type(made.get(name)) is int:
            made[name] = own
        elif isinstance(own, Mapping) and isinstance(inner := made.get(name), Mapping):
            made[name] = _with_lengths(inner, own)
    return made
