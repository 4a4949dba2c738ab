"""Rows of the case table: the elementwise functions of `ag.ops.functions`, each beside the `math` module's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from statistics import NormalDist
from typing import Any

import numpy as np
from table import oracles
from table.rows import Array, Bad, Draw, Row, Shape, away_from, case, every, nonzero, normal, positive

import ag
from ag import ops

FEW: list[list[Shape]] = [[()], [(33, 65)]]
PAIRS: list[list[Shape]] = [[(33, 65), (33, 65)], [(2, 1, 4, 1), (3, 1, 5)]]


def between(low: float, high: float) -> Draw:
    """Uniform numbers."""
    return lambda rng, shape, _before: np.asarray(rng.uniform(low, high, shape))


def apart(rng: np.random.Generator, shape: Shape, before: Any) -> Array:
    """Numbers of another size than those drawn before, whatever meets what by broadcasting."""
    return nonzero(rng, shape, ()) * 8 if before else nonzero(rng, shape, ())


def divisor(rng: np.random.Generator, shape: Shape, _before: Any) -> Array:
    return rng.uniform(2.05, 2.3, shape) * rng.choice([-1.0, 1.0], shape)


def log1pexp(v: float) -> float:
    return max(v, 0) + math.log1p(math.exp(-abs(v)))


def erfinv(v: float) -> float:
    y = NormalDist().inv_cdf((v + 1) / 2) / math.sqrt(2)
    return y - (math.erf(y) - v) * math.exp(y * y) * math.sqrt(math.pi) / 2


def elu(v: float, alpha: float = 1.0) -> float:
    return v if v > 0 else alpha * math.expm1(v)


def row(name: str, oracle: Callable[..., float], draw: Draw | tuple[Draw, ...] = normal, ulps: float = 8,
        *params: dict[str, float], size: Callable[..., Any] | None = None) -> Row:
    draws = draw if isinstance(draw, tuple) else (draw,)
    shapes = PAIRS if len(draws) == 2 else FEW
    return Row(name, oracles.each(oracle), every(shapes, {}, *params), draws, ulps, size=size, call=getattr(ops, name))


def one(*xs: Any, **params: Any) -> Any:
    """Sums that may cancel lose digits of 1."""
    return 1 + sum(abs(x) for x in xs)


WHOLE = away_from(*(i / 2 for i in range(-9, 10)))  # where steps and rounding jump
FUNCTIONS = [
    row("sin", math.sin, between(-40, 40), size=one), row("cos", math.cos, between(-40, 40), size=one),
    row("tan", math.tan, between(-1.4, 1.4), 64), row("asin", math.asin, between(-0.95, 0.95), 64),
    row("acos", math.acos, between(-0.95, 0.95), 64, size=one), row("atan", math.atan, normal, 16),
    row("sinh", math.sinh, between(-8, 8), 32), row("cosh", math.cosh, between(-8, 8), 32),
    row("asinh", math.asinh, normal, 32), row("acosh", math.acosh, between(1.5, 8), 64),
    row("atanh", math.atanh, between(-0.95, 0.95), 64), row("erf", math.erf, normal, 16),
    row("erfc", math.erfc, between(-3, 3), 64), row("erfinv", erfinv, between(-0.95, 0.95), 64),
    row("log1p", math.log1p, between(-0.9, 8), 32), row("expm1", math.expm1, normal, 32),
    row("log2", math.log2, positive, 16, size=one), row("log10", math.log10, positive, 16, size=one),
    row("exp2", lambda v: 2.0**v, normal, 32), row("rsqrt", lambda v: v**-0.5, positive, 16),
    row("reciprocal", lambda v: 1 / v, nonzero), row("square", lambda v: v * v),
    row("softplus", lambda v, beta=1.0: log1pexp(beta * v) / beta, normal, 32, {"beta": 4.0}),
    row("logsigmoid", lambda v: -log1pexp(-v), normal, 32),
    row("mish", lambda v: v * math.tanh(log1pexp(v)), normal, 64, size=one),
    row("hardsigmoid", lambda v: min(max(v / 6 + 0.5, 0), 1), away_from(-3, 3), size=one),
    row("hardswish", lambda v: v * min(max(v / 6 + 0.5, 0), 1), away_from(-3, 3), size=one),
    row("relu6", lambda v: min(max(v, 0), 6), away_from(0, 6)),
    row("elu", elu, away_from(0), 32, {"alpha": 0.5}, size=one),
    row("celu", lambda v, alpha=1.0: v if v > 0 else alpha * math.expm1(v / alpha), away_from(0), 32, {"alpha": 2.0}),
    row("selu", lambda v: 1.0507009873554805 * elu(v, 1.6732632423543772), away_from(0), 32, size=one),
    row("softsign", lambda v: v / (1 + abs(v))), row("tanhshrink", lambda v: v - math.tanh(v), normal, 32, size=one),
    row("softshrink", lambda v, lambd=0.5: math.copysign(max(abs(v) - lambd, 0), v), away_from(-1, -0.5, 0.5, 1), 8,
        {"lambd": 1.0}, size=one),
    row("hardshrink", lambda v, lambd=0.5: v if abs(v) > lambd else 0, away_from(-1, -0.5, 0.5, 1), 8, {"lambd": 1.0}),
    row("sign", lambda v: float(np.sign(v)), away_from(0)), row("floor", math.floor, WHOLE),
    row("ceil", math.ceil, WHOLE), row("trunc", math.trunc, WHOLE), row("round", round, WHOLE),
    row("frac", lambda v: v - math.trunc(v), WHOLE, size=one),
    row("maximum", max, (normal, apart)), row("minimum", min, (normal, apart)),
    row("atan2", math.atan2, (nonzero, nonzero), 32, size=one), row("hypot", math.hypot, (nonzero, nonzero), 16),
    row("logaddexp", lambda a, b: max(a, b) + math.log1p(math.exp(-abs(a - b))), (normal, normal), 32, size=one),
    row("power", math.pow, (positive, normal), 64), row("copysign", math.copysign, (nonzero, nonzero)),
    row("fmod", math.fmod, (between(7.1, 7.4), divisor), 64, size=one),
    row("remainder", lambda a, b: a - b * math.floor(a / b), (between(7.1, 7.4), divisor), 64, size=one),
    row("floor_divide", lambda a, b: math.floor(a / b), (between(7.1, 7.4), divisor)),
]


AXES = [*every([[(7,)], [(33, 65)], [(2, 3, 4, 5)]]),
        *every([[(3, 5)], [(33, 65)], [(2, 3, 4, 5)]], {"dim": 0}, {"dim": -1}, {"dim": 1, "keepdim": True}),
        *every([[(2, 3, 4, 5)]], {"dim": (0, 2)}, {"dim": (1, -1), "keepdim": True})]


def along(f: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """A function of numpy whose axes are called otherwise."""
    return lambda x, dim=None, keepdim=False, **params: f(x, axis=dim, keepdims=keepdim, **params, **more)


def p_norm(x: Array, axis: Any, keepdims: bool, p: float = 2) -> Array:
    if math.isinf(p):
        return np.max(abs(x), axis=axis, keepdims=keepdims)
    return np.sum(abs(x) ** p, axis=axis, keepdims=keepdims) ** (1 / p)


def log_sum(x: Array, axis: Any, keepdims: bool) -> Array:
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


def statistic(name: str, oracle: Callable[..., Any], ulps: float = 16, draw: Draw = normal, cases: Any = AXES,
              **params: Any) -> Row:
    return Row(name, oracle, [(shapes, {**given, **params}) for shapes, given in cases], [draw], ulps,
               lambda x, *_, **__: x.size, lambda x, *_, **__: 1 + np.abs(x).sum(), getattr(ops, name),
               label="".join(map(str, params.values())))


def spread(rng: np.random.Generator, shape: Shape, _before: Any) -> Array:
    """Numbers that differ by at least 1/64."""
    return (rng.permutation(math.prod(shape)).reshape(shape) - math.prod(shape) // 2 + 0.25) / 64


def near_1(rng: np.random.Generator, shape: Shape, _before: Any) -> Array:
    """Numbers of either sign, of which many may be multiplied."""
    return rng.uniform(0.95, 1.05, shape) * rng.choice([-1.0, 1.0], shape)


ONE_AXIS = every([[(3, 5)], [(33, 65)], [(2, 3, 4, 5)]], {"dim": 0}, {"dim": -1})
STATISTICS = [
    statistic("amax", along(np.max), draw=spread), statistic("amin", along(np.min), draw=spread),
    statistic("min", along(np.min), draw=spread),
    *(Row(name, along(f), every([[(3, 5)], [(33, 65)], [(2, 3, 4, 5)]], {"dim": 0}, {"dim": 1, "keepdim": True}),
          [spread], call=lambda x, dim, keepdim=False, name=name: getattr(ops, name)(x, dim, keepdim)[0])
      for name, f in (("max_with_indices", np.max), ("min_with_indices", np.min))),
    statistic("prod", along(np.prod), draw=near_1, cases=[*AXES, case((2, 0), dim=1)]),
    statistic("var", along(np.var, ddof=1)),
    statistic("var", along(lambda x, correction, **axes: np.var(x, **axes)), correction=0),
    statistic("std", along(np.std, ddof=1)), statistic("logsumexp", along(log_sum)),
    *(statistic("norm", along(p_norm), draw=spread, p=p) for p in (1.0, 2.0, 3.0, 1.5, math.inf)),
    statistic("normalize", lambda x, dim=0: x / p_norm(x, dim, True), cases=ONE_AXIS),
    statistic("softmin", lambda x, dim=0: oracles.softmax(-x, dim), cases=ONE_AXIS),
    Row("cosine_similarity", lambda a, b, dim=0: (a * b).sum(dim) / p_norm(a, dim, False) / p_norm(b, dim, False),
        every([[s, s] for s in ((3, 5), (33, 65), (2, 3, 4))], {}, {"dim": 1}), ulps=64,
        terms=lambda a, _, **__: a.size, size=lambda *_, **__: 1, call=ops.cosine_similarity),
    Row("where", lambda a, b, mask=None: np.where(a > b, a, b * 2), every(PAIRS), [normal, apart],
        call=lambda a, b: ops.where(a > b, a, b * 2)),
    Row("masked_fill", lambda x: np.where(x > 0.3, -1.0, x), every(FEW), [away_from(0.3)],
        call=lambda x: ops.masked_fill(x, x > 0.3, -1.0)),
]


def chosen(name: str, oracle: Callable[..., Any], operands: int) -> Row:
    """A row of a question of whole numbers, whose answer chooses: it has no gradient, and what is chosen has one."""
    if operands == 1:
        return Row(name, lambda x: np.where(oracle(np.floor(x)), 3 * x, 2.0), every(FEW), [WHOLE],
                   call=lambda x: ops.where(getattr(ops, name)(ops.floor(x)), 3 * x, 2.0))
    return Row(name, lambda a, b: np.where(oracle(np.floor(a), np.floor(b)), 3 * a, 2 * b), every(PAIRS), [WHOLE],
               call=lambda a, b: ops.where(getattr(ops, name)(ops.floor(a), ops.floor(b)), 3 * a, 2 * b))


def largest(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The largest elements, whose places are found on the way."""
    ops.argmax(x, dim, keepdim)
    return ops.max(x, dim, keepdim)


