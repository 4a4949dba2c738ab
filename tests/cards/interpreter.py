"""Run a workgroup of a compiled kernel in numpy, all invocations side by side, and note each access to memory.

The current block that is first in the program's order runs next, so that lanes that parted meet again, as on a card.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ag.engine.backends.vulkan.spirv import code_of, read

Array = np.ndarray[Any, Any]
_PHI, _VARIABLE, _RETURN = 245, 59, 253
_FUNCTION, _PRIVATE, _WORKGROUP, _PUSH, _INPUT = 7, 6, 4, 9, 1  # storage classes; the others are buffers
_BUILTIN = {24: "groups", 26: "group", 27: "lane", 28: "invocation", 25: "size"}
_F, _U, _B = np.dtype(np.float32), np.dtype(np.uint32), np.dtype(bool)


class Access(NamedTuple):
    """One instruction, run once: which operand (its binding), each lane's first byte, bytes per lane, who has part."""

    writes: bool
    binding: int
    at: Array
    nbytes: int
    lanes: Array


@dataclass
class Pointer:
    """A place in memory: a variable and the indices into it, a number per lane each."""

    variable: int
    storage: int
    path: list[Array]


@dataclass
class Type:
    """A scalar, a vector, matrix or array by its axes, or a structure of members."""

    dtype: np.dtype[Any] = _U
    axes: tuple[int, ...] = ()
    members: tuple[int, ...] = ()


@dataclass
class Module:
    """The declarations of a module, and the blocks of its only function."""

    types: dict[int, Type] = field(default_factory=dict)
    pointers: dict[int, tuple[int, int]] = field(default_factory=dict)  # storage class, what is there
    constants: dict[int, Any] = field(default_factory=dict)
    variables: dict[int, tuple[int, int]] = field(default_factory=dict)  # storage class, type
    places: dict[int, dict[int, int]] = field(default_factory=dict)  # decorations: of an id, by number
    offsets: dict[tuple[int, int], int] = field(default_factory=dict)  # of members, in bytes
    blocks: list[list[tuple[int, tuple[int, ...]]]] = field(default_factory=list)
    labels: dict[int, int] = field(default_factory=dict)  # label -> number of the block


