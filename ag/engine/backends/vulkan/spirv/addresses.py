"""Buffers that a kernel reaches by their address, as no descriptor covers them.

A storage buffer is bound by a descriptor, which covers at most maxStorageBufferRange bytes: 128 MiB on lavapipe and on
many phones.  A larger tensor lies in a buffer of its own, and what is bound in its place are eight bytes: its address.
The compiled kernels know nothing of that.  `with_addresses` changes their SPIR-V as they are loaded, for the bindings
that need it; for binding 1, where ``%x`` is a buffer of floats::

    %floats = OpTypeStruct %array             %floats = OpTypeStruct %array
                                              %at = OpTypePointer PhysicalStorageBuffer %floats
                                              %bound = OpTypeStruct %at
    %x = OpVariable ... %floats               %x = OpVariable ... %bound
                                              %where = OpAccessChain %x 0
                                              %here = OpLoad %at %where
    %e = OpAccessChain %x 0 %i                %e = OpAccessChain %here 0 %i
    %value = OpLoad %float %e                 %value = OpLoad %float %e Aligned 4

The arithmetic is the same, in the same order, so results have the same bits.  Knows SPIR-V, no kernel and no device.
`ag.engine.backends.vulkan.pipelines` calls it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from itertools import count

from ag.engine.backends.vulkan.spirv.module import Instruction, code_of, instruction, read, written

__all__ = ["with_addresses"]

# Instructions, by their numbers.
_EXTENSION, _MEMORY_MODEL, _CAPABILITY, _TYPE_INT, _TYPE_FLOAT, _TYPE_VECTOR = 10, 14, 17, 21, 22, 23
_TYPE_STRUCT, _TYPE_POINTER, _CONSTANT, _FUNCTION, _VARIABLE = 30, 32, 43, 54, 59
_LOAD, _STORE, _CHAIN, _CHAIN_IN_BOUNDS, _DECORATE, _MEMBER_DECORATE, _LABEL = 61, 62, 65, 66, 71, 72, 248
_TAKES_POINTERS = {57, 63, 64, 68, 169, 245, 4457, 4458}  # calls, copies, lengths, choices, matrices; not atomics
_POINTER, _MASK = {_LOAD: 3, _STORE: 1}, {_LOAD: 4, _STORE: 3}  # which word of an instruction is what
_UNIFORM, _STORAGE_BUFFER, _PHYSICAL = 2, 12, 5349  # storage classes
_BLOCK, _BUFFER_BLOCK, _BINDING, _OFFSET = 2, 3, 33, 35  # decorations
_ADDRESSES, _PHYSICAL_64 = 5347, 5348  # a capability, and an addressing model
_ALIGNED = 2
_NAME = b"SPV_KHR_physical_storage_buffer\0"


class _Module:
    """What of a module is looked at, and the ids of what is new."""

    def __init__(self, first_new: int, instructions: list[Instruction], bindings: Collection[int]) -> None:
        self.new_id = count(first_new).__next__
        self.types = {x[1]: x for x in instructions if _TYPE_INT <= code_of(x) <= _TYPE_POINTER}
        bound = {x[1] for x in instructions
                 if code_of(x) == _DECORATE and x[2] == _BINDING and x[3] in bindings}
        self.buffers = {x[2]: x for x in instructions if code_of(x) == _VARIABLE and x[2] in bound
                        and x[3] in (_UNIFORM, _STORAGE_BUFFER)}
        self.index = next(x[1] for x in self.types.values() if code_of(x) == _TYPE_INT and x[2] == 32)
        self.zero = self.new_id()
        self.declared = [instruction(_CONSTANT, self.index, self.zero, 0)]
        self.decorated: list[Instruction] = []
        self._pointers: dict[tuple[int, int], int] = {}

    def pointer_to(self, pointee: int, storage: int = _PHYSICAL) -> int:
        """The type of a pointer, declared when first asked for."""
        if (storage, pointee) not in self._pointers:
            self._pointers[storage, pointee] = made = self.new_id()
            self.declared.append(instruction(_TYPE_POINTER, made, storage, pointee))
        return self._pointers[storage, pointee]

    def pointee(self, pointer: int) -> int:
        """What a pointer of a type points to."""
        return self.types[pointer][3]

    def alignment(self, element: int) -> int:
        """Bytes of which an element's place in a buffer is a multiple: all of a number's, and of 4 or 2 numbers'."""
        x = self.types[element]
        if code_of(x) in (_TYPE_INT, _TYPE_FLOAT):
            return x[2] // 8
        if code_of(x) == _TYPE_VECTOR:
            nbytes = self.alignment(x[2]) * x[3]
            return nbytes & -nbytes
        raise ValueError(f"a kernel reads or writes elements of type {code_of(x)} of a buffer; numbers and vectors are "
                         f"required.")


def with_addresses(spirv: bytes, bindings: Collection[int]) -> bytes:
    """The same module, which finds the address of each of these storage buffers in what is bound in its place.

    Raises
    ------
    ValueError
        If the module does with such a buffer what is not known here.
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
    """Declare what is bound in the place of a buffer; types of a pointer to the address there, and of the address."""
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
    """All that comes before functions, with the capability, and without the buffers, which are declared anew."""
    last = max(i for i, x in enumerate(instructions) if code_of(x) == _CAPABILITY)
    decorated = max(i for i, x in enumerate(instructions) if code_of(x) in (_DECORATE, _MEMBER_DECORATE))
    for i, x in enumerate(instructions):
        if code_of(x) == _MEMORY_MODEL:
            yield instruction(_MEMORY_MODEL, _PHYSICAL_64, x[2])
        elif code_of(x) != _VARIABLE or x[2] not in module.buffers:
            yield x
        if i == last:
            yield instruction(_CAPABILITY, _ADDRESSES)
            yield instruction(_EXTENSION, *struct.unpack(f"<{len(_NAME) // 4}I", _NAME))
        if i == decorated:
            yield from module.decorated


def _changed_functions(module: _Module, instructions: list[Instruction],
                       places: dict[int, tuple[int, int]]) -> list[Instruction]:
    """The functions, which load the addresses first."""
    made: list[Instruction] = []
    here: dict[int, int] = {}  # the address of a buffer in this function
    alignments: dict[int, int] = {}  # of what a pointer into a buffer points to
    begins = False  # whether we are in the first block of a function, where its variables come first
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
            made.append(_aligned(x, alignments[x[_POINTER[code]]]))
        else:
            if _uses(x, alignments, here):
                raise ValueError(f"a kernel uses a pointer into a buffer in instruction {code}, which is not known to "
                                 f"be possible by address.")
            made.append(x)
    return made


def _uses(x: Instruction, *pointers: Collection[int]) -> bool:
    """Whether an instruction that takes pointers takes one of these."""
    return code_of(x) in _TAKES_POINTERS and any(word in known for word in x[1:] for known in pointers)


def _aligned(x: Instruction, alignment: int) -> Instruction:
    """A load or store with its alignment, which comes first of what follows the mask of memory operands."""
    at = _MASK[code_of(x)]
    mask, *rest = x[at:] or (0,)
    return instruction(code_of(x), *x[1:at], mask | _ALIGNED, alignment, *rest)
