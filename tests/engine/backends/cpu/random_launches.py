"""Launches of random shapes for the CPU's kernels in C: `MAKERS` has a function of a random generator per primitive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from engine.backends.cpu.random_products import PRODUCTS
from engine.backends.cpu.random_sizes import MOST, Random, shape, size
from helpers.guarded import Launch
from table.rows import Array

from ag.engine.dtype import F32, I32
from ag.engine.kernels.indexing import NOTHING, resized
from ag.engine.kernels.optimizer import places_of
from ag.engine.primitive import PRIMITIVES

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1.4e-45, -1.2e-38], np.float32)
LARGE = np.array([3e38, -3e38, 1e30, -1e20], np.float32)
# Of what they add up or multiply, a part may be infinite before the whole is, and it is not said which part.
SUMS = {
    "sum", "scatter_add", "scatter_along", "square_sums", "softmax_grad", "log_softmax_grad", "softmax_cross_entropy",
    "layer_norm", "layer_norm_grad", "norm_sums", "norm_statistics", "joined_statistics", "matmul", "matmul_sums",
    "batched_matmul", "conv2d", "conv2d_input_grad", "conv2d_weight_grad", "attention", "attention_grad",
    "attention_delta", "attention_weights", "rms_norm", "rms_norm_grad", "rms_norm_sums",
    "prod", "sample_matmul", "packed_matmul", "packed_matmul_pieces"}
HELD = {"state", "settings", "places", "factor", "bad", "scaling"}  # what an optimizer or a loss scale decides itself


def normal(rng: Random, *sizes: int) -> Array:
    return rng.standard_normal(sizes).astype(np.float32)


def launch(name: str, *operands: Array, **params: Any) -> Launch:
    return Launch(PRIMITIVES[name], list(operands), params)


def function(name: str, rng: Random) -> Launch:
    """A function of `functions.glsl`; operands called a and b broadcast."""
    primitive = PRIMITIVES[name]
    sizes = shape(rng, int(rng.integers(0, 5)))
    inputs = [normal(rng, *sizes) for _ in primitive.operands[1:]]
    if name in ("log", "sqrt", "target_log", "log2", "log10", "rsqrt", "log1p", "power"):
        inputs = [np.abs(x) for x in inputs]
    if name in ("asin", "acos", "atanh", "erfinv"):
        inputs = [np.float32(0.99) * np.tanh(x) for x in inputs]
    if name == "acosh":
        inputs = [1 + np.abs(x) for x in inputs]
    if primitive.operands == ("out", "a", "b"):
        inputs = [shrunk(rng, x) for x in inputs]
        inputs[1] += np.copysign(np.float32(0.1), inputs[1])  # no divisor near 0
    numbers = {x: float(rng.normal()) for x in primitive.params}
    if name.endswith("shrink") or name in ("celu", "softplus"):  # near 0 and below they make no sense
        numbers = {x: 0.1 + abs(y) for x, y in numbers.items()}
    return launch(name, *inputs, **numbers)


def shrunk(rng: Random, x: Array) -> Array:
    kept = tuple(slice(None) if rng.random() < 0.7 else slice(1) for _ in x.shape)
    return np.ascontiguousarray(x[kept]).reshape(x[kept].shape)


STEPS = (("mul", 0, 1, 0.0), ("scale", 4, 4, 2.0), ("add", 5, 2, 0.0), ("tanh", 6, 6, 0.0), ("sub", 7, 3, 0.0),
         ("relu", 8, 8, 0.0))


def chain(name: str, rng: Random) -> Launch:
    x = normal(rng, *shape(rng, int(rng.integers(0, 4))))
    steps = int(rng.integers(2, len(STEPS) + 1))
    params = {"kept": int(rng.integers(4, 3 + steps))} if name == "fused_pair" else {}
    return launch(name, x, *(shrunk(rng, x) for _ in range(3)), chain=STEPS[:steps], **params)


def along_an_axis(name: str, inputs: int, rng: Random) -> Launch:
    sizes = shape(rng, int(rng.integers(1, 5)))
    x = normal(rng, *sizes)
    y = -np.abs(x) if name == "log_softmax_grad" else x  # a logarithm of a probability
    return launch(name, *[y, normal(rng, *sizes)][:inputs], axis=int(rng.integers(len(sizes))))


def cross_entropy(rng: Random) -> Launch:
    x = normal(rng, *shape(rng, 2, full=(0,)))
    return launch("softmax_cross_entropy", x, rng.random(x.shape).astype(np.float32), factor=float(rng.normal()))


def cross_entropy_ids(rng: Random) -> Launch:
    x = normal(rng, *shape(rng, 2, full=(0,)))
    ids = rng.choice([-(1 << 31), *range(len(x))], x.shape[1]).astype(np.int32)
    return launch("softmax_cross_entropy_ids", x, ids, factor=float(rng.normal()))


def without(rng: Random) -> Launch:
    return launch("without", rng.integers(-3, 3, shape(rng, 1)).astype(np.int32), ignore=int(rng.integers(-3, 3)))


def gradients(rng: Random, n: int) -> tuple[Array, Array, Array]:
    return normal(rng, n), np.float32([rng.choice([1.0, 0.3])]), np.float32([rng.choice([0, 0, 0, 2])])


def adam(rng: Random) -> Launch:
    sizes = [4 * size(rng, 2000) for _ in range(int(rng.integers(1, 6)))]
    ends = np.cumsum(sizes).tolist()
    first = int(rng.integers(len(sizes)))
    count = int(rng.integers(1, len(sizes) - first + 1))
    start, n = [0, *ends][first], sum(sizes[first : first + count])
    rates = rng.choice([0.1, 0.001, 0.7], 2)
    steps = np.full(len(sizes) + 1, 3) if rng.random() < 0.5 else rng.integers(0, 6, len(sizes) + 1)
    rows = [[*(1 - (1 - rates) ** t), t] for t in steps.tolist()]
    state = np.concatenate([[0], *rows]).astype(np.float32)
    settings = np.array([0.01, *rates, 1e-8, rng.choice([0.0, 0.1]), *(1 - rates)])
    flats = normal(rng, n), normal(rng, n), normal(rng, n) ** 2
    return launch("adam_update", *flats, state, settings, places_of(ends), *gradients(rng, n), flats[0], start=start,
                  first=first, count=count, last=bool(rng.integers(2)))


def sgd(rng: Random) -> Launch:
    n = size(rng, MOST)
    settings = np.array([0.01, rng.choice([0.0, 0.9]), rng.choice([0.0, 0.1]), rng.integers(2)])
    p = normal(rng, n)
    return launch("sgd_update", p, normal(rng, n), np.float32([0, 3]), settings, *gradients(rng, n), p,
                  last=bool(rng.integers(2)))


def pieces(name: str, rng: Random) -> Launch:
    x = normal(rng, size(rng, MOST))
    chunk = size(rng, 2 * len(x) + 1, 1)
    if name == "square_sums":
        return launch(name, x, chunk=chunk)
    x[rng.random(x.size) < 0.1] = rng.choice(np.float32([np.nan, np.inf, -np.inf]))
    return launch(name, x, np.float32([rng.choice([1.0, 2.0])]), chunk=chunk)


def clip_factor(rng: Random) -> Launch:
    near = np.exp(normal(rng, size(rng, 100)))
    near[rng.random(near.size) < 0.3] = np.inf
    return launch("clip_factor", near, np.exp(normal(rng, near.size)), max_norm=float(np.exp(rng.normal())))


def scale_update(rng: Random) -> Launch:
    scale = float(2.0 ** rng.integers(-4, 5))
    return launch("scale_update", np.float32([scale, 1 / scale, rng.integers(4), rng.integers(9)]),
                  np.float32(rng.choice([0, 0, 1, 300])), interval=3, largest=16.0)


def reduction(name: str, rng: Random) -> Launch:
    ndim = int(rng.integers(1, 5))
    axis = int(rng.integers(ndim))
    x = normal(rng, *shape(rng, ndim, full=(axis,) if name not in ("sum", "prod") else ()))
    if name == "argmax":
        return Launch(PRIMITIVES[name], [x], {"axis": axis, "chunk": x.shape[axis]}, I32)
    chunk = x.shape[axis] if rng.random() < 0.5 else size(rng, x.shape[axis], 1) if x.shape[axis] else 0
    return launch(name, x, axis=axis, chunk=chunk, **({"scale": float(rng.normal())} if name == "sum" else {}))


def expand(rng: Random) -> Launch:
    x = normal(rng, *shape(rng, int(rng.integers(0, 5))))
    lead = shape(rng, int(rng.integers(0, 2)), 10)
    return launch("expand", shrunk(rng, x), shape=(*lead, *x.shape), factor=float(rng.choice([1.0, rng.normal()])))


def equal(rng: Random) -> Launch:
    x, y = (rng.integers(0, 3, (2, *shape(rng, int(rng.integers(0, 5)))))).astype(np.float32)
    return launch("equal", shrunk(rng, x), shrunk(rng, y))


def words(rng: Random, *sizes: int) -> Array:
    return rng.integers(-9, 9, sizes).astype(rng.choice([np.float32, np.int32]))


def copy(rng: Random) -> Launch:
    return launch("copy", words(rng, *shape(rng, int(rng.integers(0, 4)))))


def along(rng: Random, sizes: tuple[int, ...]) -> dict[str, int]:
    """An axis, and places along it: every step of either sign, and sometimes none."""
    axis = int(rng.integers(len(sizes)))
    step, n = int(rng.choice([1, 1, 2, 3, -1, -2])), sizes[axis]
    count = int(rng.integers(0, -(-n // abs(step)) + 1))
    taken = (count - 1) * abs(step) + 1 if count else 0
    first = int(rng.integers(n - taken + 1))
    return {"axis": axis, "start": first if step > 0 else max(0, first + taken - 1), "step": step, "count": count}


def part(rng: Random) -> Launch:
    x = words(rng, *shape(rng, int(rng.integers(1, 5))))
    return launch("part", x, **along(rng, x.shape))


def spread(rng: Random) -> Launch:
    sizes = shape(rng, int(rng.integers(1, 5)))
    places = along(rng, sizes)
    x = words(rng, *resized(sizes, places["axis"], places.pop("count")))
    return launch("spread", x, **places, length=sizes[places["axis"]])


def insert(rng: Random) -> Launch:
    sizes = shape(rng, int(rng.integers(1, 5)))
    axis = int(rng.integers(len(sizes)))
    count = int(rng.integers(0, sizes[axis] + 1))
    whole = words(rng, *sizes)
    x = words(rng, *resized(sizes, axis, count)).astype(whole.dtype)
    return launch("insert", whole, x, axis=axis, start=int(rng.integers(sizes[axis] - count + 1)))


def permute(rng: Random) -> Launch:
    x = words(rng, *shape(rng, int(rng.integers(0, 6))))
    moving = x.ndim - (x.ndim > 0 and rng.random() < 0.5)  # rows may stay rows
    return launch("permute", x, axes=(*rng.permutation(moving).tolist(), *range(moving, x.ndim)))


def ids(rng: Random, length: int, *sizes: int, wraps: bool = False) -> Array:
    """Ids of so many places, with `wraps` also from the end; else some launches have some that stand for none."""
    found = rng.integers(-length if wraps else 0, max(1, length), sizes).astype(np.int32)
    if not wraps and (rng.random() < 0.3 or not length):
        found[rng.random(sizes) < (0.2 if length else 2)] = NOTHING
    return found


def take(rng: Random) -> Launch:
    x = words(rng, *shape(rng, 3))
    outer, length, inner = x.shape
    places, wraps = size(rng, 60), bool(length and rng.integers(2))
    of = (places,) if rng.random() < 0.5 else (outer, places, inner)
    return launch("take", x, ids(rng, length, *of, wraps=wraps), wraps=wraps)


def ends(rng: Random, places: int) -> dict[str, int]:
    first, last = np.sort(rng.integers(0, places + 1, 2)).tolist()
    return {"first": first, "last": last}


def scatter_add(rng: Random) -> Launch:
    g, length, wraps = normal(rng, *shape(rng, 3)), size(rng, 100), bool(rng.integers(2))
    return launch("scatter_add", g, ids(rng, length, g.shape[1], wraps=wraps), length=length, wraps=wraps,
                  **ends(rng, g.shape[1]))


def scatter_along(rng: Random) -> Launch:
    x, length = normal(rng, *shape(rng, 3)), size(rng, 30)
    out = normal(rng, x.shape[0], length, x.shape[2])
    places, wraps = ends(rng, x.shape[1]), bool(rng.integers(2))
    return launch("scatter_along", out, x, ids(rng, length, *x.shape, wraps=wraps), how=int(rng.integers(5)),
                  wraps=wraps, **places)


def flat_ids(rng: Random) -> Launch:
    count, length = size(rng, 200), size(rng, 50, 1)
    signed = ids(rng, length, count) - rng.choice(np.int32([0, length]), count).astype(np.int32)
    return launch("flat_ids", ids(rng, 100, count), signed, length=length)


def sequence(rng: Random) -> Launch:
    first = np.array(rng.integers(-100, 100), np.int32)
    return launch("sequence", first, count=size(rng, 300), step=int(rng.integers(-3, 4)))


def rotation(name: str, rng: Random) -> Launch:
    times, batch, half = size(rng, 60), size(rng, 9), int(rng.integers(1, 5))
    dim = 2 * half + int(rng.integers(4))
    of_times = [(), (times, 1), (times, batch)][rng.integers(3)]
    positions = np.asarray(rng.integers(-(1 << 20), 1 << 20, of_times), np.int32)
    heads = [normal(rng, int(rng.integers(1, 4)) * dim, times, batch) for _ in range(1 + (name == "rope_pair"))]
    return launch(name, *heads, positions, rng.integers(0, 1 << 32, (half, 2), np.uint32), dim=dim, rotary=2 * half,
                  interleaved=bool(rng.integers(2)), offset=int(rng.integers(9)), factor=1.25,
                  way=float(rng.choice([1.0, -1.0])))


def limited(name: str, rng: Random) -> Launch:
    sizes = shape(rng, int(rng.integers(0, 4)))
    lo, hi = np.sort(rng.normal(size=2)).tolist()
    return launch(name, *[normal(rng, *sizes) for _ in PRIMITIVES[name].operands[1:]], lo=lo, hi=hi)


POWERS = 0, 0.5, 1, 2, 3, -1, -2, 1.5, 2.7


def power(name: str, rng: Random) -> Launch:
    sizes = shape(rng, int(rng.integers(0, 4)))
    p = float(rng.choice(POWERS))
    x = np.exp(normal(rng, *sizes))
    if p == int(p):
        x *= rng.choice(np.float32([1, -1]), sizes)
    return launch(name, x.astype(np.float32), *[normal(rng, *sizes) for _ in PRIMITIVES[name].operands[2:]], p=p)


def key(rng: Random) -> Array:
    return rng.integers(0, 1 << 32, 4, np.uint32)


def dropout(rng: Random) -> Launch:
    x = normal(rng, *shape(rng, int(rng.integers(0, 4))))
    return launch("dropout", x, key(rng), rate=float(rng.choice([0.0, 0.1, 0.5, 0.999])))


def draws(name: str, rng: Random) -> Launch:
    numbers = {"low": int(rng.integers(-9, 9)), "count": int(rng.integers(1, 1 << 31))} if name == "randint" else {}
    params = {"shape": shape(rng, int(rng.integers(0, 4))), **numbers}
    return Launch(PRIMITIVES[name], [key(rng)], params, F32 if name == "uniform" else I32)


def rng_draw(rng: Random) -> Launch:
    state = key(rng)
    state[2] = rng.choice([0, 7, (1 << 32) - 1])
    return launch("rng_draw", state)


EPS = {"eps": 0.1}  # two features that are nearly alike would make much of the rounding of their difference


def column(rng: Random, x: Array) -> Array:
    return normal(rng, len(x), 1)


def statistics(rng: Random, *sizes: int) -> tuple[Array, Array]:
    return normal(rng, *sizes), np.exp(normal(rng, *sizes))


def over_a_matrix(name: str, rng: Random) -> Launch:
    full = {"layer_norm": (0,), "layer_norm_grad": (0,), "rms_norm": (0,), "rms_norm_grad": (0,),
            "norm_statistics": (1,)}.get(name, ())
    x = normal(rng, *shape(rng, 2, full=full))
    g, rows, columns = normal(rng, *x.shape), (len(x), 1), (1, x.shape[1])
    if name == "norm_statistics":
        return launch(name, x, chunk=size(rng, 2 * x.shape[1], 1))
    if name == "norm_sums":
        return launch(name, x, g, *statistics(rng, *(rows if rng.random() < 0.5 else columns)), **EPS,
                      chunk=size(rng, max(1, 2 * x.shape[1]), 1))
    if name == "layer_norm":
        return launch(name, x, column(rng, x), column(rng, x), **EPS)
    if name == "layer_norm_grad":
        return launch(name, x, g, column(rng, x), *statistics(rng, *columns), **EPS)
    if name == "rms_norm":
        return launch(name, x, column(rng, x), **EPS)
    if name == "rms_norm_grad":
        return launch(name, x, g, column(rng, x), statistics(rng, *columns)[1], **EPS)
    if name == "rms_norm_sums":
        return launch(name, x, g, statistics(rng, *columns)[1], **EPS,
                      chunk=size(rng, max(1, 2 * x.shape[1]), 1))
    if name == "normalize":
        return launch(name, x, column(rng, x), column(rng, x), *statistics(rng, *rows), **EPS)
    return launch(name, x, g, column(rng, x), *statistics(rng, *rows), column(rng, x), column(rng, x), **EPS)


def joined_statistics(rng: Random) -> Launch:
    length = size(rng, 5000, 1)
    chunk = size(rng, length, 1)
    return launch("joined_statistics", *statistics(rng, size(rng, 50), -(-length // chunk)), length=length, chunk=chunk)


def inverse_std(rng: Random) -> Launch:
    return launch("inverse_std", np.exp(normal(rng, *shape(rng, 2))), **EPS)


def running_update(rng: Random) -> Launch:
    running, momentum = normal(rng, *shape(rng, 2)), float(rng.choice([0.1, 0.5, 0.9]))
    value = normal(rng, *running.shape)
    return launch("running_update", running, value, value, momentum=momentum, factor=float(rng.normal()))


Maker = Callable[[Random], Launch]
MAKERS: dict[str, Maker] = {
    **{name: partial(function, name) for name, primitive in PRIMITIVES.items() if primitive.fusable},
    **{name: partial(chain, name) for name in ("fused", "fused_pair")},
    **{name: partial(along_an_axis, name, inputs) for name, inputs in (
        ("softmax", 1), ("log_softmax", 1), ("softmax_grad", 2), ("log_softmax_grad", 2))},
    "softmax_cross_entropy": cross_entropy,
    "softmax_cross_entropy_ids": cross_entropy_ids,
    "without": without,
    "sum": partial(reduction, "sum"),
    **{name: partial(reduction, name) for name in ("argmax", "max", "min", "prod")},
    "expand": expand,
    "equal": equal,
    "copy": copy,
    "part": part,
    "spread": spread,
    "insert": insert,
    "permute": permute,
    "take": take,
    "scatter_add": scatter_add,
    "scatter_along": scatter_along,
    "flat_ids": flat_ids,
    "sequence": sequence,
    "rope": partial(rotation, "rope"), "rope_pair": partial(rotation, "rope_pair"),
    "clamp": partial(limited, "clamp"),
    "clamp_grad": partial(limited, "clamp_grad"),
    "pow": partial(power, "pow"),
    "pow_grad": partial(power, "pow_grad"),
    "dropout": dropout,
    "rng_draw": rng_draw, **{name: partial(draws, name) for name in ("uniform", "randint")},
    **{name: partial(over_a_matrix, name) for name in (
        "layer_norm", "layer_norm_grad", "norm_sums", "norm_statistics", "normalize", "batch_norm_grad", "rms_norm",
        "rms_norm_grad", "rms_norm_sums")},
    "joined_statistics": joined_statistics,
    "inverse_std": inverse_std,
    "running_update": running_update,
    "adam_update": adam,
    "sgd_update": sgd,
    "nonfinite": partial(pieces, "nonfinite"),
    "square_sums": partial(pieces, "square_sums"),
    "clip_factor": clip_factor,
    "scale_update": scale_update,
    **PRODUCTS,
}


def put_special_values(launch: Launch, rng: Random) -> None:
    """Put them into its operands, in some places; they may become all of a small one."""
    special = SPECIAL if launch.primitive.name in SUMS else np.concatenate([SPECIAL, LARGE])
    names = launch.primitive.operands[launch.primitive.outputs :]
    for operand, x in zip(names, launch.operands, strict=True):
        if x.dtype == np.float32 and operand not in HELD and x.size > 1:
            places = rng.random(x.shape) < min(0.3, 10 / x.size)
            x[places] = rng.choice(special, int(places.sum())) if rng.random() < 0.5 else rng.choice(special)