def instructions(spirv: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each instruction's number and operands."""
    return ((code_of(x), x[1:]) for x in read(spirv)[1])


def parsed(spirv: bytes, spec: Sequence[int]) -> Module:
    """A module whose specialization constants have these values, as words."""
    m = Module()
    for code, x in instructions(spirv):
        if m.blocks and code != 248:
            m.blocks[-1].append((code, x))
        elif code == 71 and len(x) > 1:  # OpDecorate
            m.places.setdefault(x[0], {})[x[1]] = x[2] if len(x) > 2 else 0
        elif code == 72 and x[2] == 35:  # OpMemberDecorate Offset
            m.offsets[x[0], x[1]] = x[3]
        elif code in (20, 21, 22):  # bool, integer, float
            dtype = {20: _B, 22: _F}.get(code, np.dtype(np.int32) if code == 21 and x[2] else _U)
            m.types[x[0]] = Type(dtype)
        elif code in (23, 24, 28, 29):  # vector, matrix, array, runtime array
            inner = m.types[x[1]]
            count = 0 if code == 29 else int(m.constants[x[2]][0]) if code == 28 else x[2]
            m.types[x[0]] = Type(inner.dtype, (count, *inner.axes), inner.members)
        elif code == 30:
            m.types[x[0]] = Type(members=x[1:])
        elif code == 32:
            m.pointers[x[0]] = x[1], x[2]
        elif code == _VARIABLE:
            m.variables[x[1]] = x[2], m.pointers[x[0]][1]
        elif code in (41, 42, 48, 49):
            m.constants[x[1]] = np.array([code in (41, 48)])
        elif code in (43, 50):
            word = spec[m.places[x[1]][1]] if code == 50 else x[2]
            m.constants[x[1]] = np.array([word], np.uint32).view(m.types[x[0]].dtype)
        elif code in (44, 51):
            m.constants[x[1]] = np.stack([m.constants[i] for i in x[2:]], 1)
        elif code in (1, 46):  # undefined, null
            m.constants[x[1]] = np.zeros((1, *m.types[x[0]].axes), m.types[x[0]].dtype)
        elif code == 52:
            m.constants[x[1]] = _computed(x[2], [m.constants[i] for i in x[3:]], m.types[x[0]], ())
        elif code == 248:
            m.labels[x[0]] = len(m.blocks)
            m.blocks.append([])
    return m


class Workgroup:
    """The `local_size` invocations of one workgroup, along the first axis, and its memory; buffers are written to."""

    def __init__(self, module: Module, local_size: int, push: bytes, buffers: list[Array]) -> None:
        self._m, self._n, self._push, self._buffers = module, local_size, push, buffers
        self._lanes = np.arange(local_size)
        self.accesses: list[Access] = []

    def run(self, group: tuple[int, int, int], groups: tuple[int, int, int]) -> None:
        m, n = self._m, self._n
        self._inputs = {"groups": np.array([groups], np.uint32), "group": np.array([group], np.uint32),
                        "lane": np.stack([self._lanes, 0 * self._lanes, 0 * self._lanes], 1).astype(np.uint32)}
        self._memory = {i: np.zeros((n * (s != _WORKGROUP) or 1, *m.types[t].axes), m.types[t].dtype)
                        for i, (s, t) in m.variables.items() if s in (_PRIVATE, _WORKGROUP)}
        self._values: dict[int, Any] = dict(m.constants)
        self._values |= {i: Pointer(i, s, []) for i, (s, _) in m.variables.items()}
        self._at, self._from = np.zeros(n, np.int64), np.zeros(n, np.int64)
        names = {number: label for label, number in m.labels.items()}
        with np.errstate(all="ignore"):
            while (self._at < len(m.blocks)).any():
                block = int(self._at.min())
                self._block(block, names[block], self._at == block)

    # ------------------------------------------------------------------------------------------ control

    def _block(self, number: int, label: int, mask: Array) -> None:
        body = self._m.blocks[number]
        phis = [(x, self._phi(x)) for code, x in body if code == _PHI]
        for x, value in phis:
            self._set(x[1], value, mask)
        for code, x in body:
            if code in (_PHI, 246, 247):  # and OpLoopMerge, OpSelectionMerge
                continue
            if code in (249, 250, 251, _RETURN):
                self._leave(code, x, label, mask)
                return
            self._step(code, x, mask)

    def _phi(self, x: tuple[int, ...]) -> Any:
        found = None
        for value, source in zip(x[2::2], x[3::2], strict=True):
            if value in self._values:
                new = self._values[value]
                found = new if found is None else _merged(self._from == source, new, found, self._n)
        return found

    def _leave(self, code: int, x: tuple[int, ...], label: int, mask: Array) -> None:
        labels = self._m.labels
        target: Any
        if code == _RETURN:
            target = len(self._m.blocks)
        elif code == 249:
            target = labels[x[0]]
        elif code == 250:
            target = np.where(self._values[x[0]], labels[x[1]], labels[x[2]])
        else:
            target, selector = labels[x[1]], self._values[x[0]]
            for literal, to in zip(x[2::2], x[3::2], strict=True):
                target = np.where(selector == literal, labels[to], target)
        self._at = np.where(mask, target, self._at)
        self._from = np.where(mask, label, self._from)

    def _set(self, result: int, value: Any, mask: Array) -> None:
        old = self._values.get(result)
        if old is None or (isinstance(value, Pointer) and not value.path) or mask.all():
            self._values[result] = value
        else:
            self._values[result] = _merged(mask, value, old, self._n)

    def _step(self, code: int, x: tuple[int, ...], mask: Array) -> None:
        values = self._values
        if code == _VARIABLE:
            kind = self._m.types[self._m.pointers[x[0]][1]]
            self._memory[x[1]] = np.zeros((self._n, *kind.axes), kind.dtype)
            values[x[1]] = Pointer(x[1], _FUNCTION, [])
        elif code == 62:
            self._store(values[x[0]], values[x[1]], mask)
        elif code == 224:
            assert mask.sum() == (self._at < len(self._m.blocks)).sum(), "not all invocations are at this barrier"
        elif code == 225:  # a barrier for memory, which is never late here
            pass
        elif code == 61:
            self._set(x[1], self._load(values[x[2]], self._m.types[x[0]], mask), mask)
        elif code == 65:
            base = values[x[2]]
            self._set(x[1], Pointer(base.variable, base.storage, [*base.path, *(values[i] for i in x[3:])]), mask)
        elif code in _ATOMIC:
            self._set(x[1], self._atomic(_ATOMIC[code], values[x[2]], values[x[5]], mask), mask)
        elif code == 12:  # OpExtInst
            self._set(x[1], _function(x[3], [values[i] for i in x[4:]]), mask)
        else:
            extract = code in (81, 82)
            operands = x[2:3] if code == 81 else x[2:4] if code == 82 else x[2:]
            literals = (x[3:] if code == 81 else x[4:]) if extract else ()
            self._set(x[1], _computed(code, [values[i] for i in operands], self._m.types[x[0]], literals), mask)

    # ------------------------------------------------------------------------------------------ memory

    def _index(self, pointer: Pointer, mask: Array) -> tuple[Array, ...]:
        """An index of numpy for each lane; of lanes that take no part, 0."""
        path = [np.where(mask, i, 0).astype(np.int64) for i in pointer.path]
        return (self._lanes * (pointer.storage != _WORKGROUP), *path)

    def _words(self, pointer: Pointer, mask: Array, count: int) -> Array:
        """Numbers of the words of a buffer, [lane, word]."""
        stride = 4 if count == 4 or len(pointer.path) == 3 else 1  # a buffer may be seen as vectors of four
        at = np.where(mask, pointer.path[1], 0).astype(np.int64) * stride
        if len(pointer.path) == 3:
            at = at + np.where(mask, pointer.path[2], 0)
        words: Array = np.broadcast_to(at, self._n)[:, None] + np.arange(count)
        return words

    def _note(self, writes: bool, pointer: Pointer, words: Array, mask: Array) -> Array:
        binding = self._m.places[pointer.variable][33]
        self.accesses.append(Access(writes, binding, 4 * words[:, 0], 4 * words.shape[1], mask))
        return self._buffers[binding]

    def _load(self, pointer: Pointer, kind: Type, mask: Array) -> Any:
        if pointer.storage == _INPUT:
            whole = self._inputs[_BUILTIN[self._m.places[pointer.variable][11]]]
            return whole[:, int(pointer.path[0][0])] if pointer.path else whole
        if pointer.storage == _PUSH:
            return self._pushed(pointer, kind)
        if pointer.variable in self._memory:
            return self._memory[pointer.variable][self._index(pointer, mask)]
        words = self._words(pointer, mask, kind.axes[0] if kind.axes else 1)
        found = self._note(False, pointer, words, mask)[words].view(kind.dtype)
        return found if kind.axes else found[:, 0]

    def _pushed(self, pointer: Pointer, kind: Type) -> Array:
        member = int(pointer.path[0][0])
        structure = self._m.variables[pointer.variable][1]
        at = self._m.offsets[structure, member] // 4
        words = np.frombuffer(self._push, np.uint32)[at:].view(kind.dtype)
        if kind.axes:
            return words[None, : kind.axes[0]]
        return words[pointer.path[1].astype(np.int64)] if len(pointer.path) > 1 else words[:1]

    def _store(self, pointer: Pointer, value: Any, mask: Array) -> None:
        value = np.broadcast_to(value, (self._n, *np.shape(value)[1:]))
        if pointer.variable in self._memory:
            index = tuple(np.broadcast_to(i, self._n)[mask] for i in self._index(pointer, mask))
            self._memory[pointer.variable][index] = value[mask]
            return
        words = self._words(pointer, mask, value.shape[1] if value.ndim > 1 else 1)
        buffer = self._note(True, pointer, words, mask)
        buffer[words[mask]] = np.ascontiguousarray(value).view(np.uint32).reshape(words.shape)[mask]

    def _atomic(self, change: Any, pointer: Pointer, value: Array, mask: Array) -> Array:
        if pointer.variable in self._memory:
            words = np.stack([np.broadcast_to(i, self._n) for i in self._index(pointer, mask)], 1)
            memory = self._memory[pointer.variable]
        else:
            words = self._words(pointer, mask, 1)
            memory = self._note(True, pointer, words, mask)
        found, values = np.zeros(self._n, np.uint32), np.broadcast_to(value, self._n)
        for lane in np.flatnonzero(mask):
            at = tuple(words[lane])
            found[lane] = memory[at]
            memory[at] = change(found[lane], values[lane])
        return found


def _merged(mask: Array, new: Any, old: Any, lanes: int) -> Any:
    if isinstance(new, tuple):
        return tuple(_merged(mask, a, b, lanes) for a, b in zip(new, old, strict=True))
    if isinstance(new, Pointer):
        return Pointer(new.variable, new.storage, [
            _merged(mask, a, b, lanes) for a, b in zip(new.path, old.path, strict=True)])
    return np.where(mask.reshape(-1, *(1,) * (np.ndim(new) - 1)), new, old)


_ATOMIC = {234: np.add, 241: np.bitwise_or}
_SIGNED = {111, 135, 173, 175, 177, 179}  # instructions that take their operands' bits for signed numbers


def _as_words(x: Array, signed: bool) -> Array:
    """Integers as the instruction takes them, whatever they were declared."""
    return x.view(np.int32 if signed else np.uint32) if x.dtype in (np.int32, np.uint32) else x


_PLAIN: dict[int, Any] = {
    109: lambda x: np.clip(np.nan_to_num(x), 0, 4294967040).astype(np.uint32), 112: lambda x: x.astype(np.float32),
    110: lambda x: x.astype(np.int32), 111: lambda x: x.astype(np.float32), 113: lambda x: x, 114: lambda x: x,
    126: lambda x: 0 - x, 127: lambda x: -x, 128: np.add, 129: np.add, 130: np.subtract, 131: np.subtract,
    132: np.multiply, 133: np.multiply, 134: np.floor_divide, 135: lambda x, y: (x / y).astype(np.int32),
    136: np.divide, 137: np.remainder, 140: np.fmod, 141: np.mod, 142: lambda x, s: x * s[:, None],
    147: lambda x, y: x[:, None, :] * y[:, :, None], 148: lambda x, y: (x * y).sum(1, dtype=np.float32),
    84: lambda x: np.swapaxes(x, 1, 2), 155: lambda x: x.all(1),
    156: np.isnan, 157: np.isinf, 164: np.equal, 165: np.not_equal,
    166: np.logical_or, 167: np.logical_and, 168: np.logical_not, 170: np.equal, 171: np.not_equal,
    172: np.greater, 173: np.greater, 174: np.greater_equal, 175: np.greater_equal, 176: np.less, 177: np.less,
    178: np.less_equal, 179: np.less_equal, 180: np.equal, 182: np.not_equal, 183: np.not_equal, 184: np.less,
    186: np.greater, 188: np.less_equal, 190: np.greater_equal, 194: np.right_shift,
    196: lambda x, s: x << s, 197: np.bitwise_or, 198: np.bitwise_xor, 199: np.bitwise_and, 200: np.invert,
    205: lambda x: sum((x >> np.uint32(bit)) & np.uint32(1) for bit in range(32)),
}


def _computed(code: int, x: list[Any], kind: Type, literals: tuple[int, ...]) -> Any:
    if code in _PLAIN:
        found = _PLAIN[code](*(_as_words(i, code in _SIGNED) for i in x))
        return found.astype(kind.dtype) if found.dtype.kind in "iu" else found
    if code == 124:
        return np.ascontiguousarray(x[0]).view(kind.dtype)
    if code == 169:
        choice = x[0].reshape(-1, *(1,) * (max(np.ndim(x[1]), np.ndim(x[2])) - np.ndim(x[0])), *x[0].shape[1:])
        return np.where(choice, x[1], x[2])
    if code == 80:
        return _constructed(x, kind)
    if code == 81:
        found = x[0]
        for i in literals:
            found = found[i] if isinstance(found, tuple) else found[:, i]
        return found
    if code == 82:
        whole = np.array(np.broadcast_to(x[1], (max(len(x[0]), len(x[1])), *x[1].shape[1:])))
        whole[(slice(None), *literals)] = x[0]
        return whole
    if code in (149, 151):  # OpIAddCarry, OpUMulExtended
        wide = [i.astype(np.uint64) for i in x]
        both = wide[0] + wide[1] if code == 149 else wide[0] * wide[1]
        return both.astype(np.uint32), (both >> np.uint64(32)).astype(np.uint32)
    raise NotImplementedError(f"instruction {code} of SPIR-V")


def _constructed(x: list[Any], kind: Type) -> Any:
    if kind.members and not kind.axes:
        return tuple(x)
    lanes = max(len(i) for i in x)
    whole = [np.broadcast_to(i, (lanes, *i.shape[1:])) for i in x]
    if len(kind.axes) == 1:
        return np.concatenate([i.reshape(lanes, -1) for i in whole], 1)
    return np.stack(whole, 1)


_FUNCTIONS: dict[int, Any] = {
    4: np.abs, 8: np.floor, 13: np.sin, 14: np.cos, 26: lambda x, y: np.power(x, y), 27: np.exp, 28: np.log,
    29: np.exp2, 30: np.log2, 31: np.sqrt, 32: lambda x: 1 / np.sqrt(x), 37: np.fmin, 38: np.minimum, 40: np.fmax,
    41: np.maximum, 73: lambda x: np.log2(np.maximum(x & -x, 1)).astype(np.int32) - (x == 0),
    46: lambda x, y, t: x * (1 - t) + y * t, 50: lambda x, y, z: x * y + z,
}


def _function(code: int, x: list[Array]) -> Array:
    if code not in _FUNCTIONS:
        raise NotImplementedError(f"function {code} of GLSL.std.450")
    found: Array = _FUNCTIONS[code](*x)
    return found