MASKS = [
    *(chosen(name, getattr(np, oracle), 2) for name, oracle in {
        "gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal", "eq": "equal",
        "ne": "not_equal"}.items()),
    *(chosen(name, getattr(np, name), 2) for name in ("logical_and", "logical_or", "logical_xor")),
    *(chosen(name, getattr(np, name), 1) for name in (
        "logical_not", "isnan", "isinf", "isfinite", "signbit")),
    Row("argmax", along(np.max), every([[(3, 5)], [(33, 65)], [(2, 3, 4, 5)]], {}, {"dim": 1}), [spread], call=largest),
]

def bell(mean: Array, std: Array) -> Array:
    first, second = oracles.uniform(2 * mean.size).reshape(2, *mean.shape)
    return mean + std * np.sqrt(-2 * np.log(1 - first)) * np.cos(2 * np.pi * second)


DRAWN = [
    Row("uniform", lambda low, high: low + (high - low) * oracles.uniform(low.size).reshape(low.shape),
        every([[s, s] for s in ((1,), (3, 5), (33, 65))]), ulps=8, size=one, call=ops.uniform),
    Row("normal", bell, every([[s, s] for s in ((1,), (3, 5), (33, 65))]), ulps=64, size=one, call=ops.normal),
    Row("randint", lambda x: x * (-3 + (oracles.words(x.size).reshape(x.shape) * 7 >> 32) != 0),
        every([[(1,)], [(3, 5)], [(33, 65)]]), call=lambda x: x * ops.randint_like(x, -3, 4).astype("bool")),
]

