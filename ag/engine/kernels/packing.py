"""Packings of frozen matrices: how numbers of 16, 8, 6 or 4 bits lie in the words of a buffer.

A packed matrix is one buffer of 32-bit words.  Its planes follow each other: the quants of all blocks, row by row, then
what scales them.  GGUF's blocks have the same bits in another order, so that they come back without loss.

    q4_1    16 bytes of two nibbles, ...    | scale, scale, ...    | offset, offset, ...
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ag.engine.dtype import BF16, F16, DType
from ag.engine.kernels.convert import loaded, stored
from ag.engine.primitive_types import Array
from ag.errors import DtypeError, ShapeError

_MANY = 1 << 20  # numbers that are converted at a time
Planes = list[Array]  # bytes, a row for each block


class Packing:
    """A packing of numbers in two bytes each; those in blocks derive from it."""

    planes: tuple[int, ...] = (2,)  # bytes of a block in each plane
    block, nbytes = 1, 2  # numbers of a block, and bytes in a file

    def __init__(self, name: str, number: int) -> None:
        self.name = name  # as GGUF has it, in lower case
        self.number = number  # by which kernels know it

    def __repr__(self) -> str:
        return self.name

    def split(self, blocks: Array) -> Planes:
        """Return the planes of GGUF's blocks."""
        return [blocks]

    def join(self, planes: Planes) -> Array:
        """Return GGUF's blocks of some planes."""
        return planes[0]

    def numbers(self, planes: Planes) -> Array:
        """Return the float32 numbers of blocks."""
        dtype = self._dtype
        return loaded(planes[0].view(dtype.numpy_name), dtype).astype(np.float32, copy=False)

    def quantised(self, x: Array) -> Planes:
        """Return the planes of float32 numbers, a row for each block."""
        found = stored(x, self._dtype)
        if not np.isfinite(loaded(found, self._dtype)[np.isfinite(x)]).all():
            raise ValueError(f"numbers beyond the range of {self}; another packing, or smaller ones, are required.")
        return [found.view(np.uint8)]

    @property
    def _dtype(self) -> DType:
        return BF16 if self.name == "bf16" else F16

    # -------------------------------------------------------------------------------------- in words

    def starts(self, rows: int, inner: int) -> tuple[int, ...]:
        """Return the word at which each plane begins, and the number of all words."""
        blocks, starts = rows * (inner // self.block), [0]
        for nbytes in self.planes:
            starts.append(starts[-1] + -(-blocks * nbytes // 4))
        return tuple(starts)

    def check(self, function: str, inner: int) -> None:
        """Refuse rows that do not consist of whole blocks."""
        if inner % self.block:
            raise ShapeError(f"{function}: rows have {inner} numbers, and {self} has blocks of {self.block}; multiples "
                             f"of that are required. Pack in 'bf16', 'f16' or one with smaller blocks.")

    def _parts(self, words: Array, rows: int, inner: int) -> Iterator[tuple[slice, Planes]]:
        """Return views of the planes in words, some blocks after the other."""
        count = rows * (inner // self.block)
        at_once = max(1, _MANY // self.block)
        whole = [words[start:].view(np.uint8)[: count * nbytes].reshape(count, nbytes)
                 for start, nbytes in zip(self.starts(rows, inner), self.planes, strict=False)]
        for i in range(0, count, at_once):
            part = slice(i, min(i + at_once, count))
            yield part, [plane[part] for plane in whole]

    def _filled(self, given: Array, rows: int, inner: int, convert: str) -> Array:
        words = np.zeros(self.starts(rows, inner)[-1], np.uint32)
        for part, planes in self._parts(words, rows, inner):
            for plane, found in zip(planes, getattr(self, convert)(given[part]), strict=True):
                plane[...] = found.reshape(plane.shape)
        return words

    def pack(self, array: Array) -> Array:
        """Return the words of a matrix, rounded as the package ``gguf`` does."""
        rows, inner = array.shape
        with np.errstate(all="ignore"):
            blocks = np.ascontiguousarray(array, np.float32).reshape(rows * (inner // self.block), self.block)
            return self._filled(blocks, rows, inner, "quantised")

    def unpack(self, words: Array, rows: int, inner: int) -> Array:
        """Return the float32 numbers of a matrix, with the bits that ``gguf`` gives."""
        out = np.empty((rows * (inner // self.block), self.block), np.float32)
        with np.errstate(all="ignore"):
            for part, planes in self._parts(words, rows, inner):
                out[part] = self.numbers(planes)
        return out.reshape(rows, inner)

    def from_blocks(self, blocks: Array) -> tuple[Array, int]:
        """Return the words of GGUF's blocks, bytes in rows, and how many numbers a row has."""
        rows, nbytes = blocks.shape
        if nbytes % self.nbytes:
            raise ShapeError(f"rows have {nbytes} bytes, and blocks of {self} have {self.nbytes}; whole blocks are "
                             f"required.")
        inner = nbytes // self.nbytes * self.block
        whole = np.ascontiguousarray(blocks).reshape(rows * (nbytes // self.nbytes), self.nbytes)
        return self._filled(whole, rows, inner, "split"), inner

    def to_blocks(self, words: Array, rows: int, inner: int) -> Array:
        """Return GGUF's blocks, bytes in rows."""
        out = np.empty((rows * (inner // self.block), self.nbytes), np.uint8)
        for part, planes in self._parts(words, rows, inner):
            out[part] = self.join(planes)
        return out.reshape(rows, inner // self.block * self.nbytes)


def _halves(plane: Array) -> Array:
    return np.ascontiguousarray(plane).view(np.float16).astype(np.float32)


def _fields(plane: Array, bits: int, width: int) -> Array:
    """Return the fields of bytes: in groups of `width` bytes, first the lowest bits of all, then the next."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = plane.reshape(len(plane), plane.shape[1] // width, 1, width) >> shifts & np.uint8((1 << bits) - 1)
    return parts.reshape(len(plane), prod(parts.shape[1:]))


def _in_bytes(fields: Array, bits: int, width: int) -> Array:
    """Return bytes of which these are the fields."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = fields.reshape(len(fields), fields.shape[1] * bits // (8 * width), len(shifts), width) << shifts
    found: Array = np.bitwise_or.reduce(parts, axis=2)
    return found.reshape(len(fields), fields.shape[1] * bits // 8)


class _Q8(Packing):
    planes: tuple[int, ...] = (32, 2)
    block, nbytes = 32, 34

    def split(self, blocks: Array) -> Planes:
        return [blocks[:, 2:], blocks[:, :2]]

    def join(self, planes: Planes) -> Array:
        return np.concatenate([*planes[1:], planes[0]], 1)

    def numbers(self, planes: Planes) -> Array:
        return planes[0].view(np.int8).astype(np.float32) * _halves(planes[1])

    def quantised(self, x: Array) -> Planes:
        d = np.abs(x).max(1, keepdims=True) / np.float32(127)
        size = np.abs(x * _inverse(d))
        floor = np.floor(size)
        away = floor + np.floor(2 * (size - floor))  # halves go away from 0
        return [(np.sign(x * _inverse(d)) * away).astype(np.int8).view(np.uint8), self._scales(x, d)]

    def _scales(self, x: Array, scales: Array) -> Array:
        found = scales.astype(np.float16)
        if not (np.isfinite(x).all() and np.isfinite(found).all()):
            raise ValueError(f"numbers that are not finite, or too large for scales of {self}; others are required.")
        return found.view(np.uint8)


def _inverse(d: Array) -> Array:
    return np.where(d == 0, np.float32(0), np.float32(1) / d)


class _Q4(_Q8):
    planes: tuple[int, ...] = (16, 2)
    nbytes = 18

    def numbers(self, planes: Planes) -> Array:
        return _halves(planes[1]) * (_fields(planes[0], 4, 16).astype(np.int8) - np.int8(8)).astype(np.float32)

    def quantised(self, x: Array) -> Planes:
        d = np.take_along_axis(x, np.abs(x).argmax(1, keepdims=True), 1) / np.float32(-8)
        return [self._nibbles(x * _inverse(d) + np.float32(8.5)), self._scales(x, d)]

    def _nibbles(self, x: Array) -> Array:
        return _in_bytes(np.trunc(x).astype(np.uint8).clip(0, 15), 4, 16)


class _Q41(_Q4):
    planes, nbytes = (16, 2, 2), 20

    def split(self, blocks: Array) -> Planes:
        return [blocks[:, 4:], blocks[:, :2], blocks[:, 2:4]]

    def numbers(self, planes: Planes) -> Array:
        return _halves(planes[1]) * _fields(planes[0], 4, 16).astype(np.float32) + _halves(planes[2])

    def quantised(self, x: Array) -> Planes:
        low = x.min(1, keepdims=True)
        d = (x.max(1, keepdims=True) - low) / np.float32(15)
        return [self._nibbles((x - low) * _inverse(d) + np.float32(0.5)), self._scales(x, d), self._scales(x, low)]


class _InSuperblocks(Packing):
    block = 256

    def quantised(self, x: Array) -> Planes:
        raise DtypeError(f"{self} is for blocks of a GGUF file, and an array of numbers was given; pack that in "
                         f"'q4_0', 'q4_1' or 'q8_0'.")


class _Q4K(_InSuperblocks):
    """Planes of nibbles, factors of scales and of offsets, a byte each, and pairs of a scale and an offset."""

    planes, nbytes = (128, 8, 8, 4), 144

    def split(self, blocks: Array) -> Planes:
        d, m, both = (blocks[:, i : i + 4] for i in (4, 8, 12))  # four times 6 bits, which lie in 8 and 4 + 2
        scales = np.concatenate([d & 0x3F, both & 0x0F | d >> 2 & 0x30], 1)
        offsets = np.concatenate([m & 0x3F, both >> 4 | m >> 2 & 0x30], 1)
        return [_in_bytes(_fields(blocks[:, 16:], 4, 32), 4, 16), scales, offsets, blocks[:, :4]]

    def join(self, planes: Planes) -> Array:
        quants, scales, offsets, pairs = planes
        d, m = (x[:, :4] | x[:, 4:] << 2 & 0xC0 for x in (scales, offsets))
        both = scales[:, 4:] & 0x0F | offsets[:, 4:] << 4
        return np.concatenate([pairs, d, m, both, _in_bytes(_fields(quants, 4, 16), 4, 32)], 1)

    def numbers(self, planes: Planes) -> Array:
        quants, scales, offsets, pairs = planes
        both = _halves(pairs)
        d, m = ((half * x.astype(np.float32))[..., None] for half, x in ((both[:, :1], scales), (both[:, 1:], offsets)))
        found: Array = d * _fields(quants, 4, 16).reshape(-1, 8, 32).astype(np.float32) - m
        return found.reshape(-1, self.block)


class _Q6K(_InSuperblocks):
    """Planes of the low nibbles, of the high 2 bits, of factors for 16 numbers each, and of scales."""

    planes, nbytes = (128, 64, 16, 2), 210

    def split(self, blocks: Array) -> Planes:
        low, high = _fields(blocks[:, :128], 4, 64), _fields(blocks[:, 128:192], 2, 32)
        return [_in_bytes(low, 4, 16), _in_bytes(high, 2, 8), blocks[:, 192:208], blocks[:, 208:]]

    def join(self, planes: Planes) -> Array:
        low, high, factors, scales = planes
        return np.concatenate([_in_bytes(_fields(low, 4, 16), 4, 64), _in_bytes(_fields(high, 2, 8), 2, 32), factors,
                               scales], 1)

    def numbers(self, planes: Planes) -> Array:
        low, high, factors, scales = planes
        q = (_fields(low, 4, 16) | _fields(high, 2, 8) << 4).astype(np.int8) - np.int8(32)
        d = (_halves(scales) * factors.view(np.int8).astype(np.float32))[..., None]
        found: Array = d * q.reshape(-1, 16, 16).astype(np.float32)
        return found.reshape(-1, self.block)


PACKINGS: dict[str, Packing] = {name: kind(name, number) for number, (name, kind) in enumerate((
    ("bf16", Packing), ("f16", Packing), ("q8_0", _Q8), ("q4_0", _Q4), ("q4_1", _Q41), ("q4_k", _Q4K),
    ("q6_k", _Q6K)), 1)}


def packing_named(function: str, name: object) -> Packing:
    """Return the packing of a name, in any case."""
    found = PACKINGS.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise DtypeError(f"{function}: unknown packing {name!r:.60}; use one of {', '.join(PACKINGS)}.")
    return found
