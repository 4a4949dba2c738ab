"""The errors of `ag`: one family, so that ``except ag.AgError`` catches all of them.

Each class also derives from the built-in error a Python user would expect (a wrong shape is a ``ValueError``, a
full arena a ``MemoryError``).  A message is one sentence, ``function: what was given; what is required.``, followed
by what to do.  This module knows nothing else of `ag`; every other module may import it.
"""

from __future__ import annotations

__all__ = [
    "AgError",
    "ArenaError",
    "CaptureError",
    "CheckpointError",
    "CommError",
    "DeviceError",
    "DtypeError",
    "KernelError",
    "ShapeError",
    "TapeError",
]


class AgError(Exception):
    """Base class of every error that `ag` defines."""


class ShapeError(AgError, ValueError):
    """Shapes that do not fit together."""


class DtypeError(AgError, TypeError):
    """An element type that a device or an operation cannot handle."""


class DeviceError(AgError, RuntimeError):
    """An unknown, missing or lost device, or tensors on two devices in one operation."""


class TapeError(AgError, RuntimeError):
    """A backward pass over something that was not recorded, or was already consumed."""


class CaptureError(AgError, RuntimeError):
    """A step that cannot be recorded, or a replay that differs from what was recorded."""


class ArenaError(AgError, MemoryError):
    """Device memory is exhausted, or a guard word around a block was overwritten."""


class KernelError(AgError, RuntimeError):
    """A kernel that is missing, stale, or does not match its primitive."""


class CommError(AgError, RuntimeError):
    """Replicas or ranks that disagree, or one that did not answer."""


class CheckpointError(AgError, ValueError):
    """A model or checkpoint file that is truncated, foreign, or does not match the model."""
