"""Run one kernel on one driver, without the Vulkan backend: operands between guard words in one tensor.

The packing is written anew here, from the manifest, so that the backend and this check each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import kp
import numpy as np

from ag.engine.primitive import Primitive

SPV = Path(__file__).parents[2] / "ag" / "engine" / "backends" / "vulkan" / "spv"
ALIGN = 64  # words; Vulkan's largest allowed minStorageBufferOffsetAlignment is 256 bytes
GUARD = 0xDEADBEEF
POISON = 0x7FC0BAD0  # a NaN: outputs must not be read, and every word of them must be written
MAX_GROUPS = 65535

Array = np.ndarray[Any, Any]


class Driver:
    """One Vulkan device, and the kernels to run on it."""

    def __init__(self, index: int) -> None:
        self.manager = kp.Manager(index)
        self.name = self.manager.get_device_properties()["device_name"]
        self.kernels = json.loads((SPV / "manifest.json").read_text("utf-8"))["kernels"]

    def run(self, primitive: Primitive, arrays: Sequence[Array], times: int = 1, **params: Any) -> list[Array]:
        """Launch a kernel and return all operands as they are afterwards.

        `arrays` are all operands in the reference's order, outputs as arrays of the right shape and type whose
        values do not count.  Guard words and operands that the kernel may not write are checked.
        """
        kernel = self.kernels[primitive.name]
        operands = kernel["operands"]
        places, words = [], ALIGN
        for array in arrays:
            places.append(words)
            words += -(-array.size // ALIGN) * ALIGN + ALIGN
        memory = np.full(words, GUARD, np.uint32)
        for i, (array, at) in enumerate(zip(arrays, places, strict=True)):
            assert array.dtype.itemsize == 4
            fresh = i < primitive.outputs
            memory[at : at + array.size] = POISON if fresh else array.reshape(-1).view(np.uint32)

        defaults = {c["name"]: c["default"] for c in kernel["spec"]}
        values = {**defaults, **params, **primitive.layout(*(a.shape for a in arrays), **params)}
        values |= {f"{o['name']}_at": at for o, at in zip(operands, places, strict=True)}
        push = np.array([w for m in kernel["push"] for w in _words(m, values[m["name"]])], np.uint32)
        spec = [w for c in kernel["spec"] for w in _words({**c, "count": 1}, values[c["name"]])]

        tensor = self.manager.tensor_t(memory)
        algorithm = self.manager.algorithm([tensor] * len(operands), (SPV / f"{primitive.name}.spv").read_bytes(),
                                           (1, 1, 1), np.array(spec, np.uint32), np.zeros(push.size, np.uint32))
        self.manager.sequence().eval(kp.OpTensorSyncDevice([tensor]))
        sequence = self.manager.sequence()
        for _ in range(times):
            sequence.dispatch(algorithm, push.tobytes(), *_groups(kernel, values))
        sequence.eval()
        self.manager.sequence().eval(kp.OpTensorSyncLocal([tensor]))
        after = np.array(tensor.data(), copy=True).view(np.uint32)

        results = []
        untouched = np.ones(words, bool)
        for operand, array, at in zip(operands, arrays, places, strict=True):
            part = slice(at, at + array.size)
            results.append(after[part].view(array.dtype).reshape(array.shape))
            untouched[part] = not operand["writes"]
        message = f"{primitive.name} on {self.name} writes outside its outputs"
        np.testing.assert_array_equal(after[untouched], memory[untouched], message)
        return results


def _words(member: dict[str, Any], value: Any) -> list[int]:
    """A parameter as 32-bit words."""
    given = value if isinstance(value, tuple) else (value,)
    assert len(given) == member["count"], f"{member['name']} takes {member['count']} values, not {given}"
    kind = {"uint": np.uint32, "int": np.int32, "float": np.float32}[member["type"]]
    return [int(w) for w in np.array(given, kind).view(np.uint32)]


def _groups(kernel: dict[str, Any], values: dict[str, Any]) -> tuple[int, int, int]:
    """Workgroups along x, y and z."""
    counts = [_count(axis, values) for axis in kernel["grid"]["axes"]]
    if kernel["grid"]["unit"] == "invocations":
        counts = [-(-counts[0] // prod(kernel["local_size"]))]
    if len(counts) == 1 and counts[0] > MAX_GROUPS:
        counts = [MAX_GROUPS, -(-counts[0] // MAX_GROUPS)]
    x, y, z = (*counts, 1, 1)[:3]
    return x, y, z


def _count(expression: str, values: dict[str, Any]) -> int:
    words = expression.split()
    numbers = [int(w) if w.isdigit() else values[w] for w in words[::2]]
    total = numbers[0]
    for sign, number in zip(words[1::2], numbers[1:], strict=True):
        total = total * number if sign == "*" else -(-total // number)
    return int(total)


def reference(primitive: Primitive, arrays: Sequence[Array], **params: Any) -> list[Array]:
    """What the primitive's numpy function makes of copies of the same operands."""
    copies = [array.copy() for array in arrays]
    with np.errstate(all="ignore"):
        primitive.reference(*copies, **params)
    return copies
