"""Golden entries of single ops: results and gradients of fixed inputs, in float32 and in the 16-bit types.

An entry hashes all cases of one op.  Sizes are odd, and large enough for several workgroups and pieces of sums.
entries.py collects them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from golden.hashing import Found, hash_of

import ag

DTYPES = ("f32", "f16", "bf16")
Shape = tuple[int, ...]
Case = tuple[Callable[..., ag.Tensor], list[Shape]]  # a function of tensors, and their shapes
VECTOR, MATRIX, LONG, IMAGES = (7,), (33, 65), (3, 4099), (5, 9, 8, 3)
SHAPES: list[Shape] = [VECTOR, MATRIX, (2, 3, 4, 5), LONG]
PAIRS: list[list[Shape]] = [[MATRIX, MATRIX], [MATRIX, (33, 1)], [(1, 65), MATRIX], [(3, 1), (1, 5)], [LONG, LONG]]
POSITIVE = {"ag_log", "ag_sqrt", "ag_pow", "ag_div", "ag_cross_entropy_loss"}  # inputs are moved away from 0


def labels(classes: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, classes, shape)


def probabilities(classes: int, samples: int) -> np.ndarray:
    return np.random.default_rng(6).dirichlet(np.ones(classes), samples).T.astype(np.float32)


def each(function: Callable[..., ag.Tensor], shapes: list[Shape] = SHAPES, **params: Any) -> list[Case]:
    """One operand of each shape."""
    return [(lambda x: function(x, **params), [shape]) for shape in shapes]


def pairs(function: Callable[..., ag.Tensor]) -> list[Case]:
    """Two operands that broadcast."""
    return [(function, shapes) for shapes in PAIRS]


def reductions(function: Callable[..., ag.Tensor]) -> list[Case]:
    return [*each(function), *each(function, [(70_001,)]), *each(function, [MATRIX, LONG], dim=1),
            *each(function, [MATRIX, LONG], dim=0, keepdim=True), *each(function, [(2, 3, 4, 5)], dim=(0, 2))]


def attention(length: int, batch: int, **params: Any) -> Case:
    shape = (24, length, batch)
    return lambda q, k, v: ag.ag_attention(q, k, v, **params), [shape, shape, shape]


CASES: dict[str, list[Case]] = {
    **{f"ag_{name}": pairs(getattr(ag, f"ag_{name}")) for name in ("add", "sub", "mul", "div")},
    **{f"ag_{name}": each(getattr(ag, f"ag_{name}"))
       for name in ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "abs", "silu")},
    "ag_scale": each(ag.ag_scale, scalar=-1.75),
    "ag_pow": [case for p in (2, 3, -1, 0.5, 1.5) for case in each(ag.ag_pow, [VECTOR, MATRIX], p=p)],
    "ag_clamp": each(ag.ag_clamp, lo=-0.5, hi=0.75),
    "ag_leaky_relu": each(ag.ag_leaky_relu, slope=0.2),
    "ag_gelu": each(ag.ag_gelu) + each(ag.ag_gelu, approximate="tanh"),
    "ag_softmax": each(ag.ag_softmax) + each(ag.ag_softmax, [MATRIX, LONG], dim=1),
    "ag_log_softmax": each(ag.ag_log_softmax) + each(ag.ag_log_softmax, [MATRIX, LONG], dim=1),
    **{f"ag_{name}": reductions(getattr(ag, f"ag_{name}")) for name in ("sum", "mean", "max")},
    "ag_matmul": [(ag.ag_matmul, list(shapes)) for shapes in (
        [(3, 5), (5, 7)], [(65, 33), (33, 130)], [(7, 300), (300, 5)], [(4, 3), (3,)], [(4, 3), (3, 2, 5)],
        [(2, 9000), (9000, 3)], [(128, 96), (96, 128)])],
    "ag_reshape": each(lambda x: ag.ag_reshape(x, 65, 33), [MATRIX]),
    "ag_flatten": each(ag.ag_flatten, [IMAGES]),
    "ag_transpose": [*each(ag.ag_transpose), *each(lambda x: ag.ag_transpose(x, 0, 2, -1, 1), [IMAGES])],
    "ag_slice": each(lambda x: ag.ag_slice(x, (slice(3, 30, 2), slice(None, None, -3))), [MATRIX]),
    "ag_concat": [(lambda a, b: ag.ag_concat([a, b], 0), [MATRIX, (4, 65)]),
                  (lambda a, b: ag.ag_concat([a, b, a], 1), [MATRIX, (33, 7)])],
    "ag_embedding_lookup": [(lambda w: ag.ag_embedding_lookup(w, labels(19, 7, 11)), [(6, 19)])],
    "ag_mse_loss": [(ag.ag_mse_loss, [MATRIX, MATRIX]), (ag.ag_mse_loss, [LONG, LONG])],
    "ag_cross_entropy_loss": [
        (lambda p: ag.ag_cross_entropy_loss(p, ag.ag_tensor(probabilities(33, 65), dtype=p.dtype)), [MATRIX])],
    "ag_softmax_cross_entropy_loss": [
        (lambda x: ag.ag_softmax_cross_entropy_loss(x, labels(33, 65)), [MATRIX]),
        (lambda x: ag.ag_softmax_cross_entropy_loss(x, labels(300, 3)), [(300, 3)]),
        (lambda x: ag.ag_softmax_cross_entropy_loss(x, ag.ag_tensor(probabilities(33, 65), dtype=x.dtype)), [MATRIX])],
    "ag_layer_norm_op": [(ag.ag_layer_norm_op, [s, (s[0], 1), (s[0], 1)]) for s in (MATRIX, (128, 6, 5), (4099, 3))],
    "ag_rms_norm_op": [(ag.ag_rms_norm_op, [s, (s[0], 1)]) for s in (MATRIX, (128, 6, 5), (4099, 3))],
    "ag_batch_norm_op": [(ag.ag_batch_norm_op, [s, (s[0], 1), (s[0], 1)]) for s in (MATRIX, IMAGES, LONG)],
    "ag_conv2d": [
        (lambda x, w, b: ag.ag_conv2d(x, w, b, padding=1), [IMAGES, (7, 5, 3, 3), (7, 1)]),
        (lambda x, w, b: ag.ag_conv2d(x, w, b, stride=2, padding=(1, 2), dilation=(2, 1)),
         [IMAGES, (7, 5, 3, 3), (7, 1)]),
        (lambda x, w: ag.ag_conv2d(x, w, stride=2), [IMAGES, (4, 5, 1, 1)]),
        (lambda x, w: ag.ag_conv2d(x, w, padding=1, groups=2), [(4, 9, 8, 3), (6, 2, 3, 3)]),
        (lambda x, w: ag.ag_conv2d(x, w, padding=1), [(16, 16, 16, 4), (32, 16, 3, 3)])],
    "ag_max_pool2d": each(ag.ag_max_pool2d, [IMAGES], size=2) + each(ag.ag_max_pool2d, [IMAGES], size=3, stride=2,
                                                                    padding=1),
    "ag_avg_pool2d": each(ag.ag_avg_pool2d, [IMAGES], size=2) + each(ag.ag_avg_pool2d, [IMAGES], size=3, stride=2,
                                                                    padding=1),
    "ag_global_avg_pool": each(ag.ag_global_avg_pool, [IMAGES]),
    "ag_attention": [attention(37, 2, heads=3), attention(37, 2, heads=3, causal=True),
                     attention(70, 1, heads=1, causal=True), attention(9, 3, heads=2, dropout=0.25),
                     (ag.ag_attention, [(140, 9, 2), (140, 11, 2), (6, 11, 2)])],
    "ag_cast": each(lambda x: ag.ag_cast(ag.ag_cast(x, "f16"), "bf16")),
}


def outcome(name: str, function: Callable[..., ag.Tensor], shapes: list[Shape], dtype: str) -> dict[str, np.ndarray]:
    """A result, and the gradients of its sum with fixed weights."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    if name in POSITIVE:
        arrays = [np.abs(array) + np.float32(0.25) for array in arrays]
    params = {f"p{i}": ag.ag_param(array, dtype=dtype) for i, array in enumerate(arrays)}
    ag.ag_seed(8)
    with ag.with_grad_tape():
        out = function(*params.values())
        weights = ag.ag_tensor(rng.uniform(0.5, 1.5, out.shape).astype(np.float32) / max(1, out.size) * 16,
                               dtype=out.dtype)
        if out.ndim == 1:  # a vector of numbers becomes a column
            weights = ag.ag_reshape(weights, *out.shape)
        loss = ag.ag_sum(out * weights)
    grads = ag.backward(loss)
    return {"out": out.numpy(), **{key: grads[p].numpy() for key, p in params.items()}}


