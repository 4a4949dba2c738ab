"""CompressedDataParallel: a DataParallel whose replicas send short messages instead of their gradients.

Everything is `DataParallel` but the node between the module's parameter and a replica's copy: forward it is a copy;
backward it passes the replica's gradient over a `Link` (`ag.parallel.replicas.compression`), and what arrives is the
gradient.  Over ranks, what replicas send goes to all ranks as it is, which add it up in the order of all replicas.
Knows tensors and links; not what a message holds, nor how it gets to another rank.  Users and `train_distributed` call
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ag.autograd.create import fetch_cotangent, place_cotangent
from ag.autograd.op import Cotangents, Need, Run
from ag.autograd.tape import is_recording, no_grad
from ag.autograd.tensor import Node, Tensor
from ag.engine.buffer import Buffer
from ag.engine.device import backend_of
from ag.engine.primitive import Array
from ag.engine.shape import counts
from ag.ops.convert import ag_to_device
from ag.parallel.replicas.compression import (
    STEPS,
    WIRES,
    Link,
    message_bytes,
    packed,
    ratio_at,
    sums,
    take_residuals,
)
from ag.parallel.replicas.data_parallel import DataParallel, Device
from ag.parallel.replicas.replicate import replicas_of

__all__ = ["CompressedDataParallel"]


class CompressedDataParallel(DataParallel):
    """A `DataParallel` whose replicas send the largest elements of their gradients only.

    Parameters
    ----------
    model : Layer, or any callable with ``parameters()``
        As for `DataParallel`.
    device_ids : sequence of str or int, or of sequences of these, optional
        As for `DataParallel`.
    compression_ratio : float, optional
        Which part of each parameter's gradient a replica sends, in (0, 1]; at least one element.
    wire : {"f32", "f16", "bf16"}, optional
        Type in which values are sent.
    output_device : str or int, optional
        As for `DataParallel`.
    dim : int, optional
        As for `DataParallel`.
    momentum : float, optional
        The momentum to train with, in [0, 1); the optimizer is then SGD without it, at the same learning rate.
    warmup_steps : int, optional
        For how many steps at first more is sent: a quarter, and then exponentially less, down to `compression_ratio`.
    axis : int, optional
        Another name of `dim`, which is numpy's.

    Raises
    ------
    ValueError
        If the ratio, the wire format, the momentum or the steps are not one of these, or `device_ids` is empty.
    DeviceError
        If a device is not there.

    Notes
    -----
    What a replica does not send, it adds to its next gradient (error feedback), so every element arrives in the end.
    All replicas do so, those on the module's own device too: results do not depend on where they are.  Where a
    message were no shorter than the whole gradient, that is sent; with ratio 1 in f32 no gradient changes.
    Give momentum here and not to the optimizer: elements that arrive late and are spread over later steps by momentum
    are late twice.  An element therefore comes with all the movement that momentum would make of it,
    ``1 / (1 - momentum)`` times the gradient, at once; where a message has everything, momentum is what it always is.

    At a ratio of 0.01, SGD and SGD with momentum are within 2 % of the uncompressed loss after 1.2 times the steps
    (multilayer perceptron and transformer, 200 steps, five seeds each).  Momentum in the optimizer is up to 13 %
    off there, and Adam 4 to 19 %, as it divides by the size of gradients that seldom come; at 0.1 Adam is at most 4 %
    off.
    ``ag_save_checkpoint`` of this model has `compressor_state` in it.

    References
    ----------
    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", 2018; Lin et al., "Deep Gradient Compression", 2018;
    Mitliagkas, Zhang, Hadjis, Ré, "Asynchrony begets Momentum", 2016.

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
        self._others: dict[str, Array] = {}  # what replicas of other ranks have not sent yet

    @property
    def bytes_sent(self) -> int:
        """Bytes of all gradients that replicas have sent so far."""
        return sum(link.sent for link in self._links)

    @property
    def bytes_per_step(self) -> int:
        """Bytes that all replicas together send in a step after the warm-up in which every one has samples."""
        sizes = [p.size for p in self.parameters().values()]
        return len(self._links) * sum(message_bytes(n, self.compression_ratio, WIRES[self.wire]) for n in sizes)

    def compressor_state(self) -> dict[str, Array]:
        """What replicas have not sent yet, by replica and parameter, and the number of steps."""
        first, _ = self._place or (0, 0)
        state = {f"residual{i}.{name}": residual.copy() for i, link in enumerate(self._links, first)
                 for name, residual in link.residuals.items()}
        return {STEPS: np.array([self._steps], np.int32), **state, **self._others}

    def load_compressor_state(self, state: Mapping[str, Array]) -> None:
        """Take over what `compressor_state` returned; nothing changes if it does not fit.

        A state of more replicas leaves what those have not sent to the ones that are there.

        Raises
        ------
        CheckpointError
            Listing the names that are unexpected or of another shape.
        """
        shapes = {name: p.shape for name, p in self.parameters().items()}
        self._steps = take_residuals(self._links, state, shapes, self._place)
        self._others = {}

    def extra_state(self) -> dict[str, dict[str, Array]]:
        """`compressor_state`, for `ag_save_checkpoint`."""
        return {"compressor": self.compressor_state()}

    def load_extra_state(self, part: str, state: Mapping[str, Array]) -> None:
        """`load_compressor_state`, for `ag_load_checkpoint`."""
        self.load_compressor_state(state)

    # -------------------------------------------------------------------------------------- over ranks

    def join(self, first: int, every: int) -> None:
        """Be some of `every` replicas on all ranks, the first of which is number `first`, in states too."""
        self._place = first, every

    @contextmanager
    def sending(self, weight: float) -> Iterator[None]:
        """Inside, gradients count `weight` among those of other ranks, and `messages` are kept."""
        for link in self._links:
            link.weight, link.messages = np.float32(weight), []
        try:
            yield
        finally:
            for link in self._links:
                link.weight, link.messages = np.float32(1), None

    def messages(self) -> Array:
        """What all replicas have sent since `sending` began, replica by replica, as bytes."""
        numbers = {name: i for i, name in enumerate(self.parameters())}
        return packed((numbers[name], message) for link in self._links for name, message in link.messages or ())

    def arrived(self, messages: Sequence[Array]) -> dict[str, Array]:
        """The gradients that the messages of all ranks make together, by the names of parameters."""
        named = list(self.parameters().items())
        found = sums(messages, {i: p.size for i, (_, p) in enumerate(named)})
        return {named[i][0]: gradient.reshape(named[i][1].shape) for i, gradient in found.items()}

    def residual_rows(self) -> Array:
        """What each replica has not sent yet, as rows of all parameters, one after the other; zeros are nothing."""
        with np.errstate(all="ignore"):
            parts = [link.residuals.get(name, np.zeros(p.shape, np.float32)).reshape(-1).astype(np.float32)
                     for link in self._links for name, p in self.parameters().items()]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def take_others(self, rows: Array) -> None:
        """Keep what the replicas of other ranks have not sent yet, for `compressor_state`; `rows` are those of all."""
        first, every = self._place or (0, len(self._links))
        others: dict[str, Array] = {}
        for i, row in enumerate(rows.reshape(every, -1)):
            if not first <= i < first + len(self._links):
                ends = np.cumsum([p.size for p in self.parameters().values()])
                for (name, p), part in zip(self.parameters().items(), np.split(row, ends[:-1]), strict=True):
                    others[f"residual{i}.{name}"] = part.reshape(p.shape).copy()
        self._others = others

    # -------------------------------------------------------------------------------------- in a pass

    def _replicas(self, count: int) -> list[Any]:
        names = {p.id: name for name, p in self.parameters().items()}
        ratio = ratio_at(self._steps, self.compression_ratio, self.warmup_steps)
        self._steps += bool(is_recording())
        return replicas_of(self.module, self.device_ids[:count],
                           lambda i, p, device: _linked(p, device, self._links[i], names[p.id], ratio))


def _linked(p: Tensor, device: str, link: Link, name: str, ratio: float) -> Tensor:
    """A parameter's copy on a device, whose gradient comes back over a link."""
    with no_grad():
        copy = ag_to_device(p, device)
    if not is_recording():
        return copy
    rule = partial(_carried_vjp, carry=partial(link.carry, name, ratio=ratio))
    return Tensor(copy.buffer, True, Node("CompressedDataParallel", rule, (p,), (True,), p.device, ()))


def _carried_vjp(run: Run, g: Buffer, saved: str, need: Need, *, carry: Callable[[Array], Array]) -> Cotangents:
    return (place_cotangent(carry(fetch_cotangent(g)), backend_of(saved), g.dtype),)
