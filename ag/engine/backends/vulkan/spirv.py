"""Change the SPIR-V of compiled kernels: functions of a chain, modes of float32 arithmetic, buffers by address.

An instruction is a tuple of 32-bit words: the first holds how many there are, and the instruction's number.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from itertools import count
from typing import NamedTuple

from ag.engine.backends.vulkan.kp import Properties

# Instructions, by their numbers.
_EXTENSION, _MEMORY_MODEL, _ENTRY_POINT, _EXECUTION_MODE, _CAPABILITY, _TYPE_INT = 10, 14, 15, 16, 17, 21
_TYPE_FLOAT, _TYPE_VECTOR, _TYPE_STRUCT, _TYPE_POINTER, _CONSTANT, _FUNCTION, _VARIABLE = 22, 23, 30, 32, 43, 54, 59
_LOAD, _STORE, _CHAIN, _CHAIN_IN_BOUNDS, _DECORATE, _MEMBER_DECORATE, _LABEL = 61, 62, 65, 66, 71, 72, 248
_EQUAL, _PHI, _SELECTION, _BRANCH, _BRANCH_IF, _FUNCTION_END = 170, 245, 247, 249, 250, 56
_TAKES_POINTERS = {57, 63, 64, 68, 169, 245, 4457, 4458}  # calls, copies, lengths, choices, matrices; not atomics
_POINTER, _MASK = {_LOAD: 3, _STORE: 1}, {_LOAD: 4, _STORE: 3}  # which word of an instruction is what
_UNIFORM, _STORAGE_BUFFER, _PHYSICAL = 2, 12, 5349  # storage classes
_BLOCK, _BUFFER_BLOCK, _BINDING, _OFFSET = 2, 3, 33, 35  # decorations
_ADDRESSES, _PHYSICAL_64 = 5347, 5348  # a capability, and an addressing model
_ALIGNED = 2
_NOT_INLINED = 2  # of a function
_BY_ADDRESS = b"SPV_KHR_physical_storage_buffer\0"
_FLOAT_CONTROLS = b"SPV_KHR_float_controls".ljust(24, b"\0")
_HEADER = 5  # words

Instruction = tuple[int, ...]


def read(spirv: bytes) -> tuple[Instruction, list[Instruction]]:
    """Split a module into its header, whose fourth word is above all ids, and its instructions."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    found, at = [], _HEADER
    while at < len(words):
        end = at + (words[at] >> 16)
        found.append(words[at:end])
        at = end
    return words[:_HEADER], found


def written(header: Instruction, instructions: list[Instruction]) -> bytes:
    words = [*header, *(word for x in instructions for word in x)]
    return struct.pack(f"<{len(words)}I", *words)


def code_of(x: Instruction) -> int:
    return x[0] & 0xFFFF


def instruction(code: int, *operands: int) -> Instruction:
    return (len(operands) + 1) << 16 | code, *operands


class Mode(NamedTuple):
    """A capability of SPIR-V and the execution mode that it allows, by their numbers."""

    capability: int
    execution: int


_PRESERVES_NAN = Mode(4466, 4461)  # SignedZeroInfNanPreserve
_ROUNDS_TO_NEAREST = Mode(4467, 4462)  # RoundingModeRTE
_KEEPS_DENORMALS = Mode(4464, 4459)  # DenormPreserve


def modes_of(device: Properties, multiplies: bool) -> tuple[Mode, ...]:
    """Return the modes that a device offers, of those that a kernel wants: without, NVIDIA's relu would hide NaN."""
    # Multiply-adds that keep denormals are four times as slow on older chips of AMD.
    offered = ((_PRESERVES_NAN, device["preserves_nan"]), (_ROUNDS_TO_NEAREST, device["rounds_to_nearest"]),
               (_KEEPS_DENORMALS, device["keeps_denormals"] and not multiplies))
    return tuple(mode for mode, there in offered if there)


def with_modes(spirv: bytes, modes: tuple[Mode, ...]) -> bytes:
    """Return the module with these 32-bit execution modes at its entry point, and their capabilities."""
    if not modes:
        return spirv
    header, instructions = read(spirv)
    last = max(i for i, x in enumerate(instructions) if code_of(x) == _CAPABILITY)
    made = []
    for i, x in enumerate(instructions):
        made.append(x)
        if i == last:
            made += [instruction(_CAPABILITY, mode.capability) for mode in modes]
            made.append(instruction(_EXTENSION, *struct.unpack("<6I", _FLOAT_CONTROLS)))
        if code_of(x) == _ENTRY_POINT:  # a kernel has one
            made += [instruction(_EXECUTION_MODE, x[2], mode.execution, 32) for mode in modes]
    return written(header, made)


