"""Learning rate schedules: closed forms `at(k)` of the number of steps taken, written to an optimizer.

To add one: a subclass with settings and `at(k)` here, its ordinary name in `__all__` and in ``ag/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import cos, isfinite, pi
from typing import Any, ClassVar

from ag.errors import CheckpointError
from ag.optim.optimizer import Optimizer
from ag.optim.settings import FRACTION, NOT_NEGATIVE, Check, Settings, flag, steps_taken, whole

__all__ = ["CosineSchedule", "Schedule", "StepSchedule", "WarmupSchedule", "lr_scheduler_cosine", "lr_scheduler_step",
           "lr_scheduler_warmup"]

_MOST = 1 << 53  # steps in a state; the closed forms are exact in them


class Schedule(Settings):
    """Base of the schedules; a subclass defines `at`.

    It starts from `lr`, the optimizer's learning rate when the schedule is made; `steps` counts those taken.

    Examples
    --------
    >>> class Inverse(ag.optim.Schedule):  # lr, lr / 2, lr / 3, ...
    ...     def at(self, steps):
    ...         return self.lr / (1 + steps)
    >>> schedule = Inverse(ag.optim.SGD(ag.nn.Linear(2, 1), lr=0.6))
    >>> [round(schedule.step(), 2) for _ in range(2)]
    [0.3, 0.2]
    """

    _checks: ClassVar[Mapping[str, Check]] = {"lr": NOT_NEGATIVE, "steps": steps_taken}
    _function = "lr_scheduler"
    lr: float
    steps: int

    def __init__(self, optimizer: Optimizer, **settings: object) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{self._function}: optimizer is {optimizer!r}; make one with optimizer_adam.")
        self._optimizer = optimizer
        self._set(**settings, lr=optimizer.lr, steps=0)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer whose learning rate the schedule sets."""
        return self._optimizer

    def at(self, k: int) -> float:
        """The learning rate after `k` steps."""
        raise NotImplementedError(f"{type(self).__name__} does not define at(k)")

    def get_lr(self) -> float:
        """The learning rate of the next optimizer step."""
        return self.at(self.steps)

    def step(self) -> float:
        """Count one step, set the optimizer's learning rate for the next one, and return it."""
        rate = self.at(self.steps + 1)
        self.optimizer.lr = rate
        self.steps += 1
        return rate

    def state_dict(self) -> dict[str, object]:
        """Kind, settings, starting rate and steps taken; plain numbers and strings."""
        return {"kind": type(self).__name__, **{name: getattr(self, name) for name in (*self.settings, "lr", "steps")}}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken, and set the optimizer's learning rate."""
        self._check(state)
        mine = self.state_dict()
        try:
            self._restart(state)
            self.optimizer.lr = self.get_lr()
        except BaseException:  # also an interrupt
            self._restart(mine)
            raise

    def _check(self, state: Mapping[str, object]) -> None:
        mine = self.state_dict()
        if not isinstance(state, Mapping) or set(state) != set(mine):
            raise CheckpointError(f"load_state_dict: the schedule's state is {state!r}; the names "
                                  f"{', '.join(mine)} are required.")
        wrong = [f"{name} is {state[name]!r} instead of {mine[name]!r}" for name in ("kind", *self.settings)
                 if type(state[name]) is not type(mine[name]) or state[name] != mine[name]]
        if wrong:
            raise CheckpointError(f"load_state_dict: the state is of another schedule: {', '.join(wrong)}.")
        lr, steps = state["lr"], state["steps"]
        if type(steps) is not int or not 0 <= steps < _MOST or type(lr) is not float or not (isfinite(lr) and lr >= 0):
            raise CheckpointError(f"load_state_dict: the schedule's state has lr {lr!r} and steps {steps!r}; a rate "
                                  f"and a whole number, both at least 0, are required.")

    def _restart(self, state: Mapping[str, object]) -> None:
        self._set(lr=state["lr"], steps=state["steps"])

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in (*self.settings, "lr", "steps"))
        return f"{type(self).__name__}({shown})"


