"""The learning rate schedules of a `dp_train` job: one for each optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from ag.errors import CheckpointError
from ag.optim.optimizer import Optimizer

__all__ = ["RateSchedules"]


class RateSchedules:
    """What `scheduler` makes of each optimizer.

    Parameters
    ----------
    scheduler : callable or None
        ``scheduler(optimizer)``: an object with ``step()``.  None: no schedules.
    optimizers : sequence of Optimizer

    Raises
    ------
    TypeError
        If it makes something else.
    """

    def __init__(self, scheduler: Callable[[Optimizer], Any] | None, optimizers: Sequence[Optimizer]) -> None:
        self._schedules = [scheduler(optimizer) for optimizer in optimizers] if scheduler is not None else []
        for schedule in self._schedules:
            if not hasattr(schedule, "step"):
                raise TypeError(f"dp_train: scheduler(optimizer) returned {schedule!r}; an object with step() is "
                                f"required.")

    def step(self) -> None:
        """Step all."""
        for schedule in self._schedules:
            schedule.step()

    def state(self) -> list[Any]:
        """The state of each; None for those that do not tell it."""
        return [schedule.state_dict() if _has_state(schedule) else None for schedule in self._schedules]

    def restore(self, step: int, states: Sequence[Any]) -> None:
        """Go on after `step` steps: with the states, or by stepping as often where there are none.

        Raises
        ------
        CheckpointError
            If there are states of another number of schedules.
        """
        if states and self._schedules and len(states) != len(self._schedules):
            raise CheckpointError(f"dp_train: the checkpoint holds the state of {len(states)} schedule(s) and the job "
                                  f"has {len(self._schedules)}, one for each optimizer; make as many as before.")
        for schedule, state in zip_longest(self._schedules, states if self._schedules else ()):
            if state is not None and _has_state(schedule):
                schedule.load_state_dict(state)
                continue
            for _ in range(step):
                schedule.step()


def _has_state(schedule: Any) -> bool:
    return hasattr(schedule, "state_dict") and hasattr(schedule, "load_state_dict")
