"""Rows of the case table: normalisation, embedding and attention, and the layers made of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from table import oracles_sequences as oracles
from table.rows import Array, Bad, Row, Shape, case, copies, every, normal, positive, tensor

import ag
from ag.autograd.tensor import Tensor
from ag.engine.backend import Backend


def normed(*x: int) -> list[Shape]:
    """Shapes of x, gamma and beta."""
    return [x, (x[0], 1), (x[0], 1)]


VECTORS = [normed(4, 3), normed(1, 5), normed(33, 65), normed(5, 2, 3), normed(3, 4, 2, 3), normed(300, 3)]


def layer_norm_size(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Array:
    rate = 1 / np.sqrt(x.var(0) + eps)
    column = (-1, *[1] * (x.ndim - 1))
    return abs(gamma.reshape(column)) * (abs(x) + abs(x).mean(0)) * rate + abs(beta.reshape(column))


def rms_norm_size(x: Array, gamma: Array, eps: float = 1e-6) -> Array:
    return oracles.rms_norm(abs(x), abs(gamma), eps)


def batch_norm_size(x: Array, gamma: Array, beta: Array, eps: float = 1e-5, train: bool = True) -> Array:
    rows = x.reshape(len(x), -1)
    rate = 1 / np.sqrt(rows.var(1, keepdims=True) + eps)
    size = abs(gamma.reshape(-1, 1)) * (abs(rows) + abs(rows).mean(1, keepdims=True)) * rate + abs(beta.reshape(-1, 1))
    return np.asarray(size.reshape(x.shape))


def batch_norm_given_size(x: Array, gamma: Array, beta: Array, mean: Array, variance: Array) -> Array:
    return oracles.batch_norm_given(abs(x), abs(gamma), abs(beta), -abs(mean), variance)


def features(x: Array, *_others: Array, **_params: Any) -> int:
    return len(x)


def samples(x: Array, *_others: Array, **_params: Any) -> int:
    return x.size // len(x)


def norm_errors(op: str) -> list[Bad]:
    f = getattr(ag, op)
    return [
        Bad(f"{op} of a number", [(), (1, 1), (1, 1)], f, ag.ShapeError, [f"{op}: x is ()", "at least one feature"]),
        Bad(f"{op} with a gamma for other features", [(3, 2), (2, 1), (3, 1)], f, ag.ShapeError,
            [f"{op}: x is (3, 2) and gamma is (2, 1)", "must be (3, 1)"]),
        Bad(f"{op} with a beta that is a row", [(3, 2), (3, 1), (1, 3)], f, ag.ShapeError,
            [f"{op}: x is (3, 2) and beta is (1, 3)", "must be (3, 1)"]),
        Bad(f"{op} with an eps of 0", normed(3, 2), lambda x, g, b: f(x, g, b, 0.0), ValueError,
            [f"{op}: eps is 0.0", "positive"]),
    ]


@copies
def new_layer_norm(num_features: int, eps: float) -> Any:
    return ag.ag_layer_norm(num_features, eps)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    layer = new_layer_norm(gamma.shape[0], eps)
    layer.gamma, layer.beta = gamma, beta
    out: Tensor = layer(x)
    return out


@copies
def new_rms_norm(num_features: int, eps: float) -> Any:
    return ag.ag_rms_norm(num_features, eps)


def rms_norm(x: Tensor, gamma: Tensor, eps: float = 1e-6) -> Tensor:
    layer = new_rms_norm(gamma.shape[0], eps)
    layer.gamma = gamma
    out: Tensor = layer(x)
    return out


@copies
def new_batch_norm(num_features: int, eps: float, backend: Backend, dtype: str) -> Any:
    layer = ag.ag_batch_norm(num_features, eps)
    layer.running_mean = tensor(np.zeros((num_features, 1)), backend, dtype)
    layer.running_var = tensor(np.ones((num_features, 1)), backend, dtype)
    return layer


def batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    layer = new_batch_norm(gamma.shape[0], eps, x.buffer.backend, x.dtype)
    layer.gamma, layer.beta = gamma, beta
    out: Tensor = layer(x)
    return out


SAMPLES = [normed(4, 3), normed(33, 65), normed(5, 2, 3), normed(3, 4, 2, 3), normed(3, 300)]
LAYER_NORM = {"oracle": oracles.layer_norm, "ulps": 16, "terms": features, "size": layer_norm_size}
RMS_NORM = {"oracle": oracles.rms_norm, "ulps": 8, "terms": features, "size": rms_norm_size}
BATCH_NORM = {"oracle": oracles.batch_norm, "ulps": 16, "terms": samples, "size": batch_norm_size}
NORM = [
    Row("ag_layer_norm_op", cases=[*every(VECTORS), case(*normed(4, 3), eps=0.125), case(*normed(3, 0)),
                                   case((5, 7), (5,), (5,))],
        bad=norm_errors("ag_layer_norm_op"), **LAYER_NORM),
    Row("ag_rms_norm_op", cases=[
        # of one feature, next to nothing is left of the gradient where eps is small
        *(case(x, gamma, **({"eps": 0.5} if x[0] == 1 else {})) for x, gamma, _ in VECTORS), case((3, 0), (3, 1)),
        case((1, 1), (1, 1), eps=2.0), case((4, 3), (4, 1), eps=0.125), case((5, 7), (5,))], **RMS_NORM, bad=[
            Bad("RMS norm of a number", [(), (1, 1)], ag.ag_rms_norm_op, ag.ShapeError,
                ["ag_rms_norm_op: x is ()", "at least one feature"]),
            Bad("RMS norm of no feature", [(0, 3), (0, 1)], ag.ag_rms_norm_op, ag.ShapeError,
                ["ag_rms_norm_op: x is (0, 3)", "at least one feature"]),
            Bad("RMS norm with a gamma for other features", [(3, 2), (2, 1)], ag.ag_rms_norm_op, ag.ShapeError,
                ["ag_rms_norm_op: x is (3, 2) and gamma is (2, 1)", "must be (3, 1)"]),
            Bad("RMS norm with a gamma that is a row", [(3, 2), (1, 3)], ag.ag_rms_norm_op, ag.ShapeError,
                ["ag_rms_norm_op: x is (3, 2) and gamma is (1, 3)", "must be (3, 1)"]),
            Bad("RMS norm with an eps of 0", [(3, 2), (3, 1)], lambda x, g: ag.ag_rms_norm_op(x, g, 0.0), ValueError,
                ["ag_rms_norm_op: eps is 0.0", "positive"]),
        ]),
    Row("ag_batch_norm_op", cases=[*every(SAMPLES), case(*normed(4, 3), eps=0.125), case(*normed(2, 1)),
                                   case((5, 7), (5,), (5,))], **BATCH_NORM, bad=[
            *norm_errors("ag_batch_norm_op"),
            Bad("batch norm of no sample", normed(3, 0), ag.ag_batch_norm_op, ag.ShapeError,
                ["ag_batch_norm_op: x is (3, 0)", "at least one value per feature"]),
            Bad("batch norm with a mean and no variance", normed(3, 2),
                lambda x, g, b: ag.ag_batch_norm_op(x, g, b, mean=g), ValueError,
                ["ag_batch_norm_op: variance is missing", "both"]),
        ]),
    Row("ag_batch_norm_op", oracles.batch_norm_given,
        every([[*normed(*x), (x[0], 1), (x[0], 1)] for x in [(4, 3), (33, 65), (3, 4, 2, 3), (3, 1), (3, 0)]]),
        [normal, normal, normal, normal, positive], 16, label="(given)", size=batch_norm_given_size,
        call=lambda x, g, b, m, v: ag.ag_batch_norm_op(x, g, b, mean=m, variance=v), bad=[
            Bad("batch norm with a variance of other features", [*normed(3, 2), (3, 1), (2, 1)],
                lambda x, g, b, m, v: ag.ag_batch_norm_op(x, g, b, mean=m, variance=v), ag.ShapeError,
                ["ag_batch_norm_op: x is (3, 2) and variance is (2, 1)"]),
            Bad("batch norm by statistics with an eps of -1", [*normed(3, 2), (3, 1), (3, 1)],
                lambda x, g, b, m, v: ag.ag_batch_norm_op(x, g, b, -1.0, m, v), ValueError,
                ["ag_batch_norm_op: eps is -1.0", "positive"]),
        ]),
    Row("ag_layer_norm", cases=[case(*normed(4, 3)), case(*normed(5, 2, 3), eps=0.125)], call=layer_norm,
        **LAYER_NORM, bad=[
            Bad("a layer norm of no feature", [], lambda: ag.ag_layer_norm(0), ValueError,
                ["ag_layer_norm: num_features is 0", "at least 1"]),
        ]),
    Row("ag_rms_norm", cases=[case((4, 3), (4, 1)), case((5, 2, 3), (5, 1), eps=0.125)], call=rms_norm,
        **RMS_NORM, bad=[
            Bad("an RMS norm of no feature", [], lambda: ag.ag_rms_norm(0), ValueError,
                ["ag_rms_norm: num_features is 0", "at least 1"]),
            Bad("an RMS norm with an eps of 0", [], lambda: ag.ag_rms_norm(3, eps=0.0), ValueError,
                ["ag_rms_norm: ", "eps is 0.0"]),
        ]),
    Row("ag_batch_norm", cases=[case(*normed(4, 3)), case(*normed(3, 4, 2, 3), eps=0.125)], call=batch_norm,
        **BATCH_NORM, bad=[
            Bad("a batch norm with a momentum of 2", [], lambda: ag.ag_batch_norm(3, momentum=2.0), ValueError,
                ["ag_batch_norm: momentum is 2.0", "[0, 1]"]),
            Bad("a batch norm with an eps of 0", [], lambda: ag.ag_batch_norm(3, eps=0.0), ValueError,
                ["ag_batch_norm: ", "eps is 0.0"]),
            Bad("a batch norm layer given one sample in train mode", [(3, 1)], lambda x: ag.ag_batch_norm(3)(x),
                ag.ShapeError, ["ag_batch_norm: x is (3, 1)", "at least two values per feature in train mode"]),
        ]),
]


def word_ids(rng: np.random.Generator, shape: Shape, before: Sequence[Array]) -> Array:
    """Integers that count along the last axis of the first operand."""
    return np.asarray(rng.integers(0, before[0].shape[1], shape))


@copies
def new_embedding(vocab: int, dim: int) -> Any:
    return ag.ag_embedding(vocab, dim)


def embedding(weight: Tensor, ids: Any) -> Tensor:
    layer = new_embedding(weight.shape[1], weight.shape[0])
    layer.weight = weight
    out: Tensor = layer(ids)
    return out


def id_error(situation: str, ids: Any, *fragments: str) -> Bad:
    return Bad(situation, [(2, 3)], lambda w: ag.ag_embedding_lookup(w, ids), IndexError,
               ["ag_embedding_lookup: the id", "outside 0..2", *fragments])


# the longest needs two launches for its gradient
LOOKUPS = [[(1, 1), (1,)], [(3, 5), (4,)], [(3, 5), ()], [(4, 7), (2, 3)], [(33, 65), (130,)], [(2, 3), (2, 3, 4)],
           [(3, 5), (0,)], [(2, 3), (40_000,)]]
EMBEDDING = [
    Row("ag_embedding_lookup", oracles.embedding, every(LOOKUPS), [normal, word_ids], ulps=0, bad=[
        id_error("a word id beyond the vocabulary", [0, 3], "id 3"),
        id_error("a word id of -1", np.array([[1, -1]]), "id -1"),
        id_error("a word id that is no whole number", [0.5], "id 0.5"),
        Bad("an embedding whose weight is no matrix", [(3,)], lambda w: ag.ag_embedding_lookup(w, [0]), ag.ShapeError,
            ["ag_embedding_lookup: weight is (3,)", "(dim, vocab)"]),
    ]),
    Row("ag_embedding", oracles.embedding, every([[(3, 5), (4,)], [(4, 7), (2, 3)]]), [normal, word_ids], ulps=0,
        call=embedding, bad=[
            Bad("an embedding without words", [], lambda: ag.ag_embedding(0, 3), ValueError,
                ["ag_embedding: vocab_size is 0"]),
        ]),
]

SEQUENCES = [[(1, 1), (1, 1), (1, 1)], [(4, 3), (4, 3), (4, 3)], [(4, 3), (4, 5), (2, 5)], [(4, 5), (4, 3), (2, 3)],
             [(4, 3, 2), (4, 3, 2), (4, 3, 2)], [(3, 5, 2), (3, 4, 2), (7, 4, 2)], [(2, 3, 1), (2, 4, 1), (3, 4, 1)]]
LONG = [[(5, 70), (5, 130), (3, 130)], [(66, 3, 2), (66, 17, 2), (65, 17, 2)]]
WIDE = [[(130, 3, 2), (130, 4, 2), (2, 4, 2)], [(2, 3), (2, 4), (130, 4)]]  # more than attention's kernels take
EMPTY = [[(4, 0), (4, 3), (2, 3)], [(4, 3, 0), (4, 5, 0), (2, 5, 0)], [(4, 3), (4, 5), (0, 5)]]


HEADS = [[(4, 3), (4, 5), (6, 5)], [(4, 5, 2), (4, 3, 2), (2, 3, 2)], [(140, 3, 17), (140, 4, 17), (130, 4, 17)]]


def attention_terms(q: Array, k: Array, _v: Array, **_params: Any) -> int:
    return len(q) + k.shape[1]


def attention_size(q: Array, k: Array, v: Array, causal: bool = False, dropout: float = 0.0, heads: int = 1) -> Any:
    if not v.size:
        return np.zeros((len(v), *q.shape[1:]))
    score = np.linalg.norm(q, axis=0).max(initial=0) * np.linalg.norm(k, axis=0).max(initial=0)
    return (1 + score) * oracles.attention(q, k, abs(v), causal, 0.0, heads) / (1 - dropout)


def attention_error(situation: str, shapes: Sequence[Shape], fragment: str, **params: Any) -> Bad:
    given = "ag_attention: q is {}, k is {} and v is {}".format(*shapes)
    return Bad(situation, shapes, partial(ag.ag_attention, **params), ag.ShapeError, [given, fragment])


def thin(rng: np.random.Generator, shape: Shape, _before: Sequence[Array]) -> Array:
    """Normal numbers that keep a vector's length in a product."""
    return rng.standard_normal(shape) / np.sqrt(shape[1])


