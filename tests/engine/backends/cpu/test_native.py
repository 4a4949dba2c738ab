"""Every kernel in C against its reference at random shapes, by any number of threads; and the pool of threads."""

from __future__ import annotations

import ctypes
import json
import zlib
from functools import cache, partial
from itertools import islice
from math import isqrt, prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from engine.backends.cpu.random_launches import MAKERS, POWERS, put_special_values
from engine.backends.cpu.random_sizes import Random
from helpers.guarded import Launch, check, reference, run
from helpers.halves import compare as compare_halves
from table.rows import Array

from ag.engine.backends import cpu
from ag.engine.backends.cpu.library import Library, library
from ag.engine.backends.cpu.native import NativeBackend
from ag.engine.primitive import PRIMITIVES

SHARED = 2  # the word of a launch that says whether threads share it

KERNELS = library()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="no kernels in C: not built, or AG_CPU is numpy")
NAMES = sorted(KERNELS.kernels.keys() & MAKERS.keys()) if KERNELS else []

# NaN is not where the reference has it: 0 * inf at infinity, or where keys are hidden. See test_dense.py. A product of
# large numbers is infinite before a 0 comes, or 0 already, by the order in which it is made. In the
# gradient of RMS norm the smallest number times a rate is 0 in numpy, and 0 * inf NaN; the kernel takes the inf first.
ELSEWHERE = {"gelu_grad", "attention", "attention_grad", "attention_weights", "masked_attention",
             "masked_attention_grad", "attention_bias_grad", "prod", "rms_norm_grad"}

NEVER_EMPTY = {"rng_draw", "scale_update"}  # their operands have as many numbers as their texts say


def test_every_kernel_has_random_launches() -> None:
    converting = {"widen", "narrow", "reconcile"}  # see engine/kernels/test_halves.py
    assert KERNELS is not None and KERNELS.kernels.keys() - converting <= MAKERS.keys()

# Each number is rounded as the reference rounds it, so that the smallest, the largest and zeros are the same, too; in
# some kernels zeros but for their signs.
ZEROS = {"abs_grad", "max_pool2d", "relu", "relu_grad", "scatter_along"}
EXACT = ZEROS | {
    "abs", "adam_update", "add", "avg_pool2d", "avg_pool2d_grad", "batch_norm_grad", "clamp", "clamp_grad",
    "clip_factor", "copy", "div", "dropout", "equal", "expand", "flat_ids", "insert", "inverse_std", "leaky_relu",
    "leaky_relu_grad", "max", "max_pool2d_grad", "min", "mul", "nonfinite", "normalize", "part", "permute", "randint",
    "rng_draw", "running_update", "scale", "scale_update", "sequence", "sgd_update", "sigmoid_grad", "spread", "sqrt",
    "sub", "take", "tanh_grad", "uniform"}


class Sharing(NativeBackend):
    """A device whose launches are all shared, by so many threads, and that counts them."""

    def __init__(self, kernels: Library) -> None:
        super().__init__(kernels, guard=64)
        self.library, self.threads, self.made = kernels, 1, 0
        self.run, self.launch_briefly = self._shared, partial(self._shared, launches=1, work=0)

    def _shared(self, words: bytes, launches: int, work: int) -> None:
        assert launches == 1
        changed = np.frombuffer(words, np.int64).copy()
        changed[SHARED] = 1
        self.library._run(changed.tobytes(), launches, self.threads, 1)
        self.made += 1


@cache
def device() -> Sharing:
    assert KERNELS is not None
    return Sharing(KERNELS)


BUILT = Path(cpu.__file__).parent / "built"
LEVELS = json.loads((BUILT / "manifest.json").read_text("utf-8"))["levels"] if KERNELS else []
LOWER = LEVELS[: LEVELS.index(KERNELS.level)] if KERNELS else []


@cache
def device_of_level(level: str) -> Sharing:
    manifest = json.loads((BUILT / "manifest.json").read_text("utf-8")) | {"levels": [""]}
    with TemporaryDirectory() as folder:
        Path(folder, "kernels.so").symlink_to(BUILT / f"kernels{level}.so")
        return Sharing(Library(Path(folder), manifest))


