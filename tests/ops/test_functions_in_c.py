"""Compile functions.glsl as C, and compare each function with numpy or `math` in float64, in ulps of the result."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable
from functools import cache
from statistics import NormalDist

import cpu_kernels
import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_build import functions

Array = NDArray[np.float64]
FUNCTIONS = {f.name: f for f in functions((cpu_kernels.SHADERS / "functions.glsl").read_text("utf-8"))}
pytestmark = pytest.mark.skipif(not cpu_kernels.compiler(), reason="no C compiler")
NORMAL = NormalDist()


# ---------------------------------------------------------------------------------------------- what they compute


def each(f: Callable[[float], float]) -> Callable[[Array], Array]:
    return np.vectorize(f, otypes=[float])


def below_2_24(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: np.where(np.abs(x) < 2**24, f(np.where(np.abs(x) < 2**24, x, 0)), np.nan)


def in_float32(f: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *xs: f(*(x.astype(np.float32) for x in xs))


def erfinv(x: float) -> float:
    if not abs(x) < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    if abs(x) < 1e-4:
        return math.sqrt(math.pi) / 2 * x * (1 + math.pi / 12 * x * x)
    return math.copysign(NORMAL.inv_cdf((1 - abs(x)) / 2), x) / math.sqrt(2)


def softplus(x: Array, beta: float = 1.0) -> Array:
    return (np.maximum(beta * x, 0) + np.log1p(np.exp(-np.abs(beta * x)))) / beta


def elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(x))


def mish(x: Array) -> Array:
    e = np.exp(np.minimum(x, 40))
    return np.where(x > 40, x, x * (e * (e + 2) / (e * (e + 2) + 2)))


def tanhshrink(x: Array) -> Array:
    series = x**3 * (1 / 3 - x**2 * (2 / 15 - x**2 * (17 / 315 - x**2 * 62 / 2835)))
    return np.where(np.abs(x) < 0.02, series, x - np.tanh(x))


WANTED: dict[str, Callable[..., Array]] = {
    "sin": below_2_24(np.sin), "cos": below_2_24(np.cos), "tan": below_2_24(np.tan),
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": each(math.erf), "erfc": each(math.erfc), "erfinv": each(erfinv),
    "exp2": np.exp2, "expm1": np.expm1, "log1p": np.log1p, "log2": np.log2, "log10": np.log10, "power": np.power,
    "square": np.square, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": np.reciprocal, "hypot": np.hypot,
    "logaddexp": np.logaddexp, "softplus": softplus, "logsigmoid": lambda x: -softplus(-x), "mish": mish,
    "elu": elu, "celu": lambda x, alpha: elu(x / alpha, alpha) * np.where(x > 0, alpha, 1),
    "selu": lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772),
    "relu6": lambda x: np.clip(x, 0, 6), "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6, "softsign": lambda x: x / (1 + np.abs(x)),
    "softshrink": lambda x, lambd: x - np.clip(x, -lambd, lambd),
    "hardshrink": lambda x, lambd: np.where(np.abs(x) <= lambd, 0, x), "tanhshrink": tanhshrink,
    "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.round,
    "frac": lambda x: x - np.trunc(x), "copysign": np.copysign, "fmod": np.fmod,
    "remainder": in_float32(np.remainder), "floor_divide": in_float32(np.floor_divide),
    "maximum": np.maximum, "minimum": np.minimum, "keep": lambda m, v: np.where(m != 0, v, 0),
    "drop": lambda m, v: np.where(m != 0, 0, v),
    "either": lambda a, b: np.where((a == 0) & ~np.signbit(a), b, a),
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "signbit": np.signbit, "gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal,
    "eq": np.equal, "ne": np.not_equal, "logical_not": np.logical_not, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor}

# Ulps that may be wrong; functions that are not here are exact.
ULPS = {
    "sin": 2.5, "cos": 2.5, "tan": 4, "asin": 3, "acos": 3, "atan": 2, "atan2": 2, "sinh": 2, "cosh": 2, "asinh": 2,
    "acosh": 2.5, "atanh": 2.5, "erf": 2, "erfc": 3, "erfinv": 5, "exp2": 1, "expm1": 2, "log1p": 1.5, "log2": 0.6,
    "log10": 0.6, "power": 3, "rsqrt": 1.5, "hypot": 2, "logaddexp": 2.5, "softplus": 2.5, "logsigmoid": 2, "mish": 4,
    "elu": 2, "celu": 2.5, "selu": 2, "hardsigmoid": 1, "hardswish": 2, "softsign": 1.5, "tanhshrink": 3}
PARAMETERS = {"softplus": (1.0, 2.5), "elu": (1.0, 0.7), "celu": (1.0, 0.7), "softshrink": (0.5,), "hardshrink": (0.5,)}


# ---------------------------------------------------------------------------------------------- where they are compared


@cache
def inputs() -> NDArray[np.float32]:
    """Special values, all magnitudes, and places where a function changes its formula or its sign."""
    rng, n = np.random.default_rng(0), 4000
    some = [0, 0.1, 1 / 3, 0.5, 0.625, 1, 1.5, 2, 2.5, 3, 3.5, 5, 6, 7, 10, 30, 88, 89, 104, 127.5, 128, 149, 150, 1000,
            1e-45, 1e-42, 1e-38, 1.2e-38, 1e-10, 1e-6, 1e-3, 4096, 8388607.5, 8388608, 2**24 - 1, 2**24, 1e9, 1e20,
            3e38, 3.4028235e38, np.inf, np.nan, np.pi / 4, np.pi / 2, np.pi, 100 * np.pi]
    bits = rng.integers(0, 255 << 23, n, np.uint32).view(np.float32) * rng.choice([1, -1], n)
    return np.concatenate([
        some, np.negative(some), bits, rng.uniform(-1, 1, n), rng.uniform(-12, 12, n), rng.uniform(-110, 110, n),
        rng.uniform(-(2**24), 2**24, n), rng.uniform(-1, 1, n) * 10 ** rng.uniform(-6, 3, n),
        np.arange(-40, 40) * 2.0**-24 + 1, np.arange(-40, 40) * 2.0**-24 - 1]).astype(np.float32)


@cache
def pairs() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    x, rng, n = inputs(), np.random.default_rng(1), 4000
    a, b = np.meshgrid(x[:92], x[:92])
    return (np.concatenate([a.ravel(), x[92 : 92 + n], rng.uniform(0.5, 2, n), rng.integers(-40, 40, n),
                            rng.normal(size=n) * 10 ** rng.uniform(-3, 8, n)]).astype(np.float32),
            np.concatenate([b.ravel(), rng.permutation(x[92 : 92 + n]), rng.uniform(-200, 200, n),
                            rng.integers(-40, 40, n), rng.normal(size=n)]).astype(np.float32))


Kernel = Callable[..., NDArray[np.float32]]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """Return what computes a function of a name, a parameter and arrays."""
    folder = tmp_path_factory.mktemp("functions")
    text = ['#include "glsl.h"', cpu_kernels.in_c(cpu_kernels.SHADERS / "functions.glsl", set())]
    for name in WANTED:
        operands, params = FUNCTIONS[name][1:]
        call = ", ".join([f"{x}[i]" for x in ("x", "y")[: len(operands)]] + ["value"] * len(params))
        text.append(f"void map_{name}(float *out, const float *x, const float *y, float value, int64_t n) {{\n"
                    f"    (void)y, (void)value;\n    for (int64_t i = 0; i < n; i++) out[i] = {name}_of({call});\n}}")
    source, library = folder / "functions.c", folder / "functions.so"
    source.write_text("\n".join(text), "utf-8")
    subprocess.run([*cpu_kernels.compiler(), *cpu_kernels.FLAGS, "-O1", "-w", f"-I{cpu_kernels.SOURCES}",
                    str(source), "-shared", "-lm", "-o", str(library)], check=True)
    made = ctypes.CDLL(str(library))

    def run(name: str, value: float, *xs: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.empty_like(xs[0])
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (out, xs[0], xs[-1])]
        getattr(made, f"map_{name}")(*pointers, ctypes.c_float(value), ctypes.c_int64(out.size))
        return out

    return run


def scale_of(name: str, xs: tuple[NDArray[np.float32], ...], want: Array) -> Array:
    """Return the size whose ulps count: the result's, but where a sum of larger numbers comes near 0."""
    size = np.abs(want)
    if name in ("sin", "cos", "tan"):
        size = np.where(np.abs(xs[0]) > 4, np.maximum(size, 2.0**-12), size)
    if name == "logaddexp":
        size = np.maximum(size, np.nan_to_num(np.maximum(*np.abs(xs).astype(float)), posinf=0))
    return np.clip(size, 2.0**-126, 2.0**127)