def swept(name: str) -> Found:
    """All cases of an op, a hash for every element type."""
    found = {}
    for dtype in DTYPES:
        arrays = {f"{i} {key}": array for i, (function, shapes) in enumerate(CASES[name])
                  for key, array in outcome(name, function, shapes, dtype).items()}
        found[dtype] = hash_of(arrays)
    return found


def in_a_program(name: str) -> Found:
    """All cases of an op in captured steps, in float32, replayed with other numbers: what fusing makes of them."""
    arrays = {}
    for i, (function, shapes) in enumerate(CASES[name]):
        rng = np.random.default_rng(3)
        numbers = [[np.abs(rng.standard_normal(s)).astype(np.float32) + np.float32(0.25) for s in shapes]
                   for _ in range(2)]

        def step(*given: np.ndarray, function: Callable[..., ag.Tensor] = function) -> ag.Tensor:
            with ag.no_grad():
                out = function(*(ag.ag_relu(ag.ag_tensor(x) * 1.5 + 0.25) for x in given))
                return ag.ag_tanh(out * 0.5) + out

        captured = ag.ag_capture(step)
        for k, given in enumerate(numbers):
            ag.ag_seed(8)
            arrays[f"{i} call {k}"] = captured(*given).numpy()
    return {"f32": hash_of(arrays)}


