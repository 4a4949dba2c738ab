"""Gradient compression: top-k sparsification with error feedback, in 16 bits if wanted.

What a message leaves out is the residual, which is added to the next gradient.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from ag.autograd.create import fetch_cotangent, place_cotangent
from ag.autograd.op import Cotangents, Need, Run
from ag.autograd.tape import Node, is_recording, no_grad
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer
from ag.engine.device import backend_of
from ag.engine.dtype import BF16, F16, F32, DType
from ag.engine.kernels.convert import loaded, stored
from ag.engine.primitive import Array
from ag.engine.shape import counts
from ag.errors import compare_names
from ag.ops.creation import ag_to_device
from ag.parallel.replicas.data_parallel import DataParallel, Device, replicas_of

__all__ = ["CompressedDataParallel"]

WIRES: dict[str, DType] = {"f32": F32, "f16": F16, "bf16": BF16}
STEPS = "steps"  # name of the number of steps in a state
FIRST_RATIO = 0.25  # where a warm-up begins; that of Deep Gradient Compression
_INDEX = np.dtype(np.int32)
_RESIDUAL = re.compile(r"residual[0-9]{1,6}\.")
_TYPES: dict[np.dtype[np.generic], DType] = {  # of arrays, and what is stored in them
    stored(np.empty(0, np.float32), wire).dtype: wire for wire in WIRES.values()}


class Message(NamedTuple):
    """Values in the type of the wire, and their places; None if all are sent, in order."""

    values: Array
    places: Array | None

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.places is None else self.places.nbytes)


def ratio_at(step: int, ratio: float, warmup: int) -> float:
    """Return the ratio at a step; in `warmup` steps it falls exponentially from 0.25 to `ratio`."""
    if step >= warmup or ratio >= FIRST_RATIO:
        return ratio
    return float(FIRST_RATIO * (ratio / FIRST_RATIO) ** (step / warmup))


def elements_sent(size: int, ratio: float, wire: DType) -> int:
    """Return how many of `size` elements a message has: all, unless fewer make it shorter."""
    k = max(1, ceil(ratio * size))
    return k if k * (_INDEX.itemsize + wire.itemsize) < size * wire.itemsize else size


def message_bytes(size: int, ratio: float, wire: DType) -> int:
    k = elements_sent(size, ratio, wire)
    return k * wire.itemsize + (k * _INDEX.itemsize if k < size else 0)


def pack(gradient: Array, ratio: float, wire: DType) -> Message:
    """Make the message for a flat gradient: its largest elements, in order of their places."""
    k = elements_sent(gradient.size, ratio, wire)
    if k == gradient.size:
        return Message(_rounded(gradient, wire), None)
    places = np.sort(np.argpartition(np.abs(gradient), -k)[-k:]).astype(_INDEX)
    return Message(_rounded(gradient[places], wire), places)


def unpack(message: Message, size: int, wire: DType) -> Array:
    """Return the flat gradient of a message, with zeros where it has nothing."""
    values = loaded(message.values, wire).astype(np.float32)
    if message.places is None:
        return values
    gradient = np.zeros(size, np.float32)
    gradient[message.places] = values
    return gradient


def packed(messages: Iterable[tuple[int, Message]]) -> Array:
    """Join messages to bytes, each with the number of its parameter."""
    parts: list[Array] = []
    for number, message in messages:
        places = np.empty(0, _INDEX) if message.places is None else message.places
        whole = message.places is None
        kind = list(_TYPES).index(message.values.dtype)
        parts += [np.array([number, kind, whole, message.values.size], _INDEX), message.values, places]
    return np.concatenate([part.view(np.uint8) for part in parts]) if parts else np.empty(0, np.uint8)


def sums(parts: Iterable[Array], sizes: Mapping[int, int]) -> dict[int, Array]:
    """Add up all messages of each parameter, in their order; `sizes` are those of the parameters."""
    total: dict[int, Array] = {}
    for content in parts:
        file = BytesIO(content.tobytes())

        def read(count: int, dtype: np.dtype[Any] = _INDEX, file: BytesIO = file) -> Array:
            return np.frombuffer(file.read(count * dtype.itemsize), dtype)

        while (head := read(4)).size:
            number, kind, whole, count = head.tolist()
            dtype, wire = list(_TYPES.items())[kind]
            values, places = read(count, dtype), None if whole else read(count)
            arrived = unpack(Message(values, places), sizes[number], wire)
            with np.errstate(all="ignore"):
                total[number] = total[number] + arrived if number in total else arrived
    return total


def _rounded(values: Array, wire: DType) -> Array:
    if wire is F16:  # too large values are sent in parts
        limit = np.finfo(np.float16).max
        values = np.clip(values, -limit, limit)
    return stored(values, wire)


class Link:
    """Carries the gradients of one replica, parameter by parameter.

    Momentum m moves the weights along a gradient g by g / (1 - m) in all, its impulse, which a link keeps.  A message
    carries 1 - m of it, which momentum moves at once; of elements that have waited, it carries the whole impulse.
    """

    def __init__(self, wire: DType, momentum: float = 0.0) -> None:
        self.wire = wire
        self.residuals: dict[str, Array] = {}  # impulses that messages have left out so far, by parameter
        self.sent = 0  # bytes of all messages
        self.weight = np.float32(1)  # of gradients, among those of other ranks
        self.messages: list[tuple[str, Message]] | None = None  # a list keeps messages
        self._now = np.float32(1 - momentum)  # the part of an impulse that momentum moves at once

    def carry(self, name: str, gradient: Array, ratio: float) -> Array:
        """Return what arrives of a gradient, of which the message has the part `ratio`; all, if not finite."""
        if not np.isfinite(gradient).all():
            self._send(name, Message(gradient.astype(np.float32).reshape(-1), None))
            return gradient
        with np.errstate(all="ignore"):
            flat = gradient.reshape(-1) * self.weight / self._now
            whole = flat + self.residuals[name].reshape(-1) if name in self.residuals else flat
            everything = elements_sent(flat.size, ratio, self.wire) == flat.size
            message = pack(whole * self._now if everything else whole, ratio, self.wire)
            arrived = unpack(message, flat.size, self.wire)
            self.residuals[name] = (whole - arrived).reshape(gradient.shape)
        self._send(name, message)
        return arrived.reshape(gradient.shape)

    def _send(self, name: str, message: Message) -> None:
        self.sent += message.nbytes
        if self.messages is not None:
            self.messages.append((name, message))


def take_residuals(links: list[Link], state: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]],
                   place: tuple[int, int] | None = None) -> int:
    """Load the residuals of a state, all or nothing; return its steps.  `place`: that of the first link, and of all."""
    first, every = place or (0, len(links))
    there = {int(key.partition(".")[0].removeprefix("residual")) for key in state if _RESIDUAL.match(key)}
    known = range(max([every, *(i + 1 for i in there)]))  # of 3 replicas for 2, the first gets residuals 0 and 2
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


class CompressedDataParallel(DataParallel):
    """A `DataParallel` whose replicas send the largest elements of their gradients only.

    Parameters
    ----------
    model : Layer, or any callable with ``parameters()``
    device_ids : sequence of str or int, or of sequences of these, optional
        As for `DataParallel`.
    compression_ratio : float, optional
        Which part of each parameter's gradient a replica sends, in (0, 1]; at least one element.
    wire : {"f32", "f16", "bf16"}, optional
        Type in which values are sent.
    output_device, dim : str or int, optional
        As for `DataParallel`.
    momentum : float, optional
        The momentum to train with, in [0, 1); the optimizer is then SGD without it, at the same learning rate.
    warmup_steps : int, optional
        For how many steps at first more is sent: a quarter, and then exponentially less, down to `compression_ratio`.
    axis : int, optional
        Another name of `dim`.

    Raises
    ------
    ValueError, DeviceError
        If the ratio, wire format, momentum or steps are not one of these, or `device_ids` is empty or has a wrong one.

    Notes
    -----
    What a replica does not send, it adds to its next gradient (error feedback), so every element arrives in the end.
    Where a message were no shorter than the whole gradient, that is sent; with ratio 1 in f32 no gradient changes.
    Give momentum here and not to the optimizer: a late element comes with all the movement that momentum would make of
    it.  docs/parallel.md says what converges.  ``ag_save_checkpoint`` of this model has `compressor_state` in it.

    Reference: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", 2018; Lin et al., "Deep Gradient Compression",
    2018; Mitliagkas, Zhang, Hadjis, Ré, "Asynchrony begets Momentum", 2016.

    Examples
    --------
    >>> import ag
    >>> model = ag.CompressedDataParallel(ag.ag_linear(2, 2, bias=False), ["cpu", "cpu:1"], compression_ratio=0.25)
    >>> with ag.with_grad_tape():
    ...     loss = ag.ag_sum(model(ag.ag_tensor([[1.0, 1.0], [0.0, 3.0]])))
    >>> [n for n in ag.backward(loss)[model.module.W].numpy().ravel().tolist() if n]
    [1.0, 3.0]
    >>> model.bytes_sent, model.bytes_per_step
    (16, 16)
    """

    def __init__(self, model: Any, device_ids: Sequence[Device | Sequence[Device]] | None = None,
                 compression_ratio: float = 0.01, wire: str = "f32", output_device: Device | None = None,
                 dim: int = -1, momentum: float = 0.0, warmup_steps: int = 20, *,
                 axis: int | None = None) -> None:
        super().__init__(model, device_ids, output_device, dim, axis=axis)
        if not 0 < compression_ratio <= 1:
            raise ValueError(f"CompressedDataParallel: compression_ratio is {compression_ratio}; it must be in (0, 1].")
        if wire not in WIRES:
            raise ValueError(f"CompressedDataParallel: wire is {wire!r}; use one of {', '.join(WIRES)}.")
        if not 0 <= momentum < 1:
            raise ValueError(f"CompressedDataParallel: momentum is {momentum}; it must be in [0, 1).")
        if not counts(warmup_steps, least=0):
            raise ValueError(f"CompressedDataParallel: warmup_steps is {warmup_steps!r}; a whole number of at least 0 "
                             f"is required.")
        self.compression_ratio, self.wire, self.warmup_steps = compression_ratio, wire, warmup_steps
        self._links = [Link(WIRES[wire], momentum) for _ in self.device_ids]
        self._steps = 0  # that the links have carried
        self._place: tuple[int, int] | None = None  # among the replicas of all ranks
        self._others: dict[str, Array] = {}  # residuals of other ranks' replicas

    @property
    def bytes_sent(self) -> int:
        """Return the bytes of all gradients that replicas have sent so far."""
        return sum(link.sent for link in self._links)

    @property
    def bytes_per_step(self) -> int:
        """Return the bytes that all replicas send in a step after the warm-up, if each has samples."""
        sizes = [p.size for p in self.parameters().values()]
        return len(self._links) * sum(message_bytes(n, self.compression_ratio, WIRES[self.wire]) for n in sizes)

    def compressor_state(self) -> dict[str, Array]:
        """Return what replicas have not sent yet, by replica and parameter, and the number of steps."""
        first, _ = self._place or (0, 0)
        state = {f"residual{i}.{name}": residual.copy() for i, link in enumerate(self._links, first)
                 for name, residual in link.residuals.items()}
        return {STEPS: np.array([self._steps], np.int32), **state, **self._others}

    def load_compressor_state(self, state: Mapping[str, Array]) -> None:
        """Load what `compressor_state` returned, or raise a CheckpointError; others get what missing replicas have."""
        shapes = {name: p.shape for name, p in self.parameters().items()}
        self._steps = take_residuals(self._links, state, shapes, self._place)
        self._others = {}

    def extra_state(self) -> dict[str, dict[str, Array]]:
        """Return `compressor_state` for `ag_save_checkpoint`."""
        return {"compressor": self.compressor_state()}

    def load_extra_state(self, part: str, state: Mapping[str, Array]) -> None:
        """Load the state of the compressor for `ag_load_checkpoint`."""
        self.load_compressor_state(state)

    # -------------------------------------------------------------------------------------- over ranks

    def join(self, first: int, every: int) -> None:
        """Become the replicas from number `first` on of `every` replicas on all ranks, also in states."""
        self._place = first, every

    @contextmanager
    def sending(self, weight: float) -> Iterator[None]:
        """Weigh gradients by `weight` among those of other ranks inside, and keep `messages`."""
        for link in self._links:
            link.weight, link.messages = np.float32(weight), []
        try:
            yield
        finally:
            for link in self._links:
                link.weight, link.messages = np.float32(1), None

    def messages(self) -> Array:
        """Return the messages of all replicas since `sending` began, as bytes."""
        numbers = {name: i for i, name in enumerate(self.parameters())}
        return packed((numbers[name], message) for link in self._links for name, message in link.messages or ())

    def arrived(self, messages: Sequence[Array]) -> dict[str, Array]:
        """Return the gradients that the messages of all ranks make, by the names of parameters."""
        named = list(self.parameters().items())
        found = sums(messages, {i: p.size for i, (_, p) in enumerate(named)})
        return {named[i][0]: gradient.reshape(named[i][1].shape) for i, gradient in found.items()}

    def residual_rows(self) -> Array:
        """Return the residuals of each replica as rows of all parameters."""
        with np.errstate(all="ignore"):
            parts = [link.residuals.get(name, np.zeros(p.shape, np.float32)).reshape(-1).astype(np.float32)
                     for link in self._links for name, p in self.parameters().items()]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def take_others(self, rows: Array) -> None:
        """Keep the residuals of other ranks' replicas for `compressor_state`; `rows` are those of all."""
        first, every = self._place or (0, len(self._links))
        others: dict[str, Array] = {}
        for i, row in enumerate(rows.reshape(every, -1)):
            if not first <= i < first + len(self._links):
                ends = np.cumsum([p.size for p in self.parameters().values()])
                for (name, p), part in zip(self.parameters().items(), np.split(row, ends[:-1]), strict=True):
                    others[f"residual{i}.{name}"] = part.reshape(p.shape).copy()
        self._others = others

    def _replicas(self, count: int) -> list[Any]:
        names = {p.id: name for name, p in self.parameters().items()}
        ratio = ratio_at(self._steps, self.compression_ratio, self.warmup_steps)
        self._steps += bool(is_recording())
        return replicas_of(self.module, self.device_ids[:count],
                           lambda i, p, device: _linked(p, device, self._links[i], names[p.id], ratio))


def _linked(p: Tensor, device: str, link: Link, name: str, ratio: float) -> Tensor:
    """Copy a parameter to a device; its gradient comes back over a link."""
    with no_grad():
        copy = ag_to_device(p, device)
    if not is_recording():
        return copy
    rule = partial(_carried_vjp, carry=partial(link.carry, name, ratio=ratio))
    return Tensor(copy.buffer, True, Node("CompressedDataParallel", rule, (p,), (True,), p.device, ()))


def _carried_vjp(run: Run, g: Buffer, saved: str, need: Need, *, carry: Callable[[Array], Array]) -> Cotangents:
    return (place_cotangent(carry(fetch_cotangent(g)), backend_of(saved), g.dtype),)