class _Module:
    """Index a module by ids, and collect new declarations."""

    def __init__(self, first_new: int, instructions: list[Instruction], bindings: Collection[int]) -> None:
        self.new_id = count(first_new).__next__
        self.types = {x[1]: x for x in instructions if _TYPE_INT <= code_of(x) <= _TYPE_POINTER}
        bound = {x[1] for x in instructions if code_of(x) == _DECORATE and x[2] == _BINDING and x[3] in bindings}
        self.buffers = {x[2]: x for x in instructions if code_of(x) == _VARIABLE and x[2] in bound
                        and x[3] in (_UNIFORM, _STORAGE_BUFFER)}
        self.index = next(x[1] for x in self.types.values() if code_of(x) == _TYPE_INT and x[2] == 32)
        self.zero = self.new_id()
        self.declared = [instruction(_CONSTANT, self.index, self.zero, 0)]
        self.decorated: list[Instruction] = []
        self._pointers: dict[tuple[int, int], int] = {}

    def pointer_to(self, pointee: int, storage: int = _PHYSICAL) -> int:
        """Return the id of a pointer type, declared at its first use."""
        if (storage, pointee) not in self._pointers:
            self._pointers[storage, pointee] = made = self.new_id()
            self.declared.append(instruction(_TYPE_POINTER, made, storage, pointee))
        return self._pointers[storage, pointee]

    def pointee(self, pointer: int) -> int:
        return self.types[pointer][3]

    def alignment(self, element: int) -> int:
        """Return the alignment in bytes of a number or a vector in a buffer."""
        x = self.types[element]
        if code_of(x) in (_TYPE_INT, _TYPE_FLOAT):
            return x[2] // 8
        if code_of(x) == _TYPE_VECTOR:
            nbytes = self.alignment(x[2]) * x[3]
            return nbytes & -nbytes
        raise ValueError(f"a kernel reads or writes elements of type {code_of(x)} of a buffer; numbers and vectors are "
                         f"required.")


def with_functions(spirv: bytes, used: Collection[int]) -> bytes:
    """Return the module of a chain whose `apply` (shaders/apply.glsl), a branch each, knows these functions alone."""
    header, instructions = read(spirv)
    begin = next(i for i, x in enumerate(instructions) if code_of(x) == _FUNCTION and x[3] == _NOT_INLINED)
    end = next(i for i in range(begin, len(instructions)) if code_of(instructions[i]) == _FUNCTION_END)
    constants = {x[2]: x[3] for x in instructions[:begin] if code_of(x) == _CONSTANT}
    function = instructions[begin + 1][2]  # the parameter
    loads, others, gone = set[int](), set[int](), set[int]()
    made, skipped = [(*instructions[begin][:3], 0, *instructions[begin][4:])], 0  # skipped: until this label
    for x in instructions[begin + 1 : end]:
        code = code_of(x)
        if skipped and (code != _LABEL or x[1] != skipped):
            if code == _LABEL or (len(x) > 2 and code != _STORE):
                gone.add(x[1] if code == _LABEL else x[2])
            continue
        skipped = 0
        if code == _LOAD and x[3] == function:
            loads.add(x[2])
        elif code == _EQUAL and loads.intersection(x[3:]) and not any(constants.get(n) in used for n in x[3:]):
            others.add(x[2])
        elif code == _BRANCH_IF and x[1] in others:
            made[-1], skipped = instruction(_BRANCH, x[3]), x[3]  # in the place of the merge instruction
            continue
        elif code == _PHI:
            pairs = [x[i : i + 2] for i in range(3, len(x), 2)]
            x = instruction(_PHI, x[1], x[2], *(word for pair in pairs if pair[1] not in gone for word in pair))
        made.append(x)
    declared = [x for x in instructions[:begin] if code_of(x) != _DECORATE or x[1] not in gone]
    return written(header, [*declared, *made, *instructions[end:]])


