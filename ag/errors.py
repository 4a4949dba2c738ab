"""The errors of `ag`: an `AgError` each, and the built-in error that a Python user would expect.

A message is one sentence, ``function: what was given; what is required.``, followed by a remedy.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress

from ag.names import Making

__all__ = ["AgError", "ArenaError", "CacheError", "CaptureError", "CheckpointError", "CommError", "DeviceError",
           "DtypeError", "ExportError", "KernelError", "RankLostError", "ShapeError", "TapeError"]


class AgError(Exception):
    """Base class of every error that `ag` defines."""


class ShapeError(AgError, ValueError):
    """Shapes that do not fit together."""


class DtypeError(AgError, TypeError):
    """An element type that a device or an operation cannot handle."""


class DeviceError(AgError, RuntimeError):
    """An unknown, missing or lost device, or tensors on two devices in one operation."""


class TapeError(AgError, RuntimeError):
    """A backward pass over what was not recorded, was already consumed, or was changed since."""


class CaptureError(AgError, RuntimeError):
    """A step that cannot be recorded, or a replay that differs from what was recorded."""


class ArenaError(AgError, MemoryError):
    """Device memory is exhausted, or a constant or a guard word around a block was overwritten."""


class KernelError(AgError, RuntimeError):
    """A kernel that is missing, stale, or does not match its primitive."""


class CommError(AgError, RuntimeError):
    """Replicas or ranks that disagree, or one that did not answer."""


class RankLostError(CommError, RuntimeError):
    """A rank that ended, hangs or cannot be reached; those who are left can go on.

    Attributes
    ----------
    ranks : tuple of int
        Those known to be lost, by their numbers in the group; it may be that only another rank knows.
    """

    __signature__ = Making()

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class CacheError(AgError, RuntimeError):
    """Kept keys and values that do not belong to what a model computes now."""


class CheckpointError(AgError, ValueError):
    """A model or checkpoint file that is truncated, foreign, or does not match the model."""


class ExportError(AgError, ValueError):
    """A model that cannot be written as an ONNX graph."""


def switched_on(variable: str, default: bool = False) -> bool:
    """Return whether a variable of the environment is 1 and not 0; raise DeviceError for another value."""
    text = os.environ.get(variable, "") or str(int(default))
    if text not in ("0", "1"):
        raise DeviceError(f"{variable} is {text!r}; it must be 1 or 0, or not set.")
    return text == "1"


def milliseconds(variable: str) -> float:
    """Return a variable of the environment, 0 if it is not set; raise DeviceError unless it is at least 0."""
    text = os.environ.get(variable, "")
    with suppress(ValueError):
        if (asked := float(text or 0)) >= 0:
            return asked
    raise DeviceError(f"{variable} is {text!r}; it must be a number of milliseconds, such as 100, or not set.")


def compare_names(refusal: str, expected: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]],
                  required: Collection[str] | None = None, others: bool = False) -> None:
    """Raise a CheckpointError that begins with `refusal` unless a state has the expected names and shapes.

    Of the names, `required` may not be missing, by default all.  With `others`, unexpected names are ignored.
    """
    wrong = [f"missing {name}" for name in (expected if required is None else required) if name not in given]
    wrong += [f"unexpected {name}" for name in given if name not in expected and not others]
    wrong += [f"{name} is {given[name]} instead of {shape}"
              for name, shape in expected.items() if name in given and given[name] != shape]
    if wrong:
        raise CheckpointError(f"{refusal}: {', '.join(wrong)}.")
