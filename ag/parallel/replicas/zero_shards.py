"""Shards: parameters cut into pieces on several devices, and put together where and when they are needed.

All parameters lie one after the other, each padded to 16 bytes as in `ag.optim.flat`, and every device has an equal
stretch of that.  A piece is a parameter of its own: gradients of the whole reach the pieces through the tape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from ag.autograd.create import ag_param, ag_tensor
from ag.autograd.loss_scale import fetch_cotangent, place_cotangent
from ag.autograd.op import Cotangents, Need, Run
from ag.autograd.tape import is_recording
from ag.autograd.tensor import Node, Tensor
from ag.engine.buffer import Buffer
from ag.engine.device import backend_of
from ag.engine.primitive import Array
from ag.optim.flat import ALIGN, flat_layout

__all__ = ["Sharded", "all_pieces", "cut_parameters"]


class Sharded:
    """A parameter in pieces.

    Attributes
    ----------
    name : str
    param : Tensor
        What it was made of.
    shape : tuple of int
        Of the whole.
    pieces : dict of str to Tensor
        By names such as ``W[0:512]``, in order; columns.
    spans : list of slice
        The elements of each piece.
    """

    def __init__(self, name: str, param: Tensor, places: Sequence[tuple[str, slice]]) -> None:
        self.name, self.param, self.shape, self.dtype = name, param, param.shape, param.dtype
        self.spans = [span for _, span in places]
        flat = param.numpy().reshape(-1)
        self.pieces: dict[str, Tensor] = {}
        for device, span in places:
            key = f"{name}[{span.start}:{span.stop}]"
            self.pieces[key] = ag_param(flat[span].reshape(-1, 1), device, param.dtype)
            self.pieces[key].name = key

    def numpy(self) -> Array:
        """The whole on the host."""
        return self.joined([piece.numpy() for piece in self.pieces.values()])

    def joined(self, parts: Sequence[Array]) -> Array:
        """Something of each piece, as something of the whole."""
        return np.concatenate([part.reshape(-1) for part in parts]).reshape(self.shape)

    def shares(self, whole: Array) -> dict[str, Array]:
        """Each piece's part of something as large as the whole."""
        flat = whole.reshape(-1)
        return {key: flat[span].reshape(-1, 1) for key, span in zip(self.pieces, self.spans, strict=True)}

    def assign(self, whole: Array) -> None:
        """Give the pieces new values."""
        for key, part in self.shares(whole).items():
            self.pieces[key].data = part

    def whole(self, device: str) -> Tensor:
        """The pieces put together on a device, as `linked` to them."""
        return self.linked(ag_tensor(self.numpy(), device, self.dtype))

    def linked(self, full: Tensor) -> Tensor:
        """A copy of the whole, whose gradient goes to the pieces."""
        if not is_recording():
            return full
        pieces = tuple(self.pieces.values())
        return Tensor(full.buffer, True, Node("ZeroOptimizer", _dealt_out, pieces, (True,) * len(pieces),
                                              (self, [p.device for p in pieces]), ()))


def _dealt_out(run: Run, g: Buffer, saved: tuple[Sharded, list[str]], need: Need) -> Cotangents:
    sharded, devices = saved
    parts = sharded.shares(fetch_cotangent(g)).values()
    return tuple(place_cotangent(part, backend_of(device), g.dtype)
                 for part, device in zip(parts, devices, strict=True))


def cut_parameters(params: Mapping[str, Tensor], devices: Sequence[str]) -> list[Sharded]:
    """Parameters in pieces, so that every device has as many bytes."""
    starts, end = flat_layout({name: p.buffer.nbytes for name, p in params.items()}, ALIGN)
    cuts = [end // ALIGN * i // len(devices) * ALIGN for i in range(len(devices) + 1)]
    found = []
    for name, p in params.items():
        places: list[tuple[str, slice]] = []
        for device, (low, high) in zip(devices, pairwise(cuts), strict=True):
            first, last = (min(max(at - starts[name], 0) // p.buffer.dtype.itemsize, p.size) for at in (low, high))
            if first < last:
                places.append((device, slice(first, last)))
        found.append(Sharded(name, p, places))
    return found


def all_pieces(sharded: Sequence[Sharded]) -> dict[str, Tensor]:
    """All pieces by name."""
    return {key: piece for s in sharded for key, piece in s.pieces.items()}
