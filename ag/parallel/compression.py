"""Gradients made short: the largest elements only, in 16 bits if wanted, with what was left out kept for the next time.

A link carries the gradients of one replica.  What a message leaves out (elements, and digits lost in rounding) is the
residual, which is added to the next gradient: nothing is lost, it only comes later.  Knows arrays only.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from ag.dtype import BF16, F16, F32, DType
from ag.errors import CheckpointError
from ag.half import loaded, stored
from ag.tensor import Array

__all__ = ["WIRES", "Link", "Message", "elements_sent", "message_bytes", "pack", "take_residuals", "unpack"]

WIRES: dict[str, DType] = {"f32": F32, "f16": F16, "bf16": BF16}
_INDEX = np.dtype(np.int32)


class Message(NamedTuple):
    """What goes over the wire: the values in its type, and where they belong; None if all are sent, in order."""

    values: Array
    places: Array | None

    @property
    def nbytes(self) -> int:
        """Bytes of values and places."""
        return self.values.nbytes + (0 if self.places is None else self.places.nbytes)


def elements_sent(size: int, ratio: float, wire: DType) -> int:
    """How many of `size` elements a message has; all of them if it were no shorter without the others."""
    k = max(1, ceil(ratio * size))
    return k if k * (_INDEX.itemsize + wire.itemsize) < size * wire.itemsize else size


def message_bytes(size: int, ratio: float, wire: DType) -> int:
    """Bytes of the message for a gradient of `size` elements."""
    k = elements_sent(size, ratio, wire)
    return k * wire.itemsize + (k * _INDEX.itemsize if k < size else 0)


def pack(gradient: Array, ratio: float, wire: DType) -> Message:
    """The message for a flat gradient: its largest elements, in order of their places."""
    k = elements_sent(gradient.size, ratio, wire)
    if k == gradient.size:
        return Message(_rounded(gradient, wire), None)
    places = np.sort(np.argpartition(np.abs(gradient), -k)[-k:]).astype(_INDEX)
    return Message(_rounded(gradient[places], wire), places)


def unpack(message: Message, size: int, wire: DType) -> Array:
    """The flat gradient that a message stands for; zeros where it has nothing."""
    values = loaded(message.values, wire).astype(np.float32)
    if message.places is None:
        return values
    gradient = np.zeros(size, np.float32)
    gradient[message.places] = values
    return gradient


def _rounded(values: Array, wire: DType) -> Array:
    if wire is F16:  # what is too large comes in parts
        limit = np.finfo(np.float16).max
        values = np.clip(values, -limit, limit)
    return stored(values, wire)


class Link:
    """Carries the gradients of one replica, parameter by parameter.

    Parameters
    ----------
    ratio : float
        Which part of the elements a message has.
    wire : DType
        Type of the values on the wire.

    Attributes
    ----------
    residuals : dict of str to array
        What was left out so far, by parameter.
    sent : int
        Bytes of all messages.
    """

    def __init__(self, ratio: float, wire: DType) -> None:
        self.ratio, self.wire = ratio, wire
        self.residuals: dict[str, Array] = {}
        self.sent = 0

    def carry(self, name: str, gradient: Array) -> Array:
        """What arrives of a parameter's gradient.

        One that is not finite arrives as it is: whoever looks for such gradients must see it, and the residual stays
        good for the step after.
        """
        if not np.isfinite(gradient).all():
            self.sent += gradient.nbytes
            return gradient
        flat = gradient.reshape(-1)
        whole = flat + self.residuals[name].reshape(-1) if name in self.residuals else flat
        message = pack(whole, self.ratio, self.wire)
        arrived = unpack(message, flat.size, self.wire)
        self.residuals[name] = (whole - arrived).reshape(gradient.shape)
        self.sent += message.nbytes
        return arrived.reshape(gradient.shape)


def take_residuals(links: list[Link], state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Give links the residuals of a state with names such as ``residual0.layer1_W``; all or nothing."""
    fitting = {f"residual{i}.{name}": (i, name) for i in range(len(links)) for name in shapes}
    wrong = [f"unexpected {key}" for key in state if key not in fitting]
    wrong += [f"{key} is {np.shape(state[key])} instead of {shapes[name]}"
              for key, (_, name) in fitting.items() if key in state and np.shape(state[key]) != shapes[name]]
    if wrong:
        raise CheckpointError(f"load_compressor_state: the state does not fit {len(links)} replicas of this model: "
                              f"{', '.join(wrong)}.")
    for link in links:
        link.residuals = {}
    for key, value in state.items():
        i, name = fitting[key]
        links[i].residuals[name] = np.array(value, np.float32)
