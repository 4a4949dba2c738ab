"""Gradient compression: top-k sparsification with error feedback, in 16 bits if wanted.

A link carries the gradients of one replica.  What a message leaves out (small elements, and digits lost in rounding) is
the residual, which is added to the next gradient: nothing is lost, it only comes later.  With one element of four:

    gradient   [ 3  1  0 -2 ]   whole [ 3  1  0 -2 ]   sent [ 3  .  .  . ]   residual [ 0  1  0 -2 ]
    gradient   [ 0  1  0 -2 ]   whole [ 0  2  0 -4 ]   sent [ .  .  . -4 ]   residual [ 0  2  0  0 ]

Momentum m moves the weights along a gradient g by g, m g, m² g, ...: by g / (1 - m) in all, its impulse.  A link keeps
impulses.  A message that has every element carries the part 1 - m of them, which is what momentum moves at once, and
leaves the rest.  A shorter message carries the whole impulse of its elements: they have waited, and waiting does what
momentum's spreading over time is for.

Between ranks the messages of all replicas travel as bytes (`packed`), and every rank adds them up in the order of the
replicas (`sums`).  Knows arrays; no tensor, no device, no model.  `CompressedDataParallel` calls it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import NamedTuple

import numpy as np

from ag.engine.dtype import BF16, F16, F32, DType
from ag.engine.kernels.convert import loaded, stored
from ag.engine.primitive import Array
from ag.errors import compare_names

__all__ = ["STEPS", "WIRES", "Link", "Message", "elements_sent", "message_bytes", "pack", "packed", "ratio_at",
           "sums", "take_residuals", "unpack"]

WIRES: dict[str, DType] = {"f32": F32, "f16": F16, "bf16": BF16}
STEPS = "steps"  # name of the number of steps in a state
FIRST_RATIO = 0.25  # where a warm-up begins; that of Deep Gradient Compression
_INDEX = np.dtype(np.int32)
_RESIDUAL = re.compile(r"residual[0-9]{1,6}\.")
_TYPES: dict[np.dtype[np.generic], DType] = {  # of arrays, and what is stored in them
    stored(np.empty(0, np.float32), wire).dtype: wire for wire in WIRES.values()}


class Message(NamedTuple):
    """What goes over the wire: values in its type, and the place of each; None if all are sent, in order."""

    values: Array
    places: Array | None

    @property
    def nbytes(self) -> int:
        """Bytes of values and places."""
        return self.values.nbytes + (0 if self.places is None else self.places.nbytes)


def ratio_at(step: int, ratio: float, warmup: int) -> float:
    """The ratio at a step: for `warmup` steps it falls exponentially from 0.25, if it is less, to `ratio`."""
    if step >= warmup or ratio >= FIRST_RATIO:
        return ratio
    return float(FIRST_RATIO * (ratio / FIRST_RATIO) ** (step / warmup))


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


def packed(messages: Iterable[tuple[int, Message]]) -> Array:
    """Messages as bytes, each with the number of its parameter."""
    parts: list[Array] = []
    for number, message in messages:
        places = np.empty(0, _INDEX) if message.places is None else message.places
        whole = message.places is None
        kind = list(_TYPES).index(message.values.dtype)
        parts += [np.array([number, kind, whole, message.values.size], _INDEX), message.values, places]
    return np.concatenate([part.view(np.uint8) for part in parts]) if parts else np.empty(0, np.uint8)


def sums(parts: Iterable[Array], sizes: Mapping[int, int]) -> dict[int, Array]:
    """Of each parameter the sum of all messages for it, in their order; `sizes` are those of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from ag.engine.dtype import F32
    >>> from ag.parallel.replicas.compression import pack, packed, sums
    >>> one, other = (pack(np.array(x, np.float32), 0.2, F32) for x in ([0, 5, 1, 0, 2], [1, 3, 0, 0, -4]))
    >>> sums([packed([(0, one)]), packed([(0, other)])], {0: 5})[0].tolist()
    [0.0, 5.0, 0.0, 0.0, -4.0]
    """
    total: dict[int, Array] = {}
    for content in parts:
        at = 0
        while at < content.size:
            number, kind, whole, count = np.frombuffer(content[at : at + 16].tobytes(), _INDEX).tolist()
            at += 16
            dtype, wire = list(_TYPES.items())[kind]
            values = np.frombuffer(content[at : at + count * dtype.itemsize].tobytes(), dtype)
            at += values.nbytes
            places = None if whole else np.frombuffer(content[at : at + 4 * count].tobytes(), _INDEX)
            at += 0 if places is None else places.nbytes
            arrived = unpack(Message(values, places), sizes[number], wire)
            with np.errstate(all="ignore"):
                total[number] = total[number] + arrived if number in total else arrived
    return total


def _rounded(values: Array, wire: DType) -> Array:
    if wire is F16:  # what is too large comes in parts
        limit = np.finfo(np.float16).max
        values = np.clip(values, -limit, limit)
    return stored(values, wire)


class Link:
    """Carries the gradients of one replica, parameter by parameter.

    Parameters
    ----------
    wire : DType
        Type of the values on the wire.
    momentum : float, optional
        In [0, 1).

    Attributes
    ----------
    residuals : dict of str to array
        The impulse that messages have left out so far, by parameter.
    sent : int
        Bytes of all messages.
    weight : float
        What gradients count, among those of other ranks.
    messages : list of (str, Message), or None
        If it is a list, messages are kept there.
    """

    def __init__(self, wire: DType, momentum: float = 0.0) -> None:
        self.wire = wire
        self.residuals: dict[str, Array] = {}
        self.sent = 0
        self.weight = np.float32(1)
        self.messages: list[tuple[str, Message]] | None = None
        self._now = np.float32(1 - momentum)  # which part of an impulse momentum moves at once

    def carry(self, name: str, gradient: Array, ratio: float) -> Array:
        """What arrives of a parameter's gradient, of which the message has the part `ratio`.

        One that is not finite arrives as it is: whoever looks for such gradients must see it, and the residual stays
        good for the step after.
        """
        if not np.isfinite(gradient).all():
            self.sent += gradient.nbytes
            self._keep(name, Message(gradient.astype(np.float32).reshape(-1), None))
            return gradient
        with np.errstate(all="ignore"):
            flat = gradient.reshape(-1) * self.weight / self._now
            whole = flat + self.residuals[name].reshape(-1) if name in self.residuals else flat
            everything = elements_sent(flat.size, ratio, self.wire) == flat.size
            message = pack(whole * self._now if everything else whole, ratio, self.wire)
            arrived = unpack(message, flat.size, self.wire)
            self.residuals[name] = (whole - arrived).reshape(gradient.shape)
        self.sent += message.nbytes
        self._keep(name, message)
        return arrived.reshape(gradient.shape)

    def _keep(self, name: str, message: Message) -> None:
        if self.messages is not None:
            self.messages.append((name, message))


def take_residuals(links: list[Link], state: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]],
                   place: tuple[int, int] | None = None) -> int:
    """Give links the residuals of a state with names such as ``residual0.layer1_W``, all or nothing; its steps.

    The state may be of more replicas: those that are not there any more leave their residuals to the others, so nothing
    is lost.  State of 3 replicas for 2: the first gets the residuals 0 and 2, added up, and the second residual 1.

    Parameters
    ----------
    place : (int, int), optional
        The number of the first link among those of all ranks, and how many these have; default: all are here.
    """
    first, every = place or (0, len(links))
    there = {int(key.partition(".")[0].removeprefix("residual")) for key in state if _RESIDUAL.match(key)}
    known = range(max([every, *(i + 1 for i in there)]))
    fitting = {f"residual{i}.{name}": (i % every - first, name) for i in known for name in shapes}
    shapes_there = {key: np.shape(x) for key, x in state.items()}
    expected = {STEPS: shapes_there.get(STEPS, ())} | {key: shapes[name] for key, (_, name) in fitting.items()}
    compare_names(f"load_compressor_state: the state does not fit {every} replicas of this model", expected,
                  shapes_there, required=[STEPS])
    with np.errstate(all="ignore"):
        for i, link in enumerate(links):
            mine = [(name, np.array(state[key], np.float32)) for key, (of, name) in fitting.items()
                    if of == i and key in state]
            link.residuals = {}
            for name, residual in mine:
                link.residuals[name] = link.residuals[name] + residual if name in link.residuals else residual
    return int(np.asarray(state[STEPS]).item())