def examples(name: str, count: int) -> list[Launch]:
    rng = Random(zlib.crc32(name.encode()))
    return [MAKERS[name](rng) for _ in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_declared_as_its_primitive(name: str) -> None:
    assert KERNELS is not None
    kernel, primitive = KERNELS.kernels[name], PRIMITIVES[name]
    written = [i < primitive.outputs or i in primitive.updates for i in range(len(primitive.operands))]
    assert kernel.operands == primitive.operands
    assert list(kernel.writes) == written
    launch = examples(name, 1)[0]
    known = {"types", *primitive.params, *primitive.layout(*shapes(launch), **launch.params)}
    assert {number.name for number in kernel.numbers} | {x for x in kernel.work if not x.isdigit()} <= known


def shapes(launch: Launch) -> list[tuple[int, ...]]:
    given = [x.shape for x in launch.operands]
    made: Any = launch.primitive.shape(*given, **launch.params) if launch.primitive.outputs else ()
    return [*(made if launch.primitive.outputs != 1 else [made]), *given]


@pytest.mark.parametrize("count", [6, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_random_shapes(name: str, count: int) -> None:
    compare(device(), examples(name, count))


@pytest.mark.slow
@pytest.mark.parametrize("level", LOWER)
@pytest.mark.parametrize("name", NAMES)
def test_levels_for_older_processors(name: str, level: str) -> None:
    compare(device_of_level(level), examples(name, 30))
    compare_special_values(device_of_level(level), name, 10)


def compare(backend: Sharing, launches: list[Launch], least: int = 1) -> None:
    """Launches, so many at least, against the reference, and to the bit for 1, 2 and 5 threads."""
    assert len(launches) >= least
    for launch in launches:
        made = backend.made
        backend.threads = 2
        check(backend, launch, added=1 + isqrt(launch.operands[0].size))
        assert backend.made == made + 1, f"{launch} ran in numpy"
        same_by_any_threads(backend, launch)


def same_by_any_threads(backend: Sharing, launch: Launch, one_nan: bool = False) -> list[Array]:
    """All operands after the launch, to the bit for 1, 2 and 5 threads; with `one_nan`, all NaN count as one."""
    results = []
    for backend.threads in (1, 2, 5):
        results.append(run(backend, launch))
    first, *others = [[np.where(x == x, x, np.nan).astype(x.dtype).tobytes() if one_nan and x.dtype == np.float32
                       else x.tobytes() for x in result] for result in results]
    assert others == [first, first], str(launch)
    return results[0]


class Parted(Sharing):
    """A device that makes the parts of a launch one after the other, the last one first."""

    parts = 7

    def _shared(self, words: bytes, launches: int, work: int) -> None:
        row = np.frombuffer(words, np.int64).copy()
        make = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(int(row[0]))
        for part in reversed(range(self.parts)):
            make(row[3:].ctypes.data, part, self.parts)
        self.made += 1


@pytest.mark.parametrize("name", sorted(KERNELS.halves.keys() & MAKERS.keys() - {"adam_update", "sgd_update"})
                         if KERNELS else [])
def test_parts_in_any_order(name: str) -> None:
    """No part writes what belongs to another, in 16 bits, either; nor where there is one column, or one row."""
    assert KERNELS is not None
    backend = Parted(KERNELS)
    for launch in (x for x in examples(name, 20) if x.operands[0].dtype == np.float32):
        made = backend.made
        compare_halves(backend, launch, KERNELS.halves[name])
        assert backend.made > made


@pytest.mark.parametrize("p", POWERS)
def test_every_power(p: float) -> None:
    x, g = np.random.default_rng(0).uniform(0.5, 2, (2, 1027)).astype(np.float32)
    compare(device(), [Launch(PRIMITIVES["pow"], [x], {"p": float(p)}),
                       Launch(PRIMITIVES["pow_grad"], [x, g], {"p": float(p)})])


@pytest.mark.parametrize("name", sorted({*NAMES} - NEVER_EMPTY))
def test_nothing(name: str) -> None:
    rng = Random(0, empty=0.12)
    drawn = (MAKERS[name](rng) for _ in range(300))
    compare(device(), list(islice((launch for launch in drawn if 0 in map(prod, shapes(launch))), 6)), 6)


@pytest.mark.parametrize("count", [5, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_special_values(name: str, count: int) -> None:
    compare_special_values(device(), name, count)


def compare_special_values(backend: Sharing, name: str, count: int) -> None:
    """NaN where the reference has it, and the same infinities, or all; by 1, 2 and 5 threads to the bit."""
    rng = np.random.default_rng(0)
    for launch in examples(name, count):
        put_special_values(launch, rng)
        made = same_by_any_threads(backend, launch, one_nan=True)
        if name in ELSEWHERE:
            continue
        for i, (got, want) in enumerate(zip(made, reference(launch), strict=True)):
            if i >= launch.primitive.outputs and i not in launch.primitive.updates:
                continue
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want), str(launch))
            np.testing.assert_array_equal(np.isinf(got) * np.sign(got), np.isinf(want) * np.sign(want), str(launch))
            if name in EXACT:
                np.testing.assert_array_equal(got, want, str(launch))
            if name in EXACT and name not in ZEROS:
                number = want == want
                np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]), str(launch))


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "sigmoid", "tanh", "silu"])
def test_from_the_smallest_to_the_largest(name: str) -> None:
    sizes = np.concatenate([np.geomspace(1.4e-45, 3.4e38, 5000), np.linspace(0, 110, 2000)]).astype(np.float32)
    launch = Launch(PRIMITIVES[name], [sizes if name in ("log", "sqrt") else np.concatenate([sizes, -sizes])], {})
    got, exact = run(device(), launch)[0].astype(float), reference(launch, np.float64)[0]
    exact = np.where(np.abs(exact) > np.finfo(np.float32).max, np.copysign(np.inf, exact), exact)
    with np.errstate(invalid="ignore"):
        off = np.where(got == exact, 0, np.abs(got - exact))
    assert np.all(off <= 16 * np.finfo(np.float32).eps * np.abs(exact) + 2e-45), launch.operands[0][off.argmax()]
