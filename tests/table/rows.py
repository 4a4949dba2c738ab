"""Define a row of the case table, with its operands, oracle and tolerances, and run a case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from helpers.devices import DRIVERS, NAMED
from table.oracles import SEED

import ag
from ag.autograd.operands import to_buffer
from ag.autograd.tensor import Tensor
from ag.engine.backend import Backend
from ag.engine.dtype import as_dtype
from ag.engine.random import set_stream

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
EPS = {"f32": float(np.finfo(np.float32).eps), "f64": float(np.finfo(np.float64).eps)}
LARGE = 10_000  # elements; what has more takes seconds on a software driver
TINY = float(np.finfo(np.float32).tiny)  # a Vulkan device may flush denormal numbers to 0


# Shapes of a single operand: a scalar, one element, odd sizes, more than a workgroup, ranks to 4, no element.
ONE: list[list[Shape]] = [
    [()], [(1,)], [(7,)], [(3, 5)], [(2, 3, 5)], [(2, 3, 4, 5)], [(33, 65)], [(1031,)], [(0,)], [(3, 0)],
]


Draw = Callable[[np.random.Generator, Shape, Sequence[Array]], Array]  # the last: operands drawn before this one


def normal(rng: np.random.Generator, shape: Shape, _before: Sequence[Array]) -> Array:
    """Normal numbers."""
    return rng.standard_normal(shape)


def positive(rng: np.random.Generator, shape: Shape, _before: Sequence[Array]) -> Array:
    """Numbers from 0.5 to 2, far from the poles of logarithm and quotient."""
    return np.exp2(rng.uniform(-1, 1, shape))


def nonzero(rng: np.random.Generator, shape: Shape, _before: Sequence[Array]) -> Array:
    """Numbers of either sign with magnitudes from 0.5 to 2."""
    return positive(rng, shape, ()) * rng.choice([-1.0, 1.0], shape)


def away_from(*kinks: float) -> Draw:
    """Normal numbers at least 0.05 from every kink, where a difference quotient says nothing."""

    def draw(rng: np.random.Generator, shape: Shape, _before: Sequence[Array]) -> Array:
        x = rng.standard_normal(shape)
        for kink in kinks:
            x = np.where(np.abs(x - kink) < 0.05, kink + 0.1, x)
        return x

    return draw


def distribution(rng: np.random.Generator, shape: Shape, _before: Sequence[Array]) -> Array:
    """Positive numbers whose sum over the first axis is 1."""
    x = positive(rng, shape, ())
    return x / x.sum(0)


def one_hot(rng: np.random.Generator, shape: Shape, _before: Sequence[Array]) -> Array:
    """Integers: a 1 somewhere along the first axis, else 0."""
    classes = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return (classes == rng.integers(0, shape[0], shape[1:])).astype(int)


def class_ids(rng: np.random.Generator, shape: Shape, before: Sequence[Array]) -> Array:
    """Integers that count along the first axis of the first operand."""
    return np.asarray(rng.integers(0, before[0].shape[0], shape))


@dataclass(frozen=True)
class Bad:
    """A call that must fail: what is wrong, operand shapes, the call, and what the error says."""

    situation: str
    shapes: Sequence[Shape]
    call: Callable[..., Any]
    error: type[BaseException]
    fragments: Sequence[str]


@dataclass(frozen=True)
class Row:
    """One public op.

    The `oracle` is plain numpy or plain Python in float64, written without a look at the primitive.  A single element
    function may be off by `ulps` eps; Vulkan allows a division 2.5, exp 3 + 2 |x|, log 3.  The functions `terms` and
    `size` take operands and parameters.  They return the length of the sums that the op makes, and the sum of its
    terms' magnitudes.  A second row for the same op has a label.
    """

    name: str
    oracle: Callable[..., Any]
    cases: Sequence[tuple[Sequence[Shape], dict[str, Any]]]
    draw: Sequence[Draw] = (normal,)
    ulps: float = 4
    terms: Callable[..., int] = lambda *_operands, **_params: 1
    size: Callable[..., Any] | None = None
    call: Callable[..., Tensor] | None = None
    bad: Sequence[Bad] = ()
    label: str = ""


def case(*shapes: Shape, **params: Any) -> tuple[Sequence[Shape], dict[str, Any]]:
    """Operand shapes and parameters of one case."""
    return shapes, params


def every(shapes: Sequence[Sequence[Shape]], *params: dict[str, Any]) -> list[tuple[Sequence[Shape], dict[str, Any]]]:
    """All combinations of operand shapes and parameters."""
    return list(product(shapes, params or ({},)))


@dataclass(frozen=True)
class Case:
    """One row at one set of shapes and parameters."""

    row: Row
    shapes: Sequence[Shape]
    params: dict[str, Any]

    def __str__(self) -> str:
        shapes = "_".join("x".join(map(str, s)) or "scalar" for s in self.shapes)
        return "-".join([self.row.name + self.row.label, shapes, *(f"{k}={v}" for k, v in self.params.items())])

    def operands(self, seed: int = 0) -> list[Array]:
        """Operands whose floating numbers float32 holds exactly."""
        rng = np.random.default_rng([seed, *(n for s in self.shapes for n in s)])
        drawn: list[Array] = []
        for i, shape in enumerate(self.shapes):
            x = np.asarray(self.row.draw[min(i, len(self.row.draw) - 1)](rng, shape, drawn))
            drawn.append(x.astype(np.float32).astype(np.float64) if x.dtype.kind == "f" else x)
        return drawn

    def want(self, *operands: Array) -> Array:
        """Return the oracle's result."""
        return np.asarray(self.row.oracle(*operands, **self.params), np.float64)

    def call(self, *operands: Any) -> Tensor:
        """The op itself."""
        return (self.row.call or getattr(ag, self.row.name))(*operands, **self.params)

    def on(self, backend: Backend, operands: Sequence[Array], dtype: str = "f32", params: bool = False) -> list[Any]:
        """Operands as tensors, or as parameters; integer arrays stay host arrays."""
        return [x if x.dtype.kind == "i" else tensor(x, backend, dtype, params) for x in operands]

    def terms(self, operands: Sequence[Array]) -> int:
        """Length of the longest sum in the forward pass."""
        return self.row.terms(*operands, **self.params)

    def size(self, operands: Sequence[Array]) -> Array:
        """For each element of the result, the sum of the magnitudes of its terms."""
        want = np.abs(self.want(*operands))
        return want if self.row.size is None else np.maximum(want, self.row.size(*operands, **self.params))

    def tolerance(self, operands: Sequence[Array], dtype: str) -> Array:
        """Allowed absolute error of each element of the result."""
        return bound(self.row.ulps, self.terms(operands), self.size(operands), dtype)

    def gradient_tolerance(self, i: int, operands: Sequence[Array], g: Array, dtype: str) -> Array:
        # the forward pass makes `terms` terms per element of the result, and each sends one term to each operand
        out = self.want(*operands)
        terms = -(-out.size * self.terms(operands) // max(1, operands[i].size))
        largest = np.abs(g).max(initial=0.0)
        return bound(2 * self.row.ulps, terms + self.terms(operands), np.full(g.shape, largest), dtype)


def bound(ulps: float, terms: int, size: Array, dtype: str) -> Array:
    """Allowed absolute error: n eps times the sum of n terms' magnitudes (Higham, 2nd ed., eq. 4.4) and ulps each."""
    return np.asarray((ulps + terms) * EPS[dtype] * size + TINY)


def representatives(cases: Sequence[Case]) -> list[Case]:
    """One case of each row: the largest of at most LARGE elements, or the smallest."""
    rows: dict[str, list[tuple[int, Case]]] = {}
    for one in cases:
        rows.setdefault(one.row.name + one.row.label, []).append((sum(map(prod, one.shapes)), one))
    chosen = []
    for sized in rows.values():
        small = [pair for pair in sized if pair[0] <= LARGE]
        chosen.append(max(small, key=lambda pair: pair[0]) if small else min(sized, key=lambda pair: pair[0]))
    return [one for _, one in chosen]


def on_devices(cases: Sequence[Case], more: Any = ()) -> Any:
    """Parametrize by device and case: one case of each row everywhere, the others on the CPU, with `more` marks."""
    few = representatives(cases)
    pairs = [pytest.param("cpu", case, id=f"cpu-{case}", marks=() if case in few else more) for case in cases]
    pairs += [pytest.param(name, case, id=f"{name}-{case}", marks=pytest.mark.vulkan)
              for name in ([NAMED] if NAMED else DRIVERS) for case in few]
    return pytest.mark.parametrize(("device", "case"), pairs, indirect=["device"])


def tensor(array: Array, backend: Backend, dtype: str = "f32", param: bool = False) -> Tensor:
    """A tensor of exactly the array's shape (`ag_tensor` makes a column of a vector)."""
    return Tensor(to_buffer(array, backend, as_dtype(dtype, "tests")), requires_grad=param)


def restart_generator(backend: Backend) -> None:
    """Let the device's next random draw be the first after ``ag_seed(SEED)``."""
    ag.ag_seed(SEED)
    set_stream(backend, 0)


def weights_like(out: Array | Tensor) -> Array:
    """Fixed weights of either sign that turn a result into a loss."""
    return nonzero(np.random.default_rng(out.size), out.shape, ()).astype(np.float32)


def loss_of(out: Tensor, weights: Tensor) -> Tensor:
    """A scalar to which every element of a result contributes differently."""
    return ag.ag_sum(out * weights)


def copies(make: Callable[..., Any]) -> Callable[..., Any]:
    """A maker of layers for captured steps, which make no parameters: each call gets a copy with the same tensors."""
    made = cache(make)
    return lambda *args, **params: copy(made(*args, **params))