halves = [[(4, 5)], [(34, 65)], [(2, 6, 4)]]
TRIPLES: list[list[Shape]] = [[(7,), (7,), (7,)], [(33, 65), (33, 1), (33, 65)], [(3, 1), (1, 5), ()]]


def gated(x: Array, dim: int = 0) -> Array:
    first, second = np.split(x, 2, dim)
    return first / (1 + np.exp(-second))


COMPOSED = [
    Row("prelu", lambda x, w: np.where(x > 0, x, w * x), every(PAIRS), [away_from(0), nonzero], call=ops.prelu),
    Row("glu", gated, [*every(halves), case((3, 4), dim=1), case((3, 4), dim=-1)], ulps=32, call=ops.glu),
    Row("threshold", lambda x, threshold, value: np.where(x > threshold, x, value),
        every(FEW, {"threshold": 0.3, "value": -1.0}), [away_from(0.3)], call=ops.threshold),
    Row("hardtanh", lambda x, lo=-1.0, hi=1.0: np.clip(x, lo, hi), every(FEW, {}, {"lo": -0.25, "hi": 0.5}),
        [away_from(-1, -0.25, 0.5, 1)], call=ops.hardtanh, bad=[
            Bad("an interval without a middle", [(2, 3)], lambda x: ops.hardtanh(x, 1.0, 1.0), ValueError,
                ["hardtanh: lo is 1.0 and hi is 1.0"]),
        ]),
    Row("lerp", lambda a, b, w: a + w * (b - a), every(TRIPLES), size=one, call=ops.lerp),
    Row("addcmul", lambda x, a, b, value=1.0: x + value * a * b, every(TRIPLES, {}, {"value": 2.5}), size=one,
        ulps=16, call=ops.addcmul),
    Row("addcdiv", lambda x, a, b, value=1.0: x + value * a / b, every(TRIPLES, {}, {"value": 2.5}),
        [normal, normal, nonzero], size=lambda *xs, **_: 4 + sum(abs(x) for x in xs), ulps=16, call=ops.addcdiv),
    Row("nan_to_num", lambda x: x, every(FEW), call=ops.nan_to_num),
]


