"""Losses, optimizers and schedules by name, and schedules that are given what they need of the number of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from ag.autograd.tensor import Tensor
from ag.log import log
from ag.ops.loss import ag_bce_with_logits_loss, ag_mse_loss, ag_softmax_cross_entropy_loss
from ag.optim.optimizer import Optimizer
from ag.optim.rules import SGD, Adam, AdamW
from ag.optim.schedule import CosineSchedule, Schedule, StepSchedule, WarmupSchedule

T = TypeVar("T")

LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "cross_entropy": ag_softmax_cross_entropy_loss, "mse": ag_mse_loss, "bce_with_logits": ag_bce_with_logits_loss}
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