@pytest.mark.parametrize("name", WANTED)
def test_a_function(name: str, kernel: Kernel) -> None:
    xs = pairs() if len(FUNCTIONS[name].operands) == 2 else (inputs(),)
    for value in PARAMETERS.get(name, (None,)):
        found = kernel(name, value or 0.0, *xs)
        with np.errstate(all="ignore"):
            given = () if value is None else (float(np.float32(value)),)
            want = np.asarray(WANTED[name](*(x.astype(float) for x in xs), *given), float)
            wrong = np.abs(found - want) / 2.0 ** (np.floor(np.log2(scale_of(name, xs, want))) - 23)
            wrong[(found == want.astype(np.float32)) | (np.isnan(found) & np.isnan(want))] = 0
        bad = np.flatnonzero(~(wrong <= ULPS.get(name, 0)))
        assert not bad.size, [(*(x[i] for x in xs), found[i], want[i], wrong[i]) for i in bad[:5]]
        if name in ("sin", "tan", "atan", "sinh", "asinh", "expm1", "log1p", "round", "trunc", "copysign", "fmod"):
            assert (np.signbit(found) == np.signbit(want))[want == 0].all()


def test_powers_of_two_and_ten_have_whole_logarithms(kernel: Kernel) -> None:
    n = np.arange(-40, 39)
    assert np.array_equal(kernel("log10", 0.0, (10.0**n).astype(np.float32))[3:], n[3:])
    assert np.array_equal(kernel("log2", 0.0, (2.0**n).astype(np.float32)), n)
    assert np.array_equal(kernel("exp2", 0.0, n.astype(np.float32)), (2.0**n).astype(np.float32))
