"""Quotients by multiplication and shift are those of integers, and operands that are walked by them come in order."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernels_build
from ag.engine import shape as shapes
from ag.engine.backends.shader.plans import END, divisors, manifest, multiplier_and_shift, steps
from ag.engine.shape import Shape

# All small divisors, the powers of two and what is beside them, the largest, and some of every size.
DIVISORS = sorted({*range(1, 300), *(1 << k for k in range(32)), *((1 << k) - 1 for k in range(2, 32)),
                   *((1 << k) + 1 for k in range(1, 31)), *(END // k for k in range(1, 40)),
                   *(int(2.0**x) for x in np.random.default_rng(0).uniform(0, 31, 400))})
KERNEL = """#version 450
#extension GL_GOOGLE_include_directive : require
#include "quotient.glsl"
layout(local_size_x = 128) in;
layout(set = 0, binding = 0) buffer Out_ { uint out_[]; };
layout(set = 0, binding = 1) readonly buffer N_ { uint n[]; };
layout(push_constant) uniform Args { uint count, multiplier, shift; };
void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i < count) out_[i] = quotient(n[i], multiplier, shift);
}
"""


def dividends(divisor: int) -> np.ndarray[Any, Any]:
    """Numbers below `END`: multiples of the divisor, most of them first, last or just before one, and others."""
    rng = np.random.default_rng(divisor)
    most = (END - 1) // divisor
    multiples = divisor * np.unique([*range(min(most, 8) + 1), *(max(0, most - k) for k in range(8)),
                                     *rng.integers(0, most + 1, 40)])
    found = [0, 1, END - 2, END - 1, *(multiples + k for k in (-1, 0, 1)), rng.integers(0, END, 100)]
    flat = np.unique(np.concatenate([np.atleast_1d(x) for x in found]))
    return flat[(flat >= 0) & (flat < END)]


def holds(divisor: int, multiplier: int, shift: int) -> bool:
    """Return whether the quotients are exact for all dividends, by Granlund and Montgomery, within 32 bits."""
    over = (multiplier + (1 << 32)) * divisor - (1 << 32 + shift)
    most = ((END - 1) * multiplier >> 32) + END - 1
    return 0 < over <= 1 << shift and multiplier < 1 << 32 and shift < 32 and most < 1 << 32


def test_the_condition_holds() -> None:
    for divisor in {*DIVISORS, *range(1, 1 << 16)}:
        multiplier, shift = multiplier_and_shift(divisor)
        assert holds(divisor, multiplier, shift), divisor
        assert not holds(divisor, multiplier - 1, shift), divisor
        assert shift == 0 or not holds(divisor, multiplier, shift - 1), divisor


def test_nothing_is_divided_by_zero() -> None:
    assert divisors((0, 3)) == [0, 0, *multiplier_and_shift(3)] and divisors(0) == [0, 0]


@pytest.mark.vulkan
@pytest.mark.skipif(bool(kernels_build.missing_tools()), reason=kernels_build.missing_tools())
@pytest.mark.slow_on("swiftshader")
def test_quotients_on_the_device(vulkan: str, tmp_path: Path) -> None:
    from ag.engine.backends.vulkan.kp import kompute

    kp = kompute()
    source, spv = tmp_path / "quotients.comp", tmp_path / "quotients.spv"
    source.write_text(KERNEL, "utf-8")
    subprocess.run(["glslangValidator", "-V", f"-I{kernels_build.SHADERS}", source, "-o", spv], check=True,
                   capture_output=True)
    manager = kp.Manager(int(vulkan.split(":")[1]))
    divisors = DIVISORS[::7]
    n = [dividends(divisor) for divisor in divisors]
    size = max(map(len, n))
    given, out = (manager.tensor_t(np.zeros(size, np.uint32), kp.TensorTypes.host) for _ in range(2))
    push = np.zeros(3, np.uint32)
    kernel = manager.algorithm([out, given], spv.read_bytes(), (1, 1, 1), push[:0], push)
    for divisor, numbers in zip(divisors, n, strict=True):
        given.data()[: len(numbers)] = numbers
        sequence = manager.sequence()
        words = np.array([len(numbers), *multiplier_and_shift(divisor)], np.uint32)
        sequence.dispatch(kernel, words.tobytes(), -(-len(numbers) // 128))
        sequence.record(kp.OpBarrier(host=True)).eval()
        np.testing.assert_array_equal(out.data()[: len(numbers)], numbers // divisor, str(divisor))
    manager.destroy()


def walked(layout: Any, name: str) -> list[int]:
    """The words of all elements, as in shaders/walk.glsl."""
    found, step = steps(layout), steps(layout)[f"{name}_step"]
    words = []
    for i in range(layout["n"]):
        q, word = i, i * step[0]
        for axis in range(1, layout["ndim"]):
            shift = found["shifts"][(axis - 1) // 4] >> 8 * ((axis - 1) % 4) & 31
            q = ((q * found["multipliers"][axis - 1] >> 32) + q) >> shift
            word += q * step[axis]
        words.append(word & 0xFFFFFFFF)
    return words


@pytest.mark.parametrize("shape", [
    (), (1,), (1, 1, 1), (2, 3, 4), (7, 1, 9), (2, 1, 3, 1, 2), (3, 2, 2, 3, 2, 2, 2, 2), (2, 3, 2, 3, 2, 3, 2, 3),
])
def test_operands_are_walked_by_their_strides(shape: Shape) -> None:
    rng = np.random.default_rng(len(shape))
    for _ in range(5):
        axes = tuple(map(int, rng.permutation(len(shape))))
        numbered = np.arange(int(np.prod(shape))).reshape(shape)
        moved = numbered.transpose(axes)
        assert walked(shapes.permute_layout(moved.shape, shape, axes=axes), "x") == moved.ravel().tolist()
        small = tuple(n if rng.random() < 0.5 else 1 for n in shape)
        repeated = np.broadcast_to(np.arange(int(np.prod(small))).reshape(small), shape)
        layout = shapes.broadcast_layout(shape, small, shape)
        assert walked(layout, "a") == repeated.ravel().tolist() and walked(layout, "b") == numbered.ravel().tolist()


def test_one_axis_takes_no_quotient() -> None:
    layout = shapes.broadcast_layout((4, 5), (4, 5), ())
    assert steps(layout)["a_step"] == (1, *[0] * 7) and steps(layout)["b_step"] == (0,) * 8
    assert not any(steps(layout)["multipliers"]) and layout["ndim"] == 1
    assert steps({"n": 3}) == {}


def test_kernels_have_room_for_all_axes() -> None:
    for name, entry in manifest()["kernels"].items():
        counts = {member["name"]: member["count"] for member in entry["push"]}
        if "multipliers" in counts:
            most = shapes.MAX_DIMS if "value" not in counts else shapes.CHAIN_DIMS
            assert {counts[x] for x in counts if x.endswith("_step")} == {most}, name
            assert counts["multipliers"] == most - 1 and counts["shifts"] == -(-(most - 1) // 4), name