def dropout(_device: str) -> Found:
    """Masks of dropout: the stream of the generator, several draws after each of several seeds."""
    layer, found = ag.ag_dropout(0.3), {}
    for seed in (0, 1, 2**40 + 3):
        ag.ag_seed(seed)
        for k, shape in enumerate([(7,), (33, 65), (5, 1000), (1,)]):
            found[f"{seed} {k}"] = layer(ag.ag_tensor(np.ones(shape, np.float32))).numpy()
    return {"masks": hash_of(found)}


def initial_weights(_device: str) -> Found:
    """Hash the weights that layers start with after a seed."""
    ag.ag_seed(11)
    layers = ag.ag_sequential(ag.ag_linear(7, 5), ag.ag_conv2d_layer(3, 4, 3), ag.ag_embedding(6, 8),
                              ag.ag_multihead_attention(8, 2), ag.ag_batch_norm(5), ag.ag_layer_norm(5))
    return {"weights": hash_of(layers.state_dict())}


def entries() -> dict[str, Callable[[str], Found]]:
    """Entries by name; each is called with the name of a device, which is the default device."""
    found: dict[str, Callable[[str], Found]] = {name: lambda _device, name=name: swept(name) for name in CASES}
    found |= {f"{name} captured": lambda _device, name=name: in_a_program(name) for name in CASES
              if name not in HOST_LABELS}
    return {**found, "dropout stream": dropout, "initial weights": initial_weights}


# A capture takes integers as arguments of the step, and these cases bring them along.
HOST_LABELS = {"ag_embedding_lookup", "ag_cross_entropy_loss", "ag_softmax_cross_entropy_loss"}
