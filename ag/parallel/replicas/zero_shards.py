"""ZeRO shards: parameters cut into parts that lie on several devices, and put together where they are needed.

All parameters lie one after the other, each padded to 16 bytes (`ag.optim.flat.flat_layout`), and every device owns an
equal stretch of that.  W with 6 elements and b with 3, in float32, on the devices cpu and cpu:1:

    bytes   0         16        32        48
    layout  | W W W W | W W . . | b b b . |
    owner   |   cpu   |       cpu:1       |       ->   W[0:4] on cpu;  W[4:6], b[0:3] on cpu:1

Each shard is a parameter of its own, which an ordinary optimizer steps: update rules work element by element, so
cutting changes no bit.  The gradient of the whole reaches the shards through the tape.  Knows parameters and devices;
no optimizer, no model.  `ZeroOptimizer` and its replicas call it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from ag.autograd.create import ag_param, ag_tensor, fetch_cotangent, place_cotangent
from ag.autograd.op import Cotangents, Need, Run
from ag.autograd.tape import is_recording
from ag.autograd.tensor import Node, Tensor
from ag.autograd.unchanged import tell_used
from ag.engine.buffer import Buffer
from ag.engine.device import backend_of
from ag.engine.primitive import Array
from ag.optim.flat import ALIGN, flat_layout

__all__ = ["ShardedParameter", "all_shards", "shard_parameters"]


class ShardedParameter:
    """A parameter in shards.

    Attributes
    ----------
    name : str
    param : Tensor
        The model's parameter.
    shape : tuple of int
        Of the whole.
    shards : dict of str to Tensor
        By names such as ``W[0:512]``, in order; columns.
    spans : list of slice
        The elements of each shard.
    """

    def __init__(self, name: str, param: Tensor, places: Sequence[tuple[str, slice]]) -> None:
        self.name, self.param, self.shape, self.dtype = name, param, param.shape, param.dtype
        self.spans = [span for _, span in places]
        flat = param.numpy().reshape(-1)
        self.shards: dict[str, Tensor] = {}
        for device, span in places:
            key = f"{name}[{span.start}:{span.stop}]"
            self.shards[key] = ag_param(flat[span].reshape(-1, 1), device, param.dtype)
            self.shards[key].name = key

    def numpy(self) -> Array:
        """The whole on the host."""
        return self.joined([shard.numpy() for shard in self.shards.values()])

    def joined(self, parts: Sequence[Array]) -> Array:
        """What there is of each shard, such as its gradient, as one array of the whole's shape."""
        return np.concatenate([part.reshape(-1) for part in parts]).reshape(self.shape)

    def cut(self, whole: Array) -> dict[str, Array]:
        """Each shard's part of an array as large as the whole."""
        flat = whole.reshape(-1)
        return {key: flat[span].reshape(-1, 1) for key, span in zip(self.shards, self.spans, strict=True)}

    def assign(self, whole: Array) -> None:
        """Give the shards new values."""
        for key, part in self.cut(whole).items():
            self.shards[key].data = part

    def whole(self, device: str) -> Tensor:
        """The parameter put together on a device; gradients go to the shards."""
        return self.linked(ag_tensor(self.numpy(), device, self.dtype))

    def linked(self, full: Tensor) -> Tensor:
        """A copy of the whole, made to send its gradient to the shards."""
        shards = tuple(self.shards.values())
        if not is_recording():
            tell_used(shards, is_recording() is None)
            return full
        return Tensor(full.buffer, True, Node("ZeroOptimizer", _scatter_vjp, shards, (True,) * len(shards),
                                              (self, [shard.device for shard in shards]), ()))


def _scatter_vjp(run: Run, g: Buffer, saved: tuple[ShardedParameter, list[str]], need: Need) -> Cotangents:
    sharded, devices = saved
    parts = sharded.cut(fetch_cotangent(g)).values()
    return tuple(place_cotangent(part, backend_of(device), g.dtype)
                 for part, device in zip(parts, devices, strict=True))


def shard_parameters(params: Mapping[str, Tensor], devices: Sequence[str]) -> list[ShardedParameter]:
    """Cut parameters so that every device has as many bytes."""
    starts, end = flat_layout({name: p.buffer.nbytes for name, p in params.items()}, ALIGN)
    cuts = [end // ALIGN * i // len(devices) * ALIGN for i in range(len(devices) + 1)]
    sharded = []
    for name, p in params.items():
        places: list[tuple[str, slice]] = []
        for device, (low, high) in zip(devices, pairwise(cuts), strict=True):
            first, last = (min(max(at - starts[name], 0) // p.buffer.dtype.itemsize, p.size) for at in (low, high))
            if first < last:
                places.append((device, slice(first, last)))
        sharded.append(ShardedParameter(name, p, places))
    return sharded


def all_shards(sharded: Iterable[ShardedParameter]) -> dict[str, Tensor]:
    """The shards of all parameters by name."""
    return {key: shard for s in sharded for key, shard in s.shards.items()}