@copies
def new_attention(d_model: int, heads: int, dropout: float) -> Any:
    return ag.ag_multihead_attention(d_model, heads, dropout)


def attention(q: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, W_o: Tensor, b_o: Tensor, kv: Tensor | None = None,
              heads: int = 2, causal: bool = False, dropout: float = 0.0) -> Tensor:
    layer = new_attention(q.shape[0], heads, dropout)
    layer.W_q, layer.W_k, layer.W_v, layer.W_o, layer.b_o = W_q, W_k, W_v, W_o, b_o
    out: Tensor = layer(q, kv, causal_mask=causal)
    return out


def projected(*q: int) -> list[Shape]:
    """Shapes of q, the projections and the bias."""
    return [q, *[(q[0], q[0])] * 4, (q[0], 1)]


def multihead_size(q: Array, *others: Array, **params: Any) -> Array:
    length = np.sqrt(len(q))  # of a row of a projection, and more than that of a score
    return np.asarray(abs(oracles.multihead(q, *others, **params)) + 4 * length * (1 + abs(q).max()) ** 2)


MULTIHEAD = {"oracle": oracles.multihead, "draw": [normal, thin, thin, thin, thin, thin, normal], "ulps": 32,
             "terms": lambda q, *_, **__: 2 * len(q) + q.shape[1], "size": multihead_size, "call": attention}
