"""Rows of the case table: elements by ids and masks.  The oracles go from element to element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from table.rows import Array, Bad, Row, case

import ag
from ag import ops


def drawn(shape: tuple[int, ...], n: int) -> list[Any]:
    """Ids of `n` places, also counted from the end."""
    return np.random.default_rng(5).integers(-n, n, shape).tolist()


def along(meet: Callable[[Any, Any], Any], start: Callable[[Array], Array] = np.copy) -> Callable[..., Array]:
    """An oracle of elements that meet those of a result one after the other."""
    def oracle(x: Array, src: Any, dim: int, index: Array, **_: Any) -> Array:
        out, index = start(x), np.asarray(index)
        for place in np.ndindex(index.shape):
            to = (*place[:dim], index[place], *place[dim + 1 :])
            out[to] = meet(out[to], src[place] if np.ndim(src) else src)
        return out

    return oracle


def row(name: str, oracle: Callable[..., Any], *cases: Any, ulps: float = 2, operands: int = 2, bad: Any = ()) -> Row:
    """A row of an op whose second operand, if there are two, comes after the ids."""
    def call(x: Any, *args: Any, dim: int = 0, index: Any, **params: Any) -> Any:
        return getattr(ops, name)(x, dim, index, *args, **params)

    return Row(name, oracle, cases, ulps=ulps, call=call, bad=bad, terms=lambda *_, index, **__: np.size(index),
               size=lambda *xs, **_: 1 + sum(np.abs(x).max(initial=0) for x in xs) ** 2)


def reduced(x: Array, src: Array, dim: int, index: Any, reduce: str, include_self: bool = True) -> Array:
    """An oracle of `scatter_reduce`, from a list of all that meet at a place."""
    met: dict[tuple[int, ...], list[Any]] = {}
    for place in np.ndindex(np.shape(index)):
        n = x.shape[dim]
        met.setdefault((*place[:dim], np.asarray(index)[place] % n, *place[dim + 1 :]), []).append(src[place])
    out = x.copy()
    for to, values in met.items():
        function = {"sum": np.sum, "mean": np.mean, "prod": np.prod, "amax": np.max, "amin": np.min}[reduce]
        out[to] = function([x[to], *values] if include_self else values)
    return out


def put_first(x: Array, source: Array, dim: int, index: Array) -> Array:
    out = x.copy()
    for k, i in enumerate(index):
        out[(slice(None),) * dim + (i,)] = source[(slice(None),) * dim + (k,)]
    return out


def added(x: Array, source: Array, dim: int, index: Array, alpha: float = 1.0) -> Array:
    out = x.copy()
    for k, i in enumerate(index):
        out[(slice(None),) * dim + (i,)] += alpha * source[(slice(None),) * dim + (k,)]
    return out


def put_by_key(x: Array, values: Array, key: Any, accumulate: bool) -> Array:
    out = x.copy()
    if accumulate:
        np.add.at(out, key, values)
    else:
        out[tuple(key) if isinstance(key, tuple) else key] = values
    return out


FEW = drawn((7,), 4)
KEYS: list[Any] = [  # as numpy reads them; PyTorch reads them alike
    [0, 2], np.s_[:, [4, -1, 2]], np.s_[[0, 1], [2, 3]], np.s_[[0, 1], :, [2, 3]], np.s_[..., [1, 1]], np.s_[1, [0, 2]],
    np.s_[[0, 2], 1], ([[0, 1], [2, 3]],), np.s_[None, [1, 2]], np.s_[[0, 1], [[2], [3]]],
    np.s_[1:3, [0, 1], [2, 2]], np.s_[[0, 1], 2, [3, 4]], np.s_[:, [0], ::2], ([],), np.s_[:, None, [1, 2], :]]
MASKS: list[Any] = [
    np.arange(20).reshape(4, 5) % 3 > 0, np.s_[:, np.arange(30).reshape(5, 6) % 4 == 1], np.zeros((4, 5, 6), bool)]


def index_error(situation: str, call: Callable[..., Any], *fragments: str) -> Bad:
    return Bad(situation, [(4, 5, 6)], call, IndexError, ["ag_slice: ", *fragments])


MASK = np.arange(15).reshape(3, 5) % 4 != 1
INDEX = drawn((2, 6), 5)
ROWS = [
    Row("take", lambda x, index, dim=None: np.take(x, index, dim), [
        case((3, 5), index=drawn((4,), 15)), case((4, 5), index=FEW, dim=0),
        case((3, 5), index=drawn((2, 3), 5), dim=-1),
        case((2, 4, 3), index=FEW, dim=1), case((33, 65), index=drawn((130,), 65), dim=1),
        case((4, 5), index=[], dim=0)], ulps=0, call=ops.take),
    row("index_select", lambda x, dim, index: np.take(x, index, dim), case((4, 5), dim=0, index=FEW),
        case((2, 4, 3), dim=-2, index=FEW), case((65, 33), dim=0, index=drawn((130,), 65)),
        case((2, 3), dim=0, index=drawn((40_000,), 2)), ulps=0, bad=[
            Bad("an id beyond an axis", [(3, 4)], lambda x: ops.index_select(x, 1, [0, 4]), IndexError,
                ["index_select: index 4 along axis 1 of size 4", "-4..3"]),
            Bad("ids that are truth values", [(3, 4)], lambda x: ops.index_select(x, 1, [True, False]), ag.DtypeError,
                ["index_select: ids are of type bool"])]),
    row("gather", lambda x, dim, index: np.take_along_axis(x[: len(index)] if dim else x, np.asarray(index), dim),
        case((5, 6), dim=0, index=drawn((1, 6), 5)), case((3, 5), dim=1, index=INDEX),
        case((3, 4, 5), dim=1, index=drawn((3, 7, 5), 4)), case((33, 65), dim=1, index=drawn((33, 130), 65)),
        ulps=0, bad=[
            Bad("ids of other axes", [(3, 4)], lambda x: ops.gather(x, 1, [0]), ag.ShapeError,
                ["gather: index is (1,) and x is (3, 4)"])]),
    Row("take_along_dim", lambda x, indices, dim: np.take_along_axis(x, np.asarray(indices), dim), [
        case((5, 6), indices=drawn((1, 6), 5), dim=0), case((1, 6), indices=drawn((4, 3), 6), dim=1),
        case((3, 4, 5), indices=drawn((1, 2, 5), 4), dim=1)], ulps=0, call=ops.take_along_dim),
    row("scatter_add", along(lambda a, b: a + b), case((4, 5), (2, 6), dim=1, index=INDEX),
        case((5, 6), (2, 6), dim=0, index=INDEX), case((2, 3, 4), (2, 9, 4), dim=1, index=drawn((2, 9, 4), 3)),
        case((2, 5), (2, 40_000), dim=1, index=drawn((2, 40_000), 5)), bad=[
            Bad("fewer elements than ids", [(3, 4)], lambda x: ops.scatter_add(x, 1, [[0, 1]], [[1.0]]), ag.ShapeError,
                ["scatter_add: index is (1, 2) and src is (1, 1)"])]),
    row("scatter", along(lambda a, b: b), case((4, 5), (2, 6), dim=1, index=INDEX),
        case((2, 3, 4), (2, 2, 4), dim=1, index=drawn((2, 2, 4), 3)), ulps=0, bad=[
            Bad("an unknown way to meet", [(3, 4)], lambda x: ops.scatter(x, 1, [[0]], 1.0, "max"), ValueError,
                ["scatter: reduce is 'max'", "scatter_reduce"])]),
    row("scatter_reduce", reduced, *(
        case((4, 5), (2, 6), dim=1, index=INDEX, reduce=reduce, include_self=own)
        for reduce in ("sum", "mean", "prod", "amax", "amin") for own in (True, False)), ulps=8, bad=[
            Bad("an unknown reduction", [(3, 4)], lambda x: ops.scatter_reduce(x, 1, [[0]], [[1.0]], "max"), ValueError,
                ["scatter_reduce: reduce is 'max'", "'amax'"])]),
    row("index_add", added, case((4, 5), (7, 5), dim=0, index=FEW), case((2, 4, 3), (2, 7, 3), dim=1, index=FEW),
        case((4, 5), (7, 5), dim=0, index=FEW, alpha=-2.0), bad=[
            Bad("a source of another size", [(3, 4)], lambda x: ops.index_add(x, 1, [0], [[1.0]]), ag.ShapeError,
                ["index_add: source is (1, 1); (3, 1) is required"])]),
    row("index_copy", put_first, case((4, 5), (7, 5), dim=0, index=FEW),
        case((2, 4, 3), (2, 2, 3), dim=1, index=[3, -2]), ulps=0),
    row("index_fill", lambda x, dim, index, value: put_first(x, np.full((7, 5), value), dim, index),
        case((4, 5), dim=0, index=FEW, value=1.5), ulps=0),
    Row("masked_select", lambda x, mask: x[mask], [case((3, 5), mask=MASK)], ulps=0, call=ops.masked_select),
    Row("masked_scatter", lambda x, source, mask: np.place(out := x.copy(), mask, source.ravel()) or out,
        [case((3, 5), (3, 4), mask=MASK)], ulps=0,
        call=lambda x, source, mask: ops.masked_scatter(x, mask, source), bad=[
            Bad("a source with too little", [(3, 5)], lambda x: ops.masked_scatter(x, MASK, [[1.0]]), ag.ShapeError,
                ["masked_scatter: source has 1 elements", "11 places"])]),
    Row("index_put", lambda x, values, key, accumulate=False: put_by_key(x, values, key, accumulate), [
        case((4, 5, 6), (1, 6), key=([0, 2], [1, 1])), case((4, 5, 6), (), key=(slice(1, 3), [4, -5])),
        case((4, 5, 6), (3, 5, 6), key=([1, 2, 1],), accumulate=True)],
        size=lambda x, *_, **__: 4 * np.abs(x).max(), terms=lambda *_, **__: 4,
        call=lambda x, values, key, accumulate=False: ops.index_put(x, key, values, accumulate)),
    Row("ag_slice", lambda x, number: x[MASKS[number]], [case((4, 5, 6), number=i) for i in range(len(MASKS))], ulps=0,
        call=lambda x, number: x[MASKS[number]], label="_by_masks"),
    Row("ag_slice", lambda x, number: x[KEYS[number]], [case((4, 5, 6), number=i) for i in range(len(KEYS))], ulps=0,
        call=lambda x, number: x[KEYS[number]], label="_by_ids", bad=[
            index_error("an int apart from ids", lambda x: x[0, :, [1, 2]], "NumPy", "PyTorch"),
            index_error("a mask of another size", lambda x: x[[True, False]], "(2,)", "(4,)"),
            index_error("ids beyond an axis", lambda x: x[:, [5]], "index 5 along axis 1 of size 5"),
            index_error("too many ids", lambda x: x[[0], [1], [2], [3]], "4 indices", "(4, 5, 6)"),
            index_error("ids that are not whole", lambda x: x[[0.5]], "index 0.5")]),
]
