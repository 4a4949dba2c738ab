"""Random packed matrices, and launches that read them."""

from __future__ import annotations

import numpy as np
from helpers.guarded import Launch
from table.rows import Array

from ag.engine.dtype import F32
from ag.engine.kernels.indexing import NOTHING
from ag.engine.kernels.packing import PACKINGS
from ag.engine.primitive import PRIMITIVES

CHAIN = {"chain": (("add", 0, 1, 0.0), ("tanh", 4, 4, 0.0), ("mul", 5, 2, 0.0))}
HALVES = {"f16": (0, 2), "q8_0": (0, 2), "q4_0": (0, 2), "q4_1": (0, 4), "q4_k": (0, 4), "q6_k": (208, 210)}


def blocks_of(rng: np.random.Generator, packing: str, rows: int, count: int, wild: bool = False) -> Array:
    """GGUF's blocks with any quants, and scales of any size; of any bits if they are `wild`, so some are NaN."""
    kind = PACKINGS[packing]
    blocks = rng.integers(0, 256, (rows, count, kind.nbytes), dtype=np.uint8)
    if not wild and packing == "bf16":
        blocks = (rng.standard_normal((rows, count)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif not wild:
        first, last = HALVES[packing]
        scales = rng.standard_normal((rows, count, (last - first) // 2)) * 10.0 ** rng.integers(-5, 1, (rows, count, 1))
        blocks[..., first:last] = scales.astype(np.float16).view(np.uint8)
    return np.ascontiguousarray(blocks).view(np.uint8).reshape(rows, count * kind.nbytes)


def matrix(rng: np.random.Generator, packing: str, rows: int, inner: int) -> tuple[Array, int]:
    """Words of a matrix, and the length of its rows: about `inner`, in whole blocks."""
    block = PACKINGS[packing].block
    return PACKINGS[packing].from_blocks(blocks_of(rng, packing, rows, -(-inner // block)))


def product(rng: np.random.Generator, name: str, packing: str, rows: int, inner: int, cols: int, ta: bool) -> Launch:
    """A launch of ``packed_matmul`` or another of its family."""
    words, inner = matrix(rng, packing, rows, inner)
    rows, inner = (inner, rows) if ta else (rows, inner)
    operands = [rng.standard_normal((inner, cols)).astype(np.float32), words]
    params = {"packing": packing, "rows": rows, "inner": inner, "ta": ta}
    if "chain" in name:
        operands += [rng.standard_normal(shape).astype(np.float32) for shape in ((rows, 1), (rows, cols), (1, 1))]
        params |= CHAIN | ({"kept": 4} if name.endswith("pair") else {})
    if name.endswith("pieces"):
        params["chunk"] = 64 * int(rng.integers(1, 4))
    return Launch(PRIMITIVES[name], operands, params)


def lookup(rng: np.random.Generator, packing: str, length: int, features: int, places: int) -> Launch:
    """A launch of ``gather_rows`` by ids of which some stand for nothing."""
    words, features = matrix(rng, packing, length, features)
    ids = rng.choice([NOTHING, *range(length)], places).astype(np.int32)
    return Launch(PRIMITIVES["gather_rows"], [words, ids], {"packing": packing, "length": length,
                                                             "features": features}, F32)