def with_addresses(spirv: bytes, bindings: Collection[int]) -> bytes:
    """Return the module that reaches these storage buffers, larger than a descriptor covers, by their address.

    Eight bytes with the address are bound in their place.  The arithmetic keeps its order, hence its bits.
    """
    if not bindings:
        return spirv
    header, instructions = read(spirv)
    module = _Module(header[3], instructions, bindings)
    places = {variable: _declare(module, x, instructions) for variable, x in module.buffers.items()}
    split = next(i for i, x in enumerate(instructions) if code_of(x) == _FUNCTION)
    functions = _changed_functions(module, instructions[split:], places)
    made = list(_changed_declarations(module, instructions[:split]))
    return written((*header[:3], module.new_id(), *header[4:]), made + module.declared + functions)


def _declare(module: _Module, variable: Instruction, instructions: list[Instruction]) -> tuple[int, int]:
    """Declare the address bound in a buffer's place; return the types of a pointer to it and of the address."""
    _, pointer, name, storage = variable[:4]
    held = module.pointee(pointer)
    block = module.new_id()  # the struct that lay there, as one that is found by its address must be
    module.declared.append(instruction(_TYPE_STRUCT, block, *module.types[held][2:]))
    module.decorated += [instruction(_MEMBER_DECORATE, block, *x[2:]) for x in instructions
                         if code_of(x) == _MEMBER_DECORATE and x[1] == held]
    module.decorated.append(instruction(_DECORATE, block, _BLOCK))
    address = module.pointer_to(block)
    bound = module.new_id()
    module.declared.append(instruction(_TYPE_STRUCT, bound, address))
    module.decorated += [instruction(_MEMBER_DECORATE, bound, 0, _OFFSET, 0),
                         instruction(_DECORATE, bound, _BUFFER_BLOCK if storage == _UNIFORM else _BLOCK)]
    module.declared.append(instruction(_VARIABLE, module.pointer_to(bound, storage), name, storage))
    return module.pointer_to(address, storage), address


def _changed_declarations(module: _Module, instructions: list[Instruction]) -> Iterable[Instruction]:
    """Yield what precedes the functions: with the capability, without the old declarations of the buffers."""
    last = max(i for i, x in enumerate(instructions) if code_of(x) == _CAPABILITY)
    decorated = max(i for i, x in enumerate(instructions) if code_of(x) in (_DECORATE, _MEMBER_DECORATE))
    for i, x in enumerate(instructions):
        if code_of(x) == _MEMORY_MODEL:
            yield instruction(_MEMORY_MODEL, _PHYSICAL_64, x[2])
        elif code_of(x) != _VARIABLE or x[2] not in module.buffers:
            yield x
        if i == last:
            yield instruction(_CAPABILITY, _ADDRESSES)
            yield instruction(_EXTENSION, *struct.unpack(f"<{len(_BY_ADDRESS) // 4}I", _BY_ADDRESS))
        if i == decorated:
            yield from module.decorated


def _changed_functions(module: _Module, instructions: list[Instruction],
                       places: dict[int, tuple[int, int]]) -> list[Instruction]:
    """Return the functions, each of which loads the addresses first."""
    made: list[Instruction] = []
    here: dict[int, int] = {}  # the address of a buffer in this function
    alignments: dict[int, int] = {}  # of what a pointer into a buffer points to
    begins = False  # in the first block of a function, which begins with its variables
    for x in instructions:
        code = code_of(x)
        if code == _FUNCTION:
            begins, here = True, {}
        elif begins and code not in (_LABEL, _VARIABLE) and code_of(made[-1]) in (_LABEL, _VARIABLE):
            begins = False
            for buffer, (where, address) in places.items():
                found, here[buffer] = module.new_id(), module.new_id()
                made += [instruction(_CHAIN, where, found, buffer, module.zero),
                         instruction(_LOAD, address, here[buffer], found)]
        if code in (_CHAIN, _CHAIN_IN_BOUNDS) and (x[3] in here or x[3] in alignments):
            element = module.pointee(x[1])
            alignments[x[2]] = module.alignment(element)
            made.append(instruction(code, module.pointer_to(element), x[2], here.get(x[3], x[3]), *x[4:]))
        elif code in _POINTER and x[_POINTER[code]] in alignments:
            at, alignment = _MASK[code], alignments[x[_POINTER[code]]]
            mask, *rest = x[at:] or (0,)  # of memory operands, which the alignment follows
            made.append(instruction(code, *x[1:at], mask | _ALIGNED, alignment, *rest))
        else:
            if code in _TAKES_POINTERS and any(word in alignments or word in here for word in x[1:]):
                raise ValueError(f"a kernel uses a pointer into a buffer in instruction {code}, which is not known to "
                                 f"be possible by address.")
            made.append(x)
    return made
