"""The case table: one row per public op.  To test a new op, add a row; the tests are made of it.
Shapes have one element, odd sizes, more elements than a workgroup (64 to 256 invocations), and ranks 0 to 4."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from table import (
    cases_attention,
    cases_functions,
    cases_images,
    cases_losses,
    cases_pointwise,
    cases_products,
    cases_rotary,
    cases_selection,
    cases_sequences,
    cases_windows,
    oracles,
)
from table.rows import (
    ONE,
    Array,
    Bad,
    Case,
    Row,
    Shape,
    away_from,
    case,
    class_ids,
    copies,
    distribution,
    every,
    nonzero,
    normal,
    one_hot,
    positive,
)

import ag
from ag.autograd.tensor import Tensor

SAME = [[s, s] for (s,) in ONE]
BROADCAST = [
    [(3, 5), (5,)], [(5,), (3, 5)], [(3, 1), (1, 5)], [(2, 1, 4, 1), (3, 1, 5)], [(), (3, 5)], [(3, 5), ()],
    [(33, 65), (33, 1)], [(1, 65), (33, 65)], [(1, 1), (1, 1, 3)], [(0, 3), (1, 3)], [(3,), (0, 3)],
]
PAIRS = SAME + BROADCAST


def mismatch(op: str) -> Bad:
    return Bad("two tensors whose shapes do not broadcast", [(2, 3), (4, 5)], getattr(ag, op), ag.ShapeError,
               [f"{op}: ", "(2, 3)", "(4, 5)", "do not broadcast", "must be equal or 1"])


POWER = oracles.each(lambda x, p: math.pow(x, p))
ELEMENTWISE = [
    Row("ag_add", lambda a, b: a + b, every(PAIRS), size=lambda a, b: abs(a) + abs(b), bad=[
        mismatch("ag_add"),
        Bad("an operand is missing", [(2, 3)], lambda x: ag.ag_add(x), TypeError, ["ag_add: missing", "'B'"]),
        Bad("an operand is text", [(2, 3)], lambda x: ag.ag_add(x, np.array(["a"])), ag.DtypeError,
            ["ag_add: data of type <U1", "numbers are required"]),
    ]),
    Row("ag_sub", lambda a, b: a - b, every(PAIRS), size=lambda a, b: abs(a) + abs(b), bad=[mismatch("ag_sub")]),
    Row("ag_mul", lambda a, b: a * b, every(PAIRS), bad=[mismatch("ag_mul")]),
    Row("ag_div", lambda a, b: a / b, every(PAIRS), [normal, nonzero], bad=[mismatch("ag_div")]),
    Row("ag_scale", lambda x, scalar: x * np.float32(scalar), every(ONE, {"scalar": -1.75}, {"scalar": 0.0})),
    Row("ag_pow", POWER,
        every(ONE, {"p": 2}) + every([[(7,)], [(33, 65)]], *({"p": p} for p in (0, 1, 3, 4, -1, -2))), [nonzero], 8),
    # a general power is exp2(p log2(x)), and log2 may be off by 3 ulp
    Row("ag_pow", POWER, every([[(7,)], [(33, 65)]], {"p": 0.5}, {"p": 1.5}, {"p": -0.75}), [positive], 32),
    Row("ag_exp", oracles.each(math.exp), every(ONE), ulps=16),
    Row("ag_log", oracles.each(math.log), every(ONE), [positive], size=lambda x: 1 + abs(np.log(x))),
    Row("ag_clamp", oracles.each(lambda x, lo=-math.inf, hi=math.inf: min(max(x, lo), hi)),
        every(ONE, {"lo": -0.5, "hi": 0.75})
        + every([[(33, 65)]], {"lo": 0.75}, {"hi": -0.5}, {"lo": 0.75, "hi": 0.75}),
        [away_from(-0.5, 0.75)], bad=[
            Bad("clamp to an interval whose ends are swapped", [(2, 3)], lambda x: ag.ag_clamp(x, 2.0, 1.0), ValueError,
                ["ag_clamp: lo is 2.0 and hi is 1.0"]),
        ]),
]

AXES = [
    *every([[(1,)], [(7,)], [(1031,)], [(3, 5)], [(33, 65)], [(2, 3, 5)], [(2, 3, 4, 5)], [(3, 0)], [(0, 3)]]),
    *every([[(3, 5)], [(33, 65)], [(2, 3, 4, 5)]], {"dim": 1}, {"dim": -1}),
]


ACTIVATION = [
    Row("ag_relu", oracles.ACTIVATIONS["relu"], every(ONE), [away_from(0)]),
    Row("ag_sigmoid", oracles.ACTIVATIONS["sigmoid"], every(ONE), ulps=16),
    Row("ag_tanh", oracles.ACTIVATIONS["tanh"], every(ONE), ulps=8),
    Row("ag_softmax", oracles.softmax, AXES, ulps=16, terms=lambda x, dim=0: x.shape[dim], bad=[
        Bad("softmax along an axis that is not there", [(2, 3)], lambda x: ag.ag_softmax(x, 2), ag.ShapeError,
            ["ag_softmax: dim 2 of a tensor with 2 axes", "-2..1"]),
    ]),
]

SUMS = every([[()], [(1,)], [(7,)], [(3, 5)], [(2, 3, 4, 5)], [(33, 65)], [(1031,)], [(70_001,)]]) + every(
    [[(3, 5)], [(33, 65)], [(2, 3, 4, 5)]], {"dim": 0}, {"dim": -1}, {"dim": 1, "keepdim": True}) + [
    case((2, 3, 4, 5), dim=(0, 2)), case((2, 3, 4, 5), dim=(1, -1), keepdim=True), case((3, 5), dim=()),
    case((3, 4099), dim=1), case((5, 140_000), dim=1), case((0, 3), dim=1)]


def sum_terms(x: Array, dim: Any = None, keepdim: bool = False) -> int:
    # sums are made in pieces, so errors grow with the pieces' length: 128 lanes, then a tree (docs of ag_sum)
    return min(x.size // max(1, oracles.summed(x, dim).size), 4096)


def reduction_errors(op: str) -> list[Bad]:
    f = getattr(ag, op)
    return [
        Bad(f"{op} over an axis that is not there", [(2, 3)], lambda x: f(x, dim=2), ag.ShapeError,
            [f"{op}: dim 2 of a tensor with 2 axes", "-2..1"]),
        Bad(f"{op} over the same axis twice", [(2, 3)], lambda x: f(x, dim=(1, -1)), ag.ShapeError,
            [f"{op}: dim (1, -1) names an axis twice"]),
    ]


CHAINS = [[(1, 1), (1, 1)], [(3, 5), (5, 7)], [(65, 33), (33, 130)], [(7, 300), (300, 5)], [(4, 3), (3,)],
          [(4, 3), (3, 2, 5)], [(4, 3), (3, 2, 2, 5)], [(3, 0), (0, 2)], [(0, 3), (3, 2)], [(2, 3), (3, 0)],
          [(2, 70_000), (70_000, 3)], [(2, 3), (3, 40_000)], [(40_000, 3), (3, 2)]]  # sums in pieces


def chain_error(situation: str, a: Shape, b: Shape, *fragments: str) -> Bad:
    return Bad(situation, [a, b], ag.ag_matmul, ag.ShapeError, [f"ag_matmul: A is {a} and B is {b}", *fragments])


LINEAR_ALGEBRA = [
    Row("ag_matmul", lambda a, b: np.einsum("mk,k...->m...", a, b), every(CHAINS), terms=lambda a, b: a.shape[1],
        size=lambda a, b: np.einsum("mk,k...->m...", abs(a), abs(b)), bad=[
            chain_error("matrices that do not chain", (4, 3), (5, 8), "columns of A must equal rows of B"),
            chain_error("the second matrix is transposed", (4, 3), (8, 3), "Did you mean ag_transpose(B)?"),
            chain_error("the first matrix is transposed", (3, 4), (3, 8), "Did you mean ag_transpose(A)?"),
            chain_error("the first factor is no matrix", (3,), (3, 2), "A must have two axes"),
        ]),
    Row("ag_sum", oracles.summed, [*SUMS, *every([[(0,)], [(3, 0)]]), case((3, 0), dim=1)], terms=sum_terms,
        size=lambda x, **p: oracles.summed(abs(x), **p), bad=reduction_errors("ag_sum")),
    Row("ag_mean", oracles.averaged, SUMS, terms=sum_terms, size=lambda x, **p: oracles.averaged(abs(x), **p), bad=[
        *reduction_errors("ag_mean"),
        Bad("the mean of no element", [(3, 0)], lambda x: ag.ag_mean(x, dim=1), ag.ShapeError,
            ["ag_mean: ", "(3, 0)", "at least one element"]),
    ]),
    Row("ag_reshape", lambda x, to: np.array(list(x.flat)).reshape(to), [
        case((1,), to=()), case((6,), to=(2, 3)), case((2, 3, 4), to=(4, -1)), case((33, 65), to=(65, 33)),
        case((0, 3), to=(5, 0)), case((2, 3), to=(-1,))], ulps=0, terms=lambda *_, **__: 0,
        call=lambda x, to: ag.ag_reshape(x, *to) if to else x.reshape(*to), bad=[
            Bad("reshape to another number of elements", [(2, 3)], lambda x: ag.ag_reshape(x, 4, -1), ag.ShapeError,
                ["ag_reshape: (2, 3) holds 6 elements and cannot become (4, -1)"]),
            Bad("reshape with two unknown sizes", [(2, 3)], lambda x: ag.ag_reshape(x, -1, -1), ag.ShapeError,
                ["ag_reshape", "(-1, -1)", "at most one -1"]),
        ]),
    Row("ag_transpose", oracles.transposed, [
        *every([[(1,)], [(7,)], [(3, 5)], [(33, 65)], [(2, 3, 5)], [(2, 3, 4, 5)], [(3, 0)]]),
        case((2, 3, 5), axes=(1, 0, 2)), case((2, 3, 4, 5), axes=(0, 2, -1, 1))], ulps=0, terms=lambda *_, **__: 0,
        call=lambda x, axes=(): ag.ag_transpose(x, *axes), bad=[
            Bad("transpose with an axis named twice", [(2, 3)], lambda x: ag.ag_transpose(x, 0, 0), ag.ShapeError,
                ["ag_transpose: ", "(0, 0)", "twice"]),
            Bad("transpose with an axis left out", [(2, 3)], lambda x: ag.ag_transpose(x, 1), ag.ShapeError,
                ["ag_transpose: axes (1,) of a tensor with 2 axes", "named once"]),
        ]),
    Row("ag_to_device", lambda x: x, every(ONE), ulps=0, terms=lambda *_: 0,
        call=lambda x: ag.ag_to_device(ag.ag_to_device(x, "cpu:1"), x.device), bad=[
            Bad("a device that does not exist", [(2, 3)], lambda x: ag.ag_to_device(x, "tpu:0"), ag.DeviceError,
                ["unknown device 'tpu:0'", "'vulkan:0'"]),
        ]),
]

MATRICES = [[(1, 1)] * 2, [(3, 5)] * 2, [(7,)] * 2, [(33, 65)] * 2, [(3, 4, 5)] * 2, [(300, 3)] * 2]
IDS = [[(1, 1), (1,)], [(3, 5), (5,)], [(3, 5), (5, 1)], [(33, 65), (65,)], [(3, 4, 5), (4, 5)], [(3,), ()],
       [(300, 3), (3,)]]


WEIGHTED = [[(3, 4, 5), (3, 4, 5), (5,)]]  # the last: the weights of samples


def weighted_cross_entropy(x: Any, t: Any, of_samples: Any, smoothing: float) -> Tensor:
    return ag.ag_softmax_cross_entropy_loss(x, t, weight=oracles.rising(x.shape[0]), label_smoothing=smoothing,
                                            sample_weight=of_samples)


def all_terms(x: Array, _target: Array) -> int:
    return x.size


def softmax_cross_entropy_size(x: Array, t: Array) -> Array:
    return np.asarray((1 + abs(x).max() + np.log(len(x))) * (t.sum() / t[0].size if t.shape == x.shape else 1))


def unequal(op: str) -> Bad:
    return Bad(f"{op} of prediction and target of different shapes", [(3, 5), (5, 3)], getattr(ag, op), ag.ShapeError,
               [f"{op}: pred is (3, 5) and target is (5, 3)", "must be equal"])


def label_error(situation: str, labels: Any, *fragments: str) -> Bad:
    return Bad(situation, [(3, 2)], lambda x: ag.ag_softmax_cross_entropy_loss(x, labels), IndexError,
               ["ag_softmax_cross_entropy_loss: the label", "outside 0..2", *fragments])


SOFTMAX_CE = {
    "oracle": oracles.softmax_cross_entropy, "ulps": 32, "terms": all_terms, "size": softmax_cross_entropy_size,
}
LOSSES = [
    Row("ag_mse_loss", lambda p, t: sum((a - b) ** 2 for a, b in zip(p.flat, t.flat, strict=True)) / p.size,
        every([*MATRICES, [(), ()]]), terms=all_terms, bad=[
            unequal("ag_mse_loss"),
            Bad("the mean squared error of no element", [(3, 0), (3, 0)], ag.ag_mse_loss, ag.ShapeError,
                ["ag_mse_loss: pred is (3, 0)", "at least one element"]),
        ]),
    Row("ag_cross_entropy_loss", lambda p, t: -(t * np.log(p)).sum() / (p.size / len(p)), every(MATRICES),
        [positive, distribution], 8, all_terms, lambda p, t: (t * (1 - np.log(p))).sum() / (p.size / len(p)), bad=[
            unequal("ag_cross_entropy_loss"),
            Bad("the cross-entropy of no sample", [(3, 0), (3, 0)], ag.ag_cross_entropy_loss, ag.ShapeError,
                ["ag_cross_entropy_loss: pred is (3, 0)", "at least one sample"]),
        ]),
    Row("ag_softmax_cross_entropy_loss", cases=every(MATRICES), draw=[normal, distribution], **SOFTMAX_CE, bad=[
        Bad("a target that is neither a distribution nor class numbers", [(3, 5), (4, 5)],
            ag.ag_softmax_cross_entropy_loss, ag.ShapeError,
            ["ag_softmax_cross_entropy_loss: logits are (3, 5) and target is (4, 5)", "(5,) (class ids)"]),
        Bad("the softmax cross-entropy of no sample", [(3, 0), (3, 0)], ag.ag_softmax_cross_entropy_loss,
            ag.ShapeError, ["ag_softmax_cross_entropy_loss: logits are (3, 0)", "at least one of each"]),
        label_error("a label beyond the last class", [0, 3], "label 3"),
        label_error("a negative label", np.array([-1, 0]), "label -1"),
        label_error("a label that is no whole number", [0.0, 1.5], "label 1.5"),
    ]),
    *(Row("ag_softmax_cross_entropy_loss", cases=every(shapes), draw=[normal, draw], label=f"({label})", **SOFTMAX_CE)
      for label, draw, shapes in [("unnormalised", positive, MATRICES), ("one_hot", one_hot, MATRICES),
                                  ("ids", class_ids, IDS)]),
    *(Row("ag_softmax_cross_entropy_loss", oracles.weighted_cross_entropy, every(shapes, {"smoothing": 0.2}),
          [normal, draw, positive], 32, lambda x, *_, **__: x.size,
          lambda x, t, *_, **__: 4 * softmax_cross_entropy_size(x, t), weighted_cross_entropy,
          label=f"({label}, weighted and smoothed)")
      for label, draw, shapes in [("soft", positive, WEIGHTED), ("ids", class_ids, [[(3, 4, 5), (4, 5), (5,)]])]),
    Row("ag_mse_loss", lambda p, t, w: ((p - t) ** 2 * w).mean() / w.mean(), every(WEIGHTED),
        [normal, normal, positive], terms=lambda p, *_: p.size, label="(weighted)",
        call=lambda p, t, w: ag.ag_mse_loss(p, t, sample_weight=w)),
    Row("ag_bce_with_logits_loss", oracles.binary_cross_entropy, every([[(7,)] * 2, [(3, 5)] * 2]),
        [normal, distribution], 32, all_terms,
        lambda x, t: np.asarray(1 + abs(x).max()), bad=[
            Bad("binary cross-entropy with targets of another shape", [(3, 5), (5, 3)], ag.ag_bce_with_logits_loss,
                ag.ShapeError, ["ag_bce_with_logits_loss: logits are (3, 5) and target is (5, 3)", "must be equal"]),
            Bad("binary cross-entropy of no element", [(3, 0), (3, 0)], ag.ag_bce_with_logits_loss, ag.ShapeError,
                ["ag_bce_with_logits_loss: logits are (3, 0)", "at least one element"]),
        ]),
    Row("ag_bce_with_logits_loss", oracles.binary_cross_entropy, every(WEIGHTED), [normal, distribution, positive],
        32, lambda x, *_: x.size, lambda x, *_: np.asarray(3 * (1 + abs(x).max())), lambda x, t, w:
        ag.ag_bce_with_logits_loss(x, t, pos_weight=oracles.rising(x.shape[0]), sample_weight=w), label="(weighted)"),
]

new_linear = copies(ag.ag_linear)


def linear(x: Tensor, W: Tensor, b: Tensor, activation: str | None = None) -> Tensor:
    layer = new_linear(W.shape[1], W.shape[0], activation)
    layer.W, layer.b = W, b
    return layer(x)


def sequential(x: Tensor, W1: Tensor, b1: Tensor, W2: Tensor) -> Tensor:
    layers = new_linear(W1.shape[1], W1.shape[0], "tanh"), new_linear(W2.shape[1], W2.shape[0], bias=False)
    model = ag.ag_sequential(*layers)
    model[0].W, model[0].b, model[1].W = W1, b1, W2
    return model(x)


def dropout(x: Tensor, rate: float, train: bool = True) -> Tensor:
    return (ag.ag_train if train else ag.ag_eval)(ag.ag_dropout(rate))(x)


LINEAR_SHAPES: list[list[Shape]] = [[(1, 1), (1, 1), (1, 1)], [(4, 5), (3, 4), (3, 1)], [(4, 2, 3), (3, 4), (3, 1)]]
LAYERS = [
    Row("ag_linear", oracles.linear, every(LINEAR_SHAPES, *({"activation": a} for a in oracles.ACTIVATIONS)) + every(
        [[(33, 65), (70, 33), (70, 1)]]), ulps=16, terms=lambda x, W, b, **_: W.shape[1] + len(W), call=linear,
        size=lambda x, W, b, **_: 1 + oracles.linear(abs(x), abs(W), abs(b)), bad=[
            Bad("a layer given another number of features", [(5, 2)], lambda x: ag.ag_linear(4, 3)(x), ag.ShapeError,
                ["ag_linear: x is (5, 2); (4, batch) is required"]),
            Bad("a layer without outputs", [], lambda: ag.ag_linear(4, 0), ValueError,
                ["ag_linear: ", "out_features is 0"]),
            Bad("an activation that does not exist", [], lambda: ag.ag_linear(4, 3, "rleu"), ValueError,
                ["ag_linear: unknown activation 'rleu'", "relu, sigmoid, tanh, softmax"]),
        ]),
    Row("ag_sequential", lambda x, W1, b1, W2: W2 @ np.tanh(W1 @ x + b1), every(
        [[(4, 5), (3, 4), (3, 1), (2, 3)], [(4, 130), (65, 4), (65, 1), (3, 65)]]), call=sequential,
        terms=lambda x, W1, b1, W2: len(x) + len(W1),
        size=lambda x, W1, b1, W2: abs(W2) @ (1 + abs(W1) @ abs(x) + abs(b1)), bad=[
            Bad("a sequence with an item that is no layer", [], lambda: ag.ag_sequential(ag.ag_linear(2, 2), 3),
                TypeError, ["ag_sequential: item 2 is a int", "must be a layer"]),
        ]),
    Row("ag_dropout", oracles.dropout, every([[(1,)], [(7,)], [(3, 5)], [(33, 65)]], {"rate": 0.3}, {"rate": 0.9}) + [
        case((3, 5), rate=0.3, train=False), case((3, 5), rate=0.0), case((3, 0), rate=0.5)], call=dropout, bad=[
            Bad("a dropout rate of 1", [], lambda: ag.ag_dropout(1.0), ValueError,
                ["ag_dropout: rate is 1.0", "[0, 1)"]),
        ]),
]

ROWS = [
    *ELEMENTWISE, *ACTIVATION, *LINEAR_ALGEBRA, *LOSSES, *LAYERS,
    *cases_functions.FUNCTIONS, *cases_functions.STATISTICS, *cases_functions.MASKS,
    *cases_functions.COMPOSED, *cases_functions.SHAPES, *cases_functions.DRAWN,
    *cases_images.ROWS,
    *cases_losses.ROWS,
    *cases_pointwise.ROWS,
    *cases_products.ROWS,
    *cases_selection.ROWS,
    *cases_rotary.ROWS,
    *cases_attention.ROWS,
    *cases_sequences.ROWS,
    *cases_windows.ROWS,
]
CASES = [Case(row, *shapes_and_params) for row in ROWS for shapes_and_params in row.cases]
