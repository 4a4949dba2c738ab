"""What a shader asks of float32 arithmetic where its driver lets it choose: NaN, infinity and -0 are kept, sums round
to the nearest, and small numbers do not become zero.

A driver may otherwise take for granted that there is no NaN and no infinity: NVIDIA's makes ``x < 0 ? 0 : x`` the
larger of x and 0, which is 0 for NaN, so that a relu would hide that a training has diverged.  A shader asks by an
execution mode of SPV_KHR_float_controls, which is allowed only on devices that offer it.  So the compiled kernels ask
for nothing, and `with_modes` adds it to their SPIR-V as they are loaded::

    OpCapability Shader                       OpCapability Shader
                                              OpCapability SignedZeroInfNanPreserve
                                              OpExtension "SPV_KHR_float_controls"
    OpEntryPoint GLCompute %4 "main"          OpEntryPoint GLCompute %4 "main"
                                              OpExecutionMode %4 SignedZeroInfNanPreserve 32
    OpExecutionMode %4 LocalSize 128 1 1      OpExecutionMode %4 LocalSize 128 1 1

Denormals, below 1.2e-38, are kept by kernels that are bound by memory.  Where many products are added up they may
become zero: on older chips of AMD the multiply-add that keeps them takes four times as long.

Knows words, no kernel and no device.  `ag.engine.backends.vulkan.pipelines` calls it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ag.engine.backends.vulkan.kp_types import Properties
from ag.engine.backends.vulkan.spirv.module import code_of, instruction, read, written

__all__ = ["Mode", "modes_of", "with_modes"]

_EXTENSION, _ENTRY_POINT, _EXECUTION_MODE, _CAPABILITY = 10, 15, 16, 17  # instructions
_NAME = b"SPV_KHR_float_controls".ljust(24, b"\0")


class Mode(NamedTuple):
    """A capability of SPIR-V and the execution mode that it allows, by their numbers."""

    capability: int
    execution: int


_PRESERVES_NAN = Mode(4466, 4461)  # SignedZeroInfNanPreserve
_ROUNDS_TO_NEAREST = Mode(4467, 4462)  # RoundingModeRTE
_KEEPS_DENORMALS = Mode(4464, 4459)  # DenormPreserve


def modes_of(device: Properties, multiplies: bool) -> tuple[Mode, ...]:
    """The modes that a device offers, of those that a kernel wants which `multiplies` much, or does not."""
    offered = ((_PRESERVES_NAN, device["preserves_nan"]), (_ROUNDS_TO_NEAREST, device["rounds_to_nearest"]),
               (_KEEPS_DENORMALS, device["keeps_denormals"] and not multiplies))
    return tuple(mode for mode, there in offered if there)


def with_modes(spirv: bytes, modes: tuple[Mode, ...]) -> bytes:
    """The same module, whose entry point asks for these modes in 32 bits."""
    if not modes:
        return spirv
    header, instructions = read(spirv)
    last = max(i for i, x in enumerate(instructions) if code_of(x) == _CAPABILITY)
    made = []
    for i, x in enumerate(instructions):
        made.append(x)
        if i == last:
            made += [instruction(_CAPABILITY, mode.capability) for mode in modes]
            made.append(instruction(_EXTENSION, *struct.unpack("<6I", _NAME)))
        if code_of(x) == _ENTRY_POINT:  # of which a kernel has one
            made += [instruction(_EXECUTION_MODE, x[2], mode.execution, 32) for mode in modes]
    return written(header, made)
