"""Rows of the case table: rotary positions."""

from __future__ import annotations

from typing import Any

import numpy as np
from table.rows import Array, Bad, Row, Shape, case, every

import ag
from ag import ops
from ag.autograd.tensor import Tensor


def turned(x: Array, k: Array | None = None, positions: Any = 0, base: float = 10000.0, interleaved: bool = False,
           heads: int = 1, rotary_dim: int | None = None) -> Array:
    """One head, pair, time and sample at a time, as a product of complex numbers."""
    if k is not None:
        each = {"positions": positions, "base": base, "interleaved": interleaved, "rotary_dim": rotary_dim}
        return np.concatenate([turned(x, heads=heads, **each), turned(k, heads=len(k) * heads // len(x), **each)])
    d = len(x) // heads
    r, out = rotary_dim or d, np.array(x, np.float64)
    for head, i, t, *b in np.ndindex(heads, r // 2, *x.shape[1:]):
        near, far = (2 * i, 2 * i + 1) if interleaved else (i, i + r // 2)
        one, two = ((head * d + feature, t, *b) for feature in (near, far))
        position = positions + t if np.ndim(positions) == 0 else np.reshape(positions, (len(positions), -1))[
            t, b[0] if np.ndim(positions) == 2 and np.shape(positions)[1] > 1 else 0]
        z = complex(x[one], x[two]) * np.exp(1j * float(position) * base ** (-2 * i / r))
        out[one], out[two] = z.real, z.imag
    return out


def at_places(_rng: np.random.Generator, shape: Shape, _before: Any) -> Array:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape) * 37 % 101 - 5


def both(q: Tensor, k: Tensor, **settings: Any) -> Tensor:
    return ag.ag_concat(ops.rope(q, k, **settings))


def size(x: Array, *others: Array, **_settings: Any) -> Any:
    """An angle of 100 has no more than 14 digits behind the point in the oracle."""
    return 16 * (1 + max(np.abs(y).max(initial=0) for y in (x, *others) if y.dtype.kind == "f"))


def rope_error(situation: str, error: type[BaseException], fragments: list[str], shape: Shape = (8, 3, 2),
               **settings: Any) -> Bad:
    return Bad(situation, [shape], lambda x: ops.rope(x, **settings), error, ["rope: ", *fragments])


ROWS = [
    Row("rope", turned, [
        *every([[(2, 1)], [(4, 3)], [(6, 5, 2)], [(12, 33, 3)]], {}, {"interleaved": True}),
        case((24, 5, 2), heads=3, rotary_dim=6, positions=95), case((24, 5, 2), heads=3, positions=-7, base=500.0),
        case((4, 0, 2)), case((4, 3, 0))], call=ops.rope, size=size, bad=[
            rope_error("rope of a vector", ag.ShapeError, ["(8,)", "(features, time, batch)"], (8,)),
            rope_error("rope of heads that do not divide features", ag.ShapeError, ["into 3 heads"], heads=3),
            rope_error("rope of no head", ValueError, ["heads is 0"], heads=0),
            rope_error("rope of an odd number of features", ValueError, ["3 of a head's 8", "2..8"], rotary_dim=3),
            rope_error("rope of more features than there are", ValueError, ["10 of a head's 8"], rotary_dim=10),
            rope_error("rope at positions that are floats", ag.DtypeError, ["float64", "i32"], positions=[0.0, 1, 2]),
            rope_error("rope at positions of other times", ag.ShapeError, ["(2,)", "(time, batch)"], positions=[0, 1]),
            rope_error("rope at a position beyond 32 bits", ValueError, ["2147483647"], positions=2**31 - 1),
            rope_error("rope to the base 0", ValueError, ["base is 0"], base=0),
            rope_error("rope by an unknown scaling", ValueError, ["'ntk'", "linear, llama3, yarn"],
                       scaling={"rope_type": "ntk"}),
            rope_error("rope by a scaling that lacks a number", TypeError, ["of type linear has nothing", "factor"],
                       scaling={"rope_type": "linear"}),
            Bad("rope of keys of another time", [(8, 3), (8, 4)], ops.rope, ag.ShapeError, ["k is (8, 4)"]),
            Bad("rope of keys with other heads", [(8, 3), (6, 3)], lambda q, k: ops.rope(q, k, heads=2),
                ag.ShapeError, ["k is (6, 3)", "into heads of that size"]),
        ]),
    Row("rope", lambda x, positions, **settings: turned(x, positions=positions, **settings),
        every([[(6, 5, 2), (5, 2)], [(6, 5, 2), (5, 1)], [(6, 5, 2), (5,)], [(6, 5), (5,)], [(6, 5, 2), ()]], {},
              {"interleaved": True, "rotary_dim": 4}),
        [lambda rng, shape, _before: rng.standard_normal(shape), at_places], size=size, label="(positions)",
        call=lambda x, positions, **settings: ops.rope(x, positions=positions, **settings)),
    Row("rope", turned, [case((24, 5, 2), (8, 5, 2), heads=3), case((8, 33), (8, 33), heads=2, interleaved=True),
                         case((20, 3, 2), (10, 3, 2), heads=2, rotary_dim=4, positions=5)],
        call=both, size=size, label="(pair)"),
]