def rolled(x: Array, shifts: int, dim: int) -> Array:
    return np.roll(x, shifts, dim)


def padded(x: Array, widths: tuple[int, ...], mode: str = "constant") -> Array:
    pairs = [(0, 0)] * (x.ndim - 1 - len(widths) // 2) + [widths[i : i + 2] for i in range(0, len(widths), 2)][::-1]
    return np.pad(x, [*pairs, (0, 0)], {"replicate": "edge", "circular": "wrap"}.get(mode, mode))


def moving(name: str, oracle: Callable[..., Any], *cases: Any, call: Callable[..., Any] | None = None,
           bad: Sequence[Bad] = ()) -> Row:
    return Row(name, oracle, cases, ulps=2, call=call or getattr(ops, name), bad=bad)


def triangle(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, diagonal=0: np.moveaxis(f(np.moveaxis(x, (0, 1), (-2, -1)), diagonal), (-2, -1), (0, 1))


def joined_parts(name: str) -> Callable[..., Any]:
    """All parts but the first, joined again: nothing is sent to that."""
    return lambda x, *args, **params: ops.concat(getattr(ops, name)(x, *args, **params)[1:], params.get("dim", 0))


def blocks(*xs: Array) -> Array:
    return np.block([[x if i == j else np.zeros((len(x), y.shape[1])) for j, y in enumerate(xs)]
                     for i, x in enumerate(xs)])


SHAPES = [
    moving("expand", lambda x, sizes: np.broadcast_to(x, sizes), case((3, 1), sizes=(2, 3, 4)),
           case((1, 5), sizes=(4, 5)),
           call=lambda x, sizes: ops.expand(x, sizes), bad=[
               Bad("repeating what has a size", [(2, 3)], lambda x: ops.expand(x, 4, 3), ag.ShapeError,
                   ["expand: ", "(2, 3)", "(4, 3)"])]),
    moving("broadcast_to", np.broadcast_to, case((3, 1), shape=(3, 4))),
    moving("tile", lambda x, times: np.tile(x, times), case((3, 5), times=(2, 3)), case((3, 5), times=(2, 1, 2)),
           call=lambda x, times: ops.tile(x, times)),
    moving("repeat", lambda x, times: np.tile(x, times), case((3, 5), times=(2, 3)),
           call=lambda x, times: x.repeat(*times)),
    moving("repeat_interleave", lambda x, repeats, dim: np.repeat(x, repeats, dim), case((3, 5), repeats=2, dim=1)),
    moving("flip", lambda x, dims: np.flip(x, dims), case((3, 5), dims=(0,)), case((2, 3, 4), dims=(0, -1)),
           call=lambda x, dims: ops.flip(x, dims)),
    moving("roll", rolled, case((3, 5), shifts=2, dim=1), case((2, 3, 4), shifts=-4, dim=1)),
    moving("permute", lambda x, dims: np.transpose(x, dims), case((2, 3, 4), dims=(2, 0, 1)),
           call=lambda x, dims: ops.permute(x, *dims)),
    moving("movedim", lambda x, source, destination: np.moveaxis(x, source, destination),
           case((2, 3, 4), source=0, destination=-1)),
    moving("swapaxes", lambda x, axis0, axis1: np.swapaxes(x, axis0, axis1), case((2, 3, 4), axis0=0, axis1=-1)),
    moving("squeeze", lambda x, dim=None: np.squeeze(x, dim), case((2, 1, 4, 1)), case((2, 1, 4), dim=1)),
    moving("unsqueeze", lambda x, dim: np.expand_dims(x, dim), case((2, 4), dim=1), case((2, 4), dim=-1)),
    moving("stack", lambda *xs, dim=0: np.stack(xs, dim), case((3, 5), (3, 5), dim=1),
           call=lambda *xs, dim=0: ops.stack(xs, dim)),
    moving("split", lambda x, size, dim=0: x[(slice(None),) * dim + (slice(size, None),)], case((5, 3), size=2),
           case((3, 5), size=2, dim=1), call=joined_parts("split"), bad=[
               Bad("parts that are not all", [(2, 3)], lambda x: ops.split(x, [1, 1], 1), ag.ShapeError,
                   ["split: size is (1, 1)", "3 places"])]),
    moving("chunk", lambda x, chunks, dim=0: x[-(-len(x) // chunks) :], case((5, 3), chunks=2),
           call=joined_parts("chunk")),
    moving("unbind", lambda x, dim=0: np.concatenate([x[i] for i in range(1, len(x))]), case((3, 2, 4)),
           call=joined_parts("unbind")),
    moving("hsplit", lambda x, sections: np.hsplit(x, sections)[1], case((4, 6), sections=3),
           case((5, 7), sections=[2]), call=lambda x, sections: ops.hsplit(x, sections)[1], bad=[
               Bad("parts of several sizes", [(2, 5)], lambda x: ops.hsplit(x, 2), ag.ShapeError,
                   ["hsplit: sections is 2", "5 places"])]),
    moving("vsplit", lambda x, sections: np.vsplit(x, sections)[1], case((4, 6), sections=2),
           case((5, 7), sections=[1, -1]), call=lambda x, sections: ops.vsplit(x, sections)[1]),
    moving("rot90", lambda x, k, dims: np.rot90(x, k, dims), *[case((3, 5), k=k, dims=(0, 1)) for k in (1, 2, -1)],
           case((2, 3, 4), k=5, dims=(2, 0))),
    moving("diagonal", lambda x, offset=0, dim1=0, dim2=1: np.moveaxis(np.diagonal(x, offset, dim1, dim2), -1, 0),
           case((3, 5)), case((5, 3), offset=1), case((3, 5), offset=-1), case((2, 3, 4), dim1=2, dim2=0),
           case((3, 4), offset=9), case((3, 4), offset=-2), bad=[
               Bad("one axis twice", [(2, 3)], lambda x: ops.diagonal(x, 0, 1, -1), ag.ShapeError,
                   ["diagonal: ", "twice"])]),
    moving("diag", lambda x, diagonal=0: np.diag(x, diagonal), case((5,)), case((4,), diagonal=2),
           case((4,), diagonal=-1), case((3, 5), diagonal=1), bad=[
               Bad("a column", [(3, 1)], ops.diag, ag.ShapeError, ["diag: x is (3, 1), a column", "(3,)"])]),
    moving("outer", np.outer, case((3,), (5,)), case((3, 1), (5,)), bad=[
        Bad("a matrix", [(3, 2), (5,)], ops.outer, ag.ShapeError, ["outer: an operand is (3, 2)"])]),
    moving("kron", np.kron, case((2, 3), (4, 5)), case((3,), (2, 2)), case((1, 2, 3), (2, 3, 1))),
    moving("block_diag", blocks, case((2, 3), (1, 4)), case((2, 2), (3, 1), (1, 1)), bad=[
        Bad("a vector", [(3,)], ops.block_diag, ag.ShapeError, ["block_diag: tensors are (3,)"])]),
    Row("meshgrid", lambda *xs, indexing: np.add.reduce(np.meshgrid(*xs, indexing=indexing)),
        [case((3,), (5,), indexing="ij"), case((3,), (5,), (2,), indexing="xy")], size=lambda *xs, **_: 4 * len(xs),
        call=lambda *xs, indexing: reduce(ops.add, ops.meshgrid(*xs, indexing=indexing))),
    Row("cdist", lambda a, b, p=2.0: p_norm(a[:, :, None] - b[:, None], 0, False, p),
        [case((3, 5), (3, 4)), case((3, 5), (3, 4), p=1.0), case((3, 4, 2), (3, 5, 2))], [normal, apart], 64,
        lambda *_, **__: 3, lambda a, b, **_: 1 + np.abs(a).sum() + np.abs(b).sum(), ops.cdist),
    moving("pad", padded, case((2, 5, 6, 3), widths=(1, 2)), case((2, 5, 6, 3), widths=(2, 0, 1, 3))),
    Row("pad", padded, [case((2, 5, 6, 3), widths=(2, 0, 1, 3), mode=mode) for mode in (
        "reflect", "replicate", "circular")], ulps=4, call=ops.pad, label="modes", bad=[
            Bad("mirroring more than there is", [(2, 3, 2)], lambda x: ops.pad(x, (3, 0), "reflect"), ag.ShapeError,
                ["pad: widths 3 and 0 of an axis of 3 places", "at most 2"]),
            Bad("padding the batch", [(3, 2)], lambda x: ops.pad(x, (1, 1, 1, 1)), ag.ShapeError,
                ["pad: widths has 4 numbers and x is (3, 2)"])]),
    moving("tril", triangle(np.tril), case((3, 5)), case((4, 3, 2), diagonal=-1)),
    moving("triu", triangle(np.triu), case((3, 5), diagonal=1)),
]