ATTENTION = [
    Row("ag_attention", oracles.attention, [
        *every([*SEQUENCES, *LONG, *WIDE], {}, {"causal": True}), *every(EMPTY),
        *every(HEADS, {"heads": 2, "causal": True}, {"heads": 2, "dropout": 0.3}),
        *every([[(4, 3), (4, 5), (2, 5)], [(3, 5, 2), (3, 4, 2), (7, 4, 2)], WIDE[0]], {"dropout": 0.3},
               {"causal": True, "dropout": 0.6})],
        ulps=32, terms=attention_terms, size=attention_size, bad=[
            attention_error("attention of queries and keys of other lengths", [(4, 3), (5, 3), (4, 3)], "as many feat"),
            attention_error("attention with fewer values than keys", [(4, 3), (4, 3), (4, 2)], "as many times"),
            attention_error("attention of other batches", [(4, 3, 2), (4, 3, 1), (4, 3, 1)], "the same batch"),
            attention_error("attention of vectors", [(4,), (4,), (4,)], "(features, time, batch)"),
            attention_error("attention to no key", [(4, 3), (4, 0), (4, 0)], "at least one feature and one key"),
            Bad("attention with a dropout of 1", [(4, 3)] * 3, lambda q, k, v: ag.ag_attention(q, k, v, dropout=1.0),
                ValueError, ["ag_attention: dropout is 1.0", "[0, 1)"]),
            attention_error("attention of heads that do not divide features", [(4, 3)] * 3, "into 3 heads", heads=3),
            Bad("attention of no head", [(4, 3)] * 3, lambda q, k, v: ag.ag_attention(q, k, v, heads=0), ValueError,
                ["ag_attention: heads is 0", "at least 1"]),
        ]),
    Row("ag_multihead_attention", cases=[
        case(*projected(4, 3)), case(*projected(6, 3, 2), heads=3, causal=True), case(*projected(4, 5, 1), heads=1),
        case(*projected(4, 3, 2), dropout=0.3)], **MULTIHEAD, bad=[
            Bad("heads that do not divide the features", [], lambda: ag.ag_multihead_attention(4, 3), ValueError,
                ["ag_multihead_attention: d_model is 4 and n_heads is 3", "multiple"]),
            Bad("a multi-head attention with a dropout of 1", [], lambda: ag.ag_multihead_attention(4, 2, 1.0),
                ValueError, ["ag_multihead_attention: dropout is 1.0", "[0, 1)"]),
            Bad("a multi-head attention given another number of features", [(4, 3), (5, 3)],
                lambda q, k: ag.ag_multihead_attention(4, 2)(q, k), ag.ShapeError,
                ["ag_multihead_attention: k is (5, 3); (4, time)"]),
        ]),
    Row("ag_multihead_attention", cases=[case(*projected(4, 3), (4, 5)), case(*projected(6, 2, 3), (6, 4, 3))],
        label="(cross)", **MULTIHEAD),
]

ROWS: list[Row] = [*NORM, *EMBEDDING, *ATTENTION]