class StepSchedule(Schedule):
    """Multiply the learning rate by `gamma`, in [0, 1], every `step_size` steps.

    ``step()`` after an optimizer step sets and returns the next rate, ``get_lr()`` returns it.  After k steps it is
    ``lr * gamma ** (k // step_size)``, where ``lr`` is the optimizer's rate now.

    Parameters
    ----------
    optimizer : Optimizer
    step_size : int
    gamma : float, optional

    Examples
    --------
    >>> schedule = ag.lr_scheduler_step(ag.optimizer_sgd([ag.ag_param([[1.0]])], lr=1.0), step_size=2, gamma=0.5)
    >>> [schedule.step() for _ in range(4)]
    [1.0, 0.5, 0.5, 0.25]
    """

    settings = ("step_size", "gamma")
    _checks: ClassVar[Mapping[str, Check]] = {**Schedule._checks, "step_size": whole, "gamma": FRACTION}
    _function = "lr_scheduler_step"
    step_size: int
    gamma: float

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        super().__init__(optimizer, step_size=step_size, gamma=gamma)

    def at(self, k: int) -> float:
        return self.lr * float(self.gamma ** (k // self.step_size))


class CosineSchedule(Schedule):
    """Let the learning rate fall along half a cosine, from the optimizer's to `lr_min`.

    After k steps, k at most `T_max`, the rate is ``lr_min + (lr - lr_min) * (1 + cos(pi * k / T_max)) / 2``: exactly
    ``lr``, the optimizer's rate now, at 0 and exactly `lr_min` at `T_max`.
    Reference: ggmlR ``lr_scheduler_cosine`` (which never reaches `lr_min`); Loshchilov and Hutter, "SGDR: Stochastic
    Gradient Descent with Warm Restarts", equation 5.

    Parameters
    ----------
    optimizer : Optimizer
    T_max : int
    lr_min : float, optional
        At least 0 and at most the optimizer's rate.
    restart : bool, optional
        Begin again at ``lr`` in step ``T_max + 1``, instead of staying at `lr_min`.

    Examples
    --------
    >>> schedule = ag.lr_scheduler_cosine(ag.optimizer_sgd([ag.ag_param([[1.0]])], lr=1.0), T_max=2)
    >>> schedule.get_lr(), round(schedule.step(), 9), schedule.step()
    (1.0, 0.5, 0.0)
    """

    settings = ("T_max", "lr_min", "restart")
    _checks: ClassVar[Mapping[str, Check]] = {
        **Schedule._checks, "T_max": whole, "lr_min": NOT_NEGATIVE, "restart": flag}
    _function = "lr_scheduler_cosine"
    T_max: int
    lr_min: float
    restart: bool

    def __init__(self, optimizer: Optimizer, T_max: int, lr_min: float = 0.0, restart: bool = False) -> None:
        super().__init__(optimizer, T_max=T_max, lr_min=lr_min, restart=restart)

    def _agree(self, values: Mapping[str, float]) -> None:
        if values["lr_min"] > values["lr"]:
            raise ValueError(f"lr_scheduler_cosine: lr_min is {values['lr_min']}; it must be a number between 0 and "
                             f"the optimizer's lr, {values['lr']}.")

    def at(self, k: int) -> float:
        k = k % (self.T_max + 1) if self.restart else min(k, self.T_max)
        if k == 0:
            return self.lr  # the sum below may round
        return self.lr_min + (self.lr - self.lr_min) * ((1 + cos(pi * k / self.T_max)) / 2)


class WarmupSchedule(Schedule):
    """Let the learning rate rise in equal steps to the optimizer's, then follow another schedule.

    The optimizer's rate is lowered at once.  Only this schedule is stepped; `after` counts along.
    Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, section 2.2.

    Parameters
    ----------
    optimizer : Optimizer
    steps : int
        Optimizer steps that the rise takes: the first has ``lr / steps``, the last ``lr``.
    after : schedule, optional
        Made for the same optimizer; its step 0 is the step after the rise.  Default: stay at ``lr``.

    Examples
    --------
    >>> opt = ag.optimizer_sgd([ag.ag_param([[1.0]])], lr=1.0)
    >>> schedule = ag.lr_scheduler_warmup(opt, 2, after=ag.lr_scheduler_step(opt, 1, gamma=0.5))
    >>> schedule.get_lr(), [schedule.step() for _ in range(3)]
    (0.5, [1.0, 1.0, 0.5])
    """

    settings = ("warmup",)
    _checks: ClassVar[Mapping[str, Check]] = {
        **Schedule._checks, "warmup": lambda function, name, value: whole(function, "steps", value)}
    _function = "lr_scheduler_warmup"
    warmup: int

    def __init__(self, optimizer: Optimizer, steps: int, after: Schedule | None = None) -> None:
        super().__init__(optimizer, warmup=steps)
        if after is not None and not (isinstance(after, Schedule) and after.optimizer is optimizer):
            raise ValueError(f"lr_scheduler_warmup: after is {after!r}; make a schedule for this optimizer, or leave "
                             f"it out.")
        self._after = after
        if after is not None:
            self.lr = after.lr
        optimizer.lr = self.get_lr()

    @property
    def after(self) -> Schedule | None:
        """The schedule that follows the rise."""
        return self._after

    def at(self, k: int) -> float:
        if k < self.warmup:
            return self.lr * ((k + 1) / self.warmup)
        return self.lr if self.after is None else self.after.at(k - self.warmup)

    def step(self) -> float:
        rate = super().step()
        if self.after is not None:
            self.after.steps = max(0, self.steps - self.warmup)
        return rate

    def state_dict(self) -> dict[str, object]:
        """Kind, settings, starting rate and steps taken, also of the schedule that follows."""
        return {**super().state_dict(), "after": None if self.after is None else self.after.state_dict()}

    def _check(self, state: Mapping[str, Any]) -> None:
        super()._check(state)
        if self.after is not None:
            self.after._check(state["after"])
        elif state["after"] is not None:
            raise CheckpointError(f"load_state_dict: the state goes on with {state['after']!r} after the rise, and "
                                  f"this schedule with nothing; make it with the same `after`.")

    def _restart(self, state: Mapping[str, Any]) -> None:
        super()._restart(state)
        if self.after is not None:
            self.after._restart(state["after"])


lr_scheduler_step = StepSchedule
lr_scheduler_cosine = CosineSchedule
lr_scheduler_warmup = WarmupSchedule
