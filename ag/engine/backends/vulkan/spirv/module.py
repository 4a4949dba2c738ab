"""A module of SPIR-V as its instructions, and back.

An instruction is a tuple of 32-bit words: the first holds how many there are and which instruction it is.  Knows the
form of modules, and what no instruction means.  `float_modes` and `addresses` use it.
"""

from __future__ import annotations

import struct

__all__ = ["Instruction", "code_of", "instruction", "read", "written"]

Instruction = tuple[int, ...]
_HEADER = 5  # words


def read(spirv: bytes) -> tuple[Instruction, list[Instruction]]:
    """The words before the first instruction, of which the fourth is above all ids, and all instructions."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    found, at = [], _HEADER
    while at < len(words):
        end = at + (words[at] >> 16)
        found.append(words[at:end])
        at = end
    return words[:_HEADER], found


def written(header: Instruction, instructions: list[Instruction]) -> bytes:
    """The module."""
    words = [*header, *(word for x in instructions for word in x)]
    return struct.pack(f"<{len(words)}I", *words)


def code_of(x: Instruction) -> int:
    """Which instruction it is."""
    return x[0] & 0xFFFF


def instruction(code: int, *operands: int) -> Instruction:
    """An instruction with these operands."""
    return (len(operands) + 1) << 16 | code, *operands
