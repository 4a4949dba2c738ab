"""Settings: attributes that are checked when they are assigned, alone and beside the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import isfinite, nan
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from ag.autograd.watched import Watched

Check = Callable[[str, str, object], float]  # (function, name, value) -> the value to keep, or ValueError

_LARGEST = float(np.finfo(np.float32).max)  # devices hold settings in float32


def number_or_nan(value: object) -> float:
    """`value` as a float; NaN, which lies in no range, if it is no number."""
    if not isinstance(value, Real) or isinstance(value, (bool, np.bool_)):
        return nan
    try:
        return float(value)
    except OverflowError:
        return nan


def _number(fits: Callable[[float], bool], required: str) -> Check:
    def check(function: str, name: str, value: object) -> float:
        number = number_or_nan(value)
        if not (isfinite(number) and fits(number)):
            raise ValueError(f"{function}: {name} is {_shown(value)}; it must be {required}.")
        return number

    return check


NOT_NEGATIVE = _number(lambda x: 0 <= x <= _LARGEST, "a finite number, 0 or more")
PART = _number(lambda x: 0 <= x < 1, "a number in [0, 1)")
FRACTION = _number(lambda x: 0 <= x <= 1, "a number in [0, 1]")


def whole(function: str, name: str, value: object, least: int = 1) -> int:
    """A whole number of at least `least`."""
    number = number_or_nan(value)
    if not (number.is_integer() and number >= least):
        raise ValueError(f"{function}: {name} is {_shown(value)}; a whole number of at least {least} is required.")
    return int(number)


steps_taken = partial(whole, least=0)


def flag(function: str, name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)) and number_or_nan(value) not in (0.0, 1.0):
        raise ValueError(f"{function}: {name} is {_shown(value)}; True or False is required.")
    return bool(value)


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, Real) else repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def nearest(name: object, names: Iterable[str]) -> str:
    """Name those that may have been meant, for the end of a message."""
    from difflib import get_close_matches  # which takes time to load, and wrong names are rare

    found = get_close_matches(str(name).lower(), list(names), 3, 0.5)
    return f" Did you mean {' or '.join(found)}?" if found else ""


class Settings(Watched):
    """Base of what has settings, whose names `settings` has in the order of the constructor's arguments."""

    settings: tuple[str, ...] = ()
    _function: str  # the name users know it by
    _checks: ClassVar[Mapping[str, Check]] = {}

    def _set(self, **values: Any) -> None:
        """Check and set some settings: all of them, or none."""
        checked = {name: self._checks[name](self._function, name, value) if name in self._checks else value
                   for name, value in values.items()}
        everything = {name: checked[name] if name in checked else getattr(self, name) for name in self._names()
                      if name in checked or name in vars(self)}
        self._agree(everything)
        self._use(everything)
        for name, value in checked.items():
            super().__setattr__(name, value)

    def _names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.settings, *self._checks)))

    def _agree(self, values: Mapping[str, float]) -> None:
        """Refuse settings that do not go together."""

    def _use(self, values: Mapping[str, float]) -> None:
        """Let the settings take effect."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in self._names():
            self._set(**{name: value})
        elif name.startswith("_") or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            raise AttributeError(f"{self._function}: {name!r} was assigned, and there is no such setting; there are "
                                 f"{', '.join(self._names())}.{nearest(name, self._names())}")

    def __delattr__(self, name: str) -> None:
        if name in self._names():
            raise AttributeError(f"{self._function}: {name!r} was deleted, and it is needed; assign another value.")
        super().__delattr__(name)
