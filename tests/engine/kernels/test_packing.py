"""Packings have the bits of the package gguf, and products of packed matrices those of the float32 numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np
import pytest
from helpers import packed
from helpers.guarded import guarded
from helpers.tiled import KINDS, tiled_backend
from table.rows import Array

from ag.engine.backend import Backend
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32, I32, U32, DType
from ag.engine.kernels.indexing import NOTHING
from ag.engine.kernels.matmul import batched_matmul, matmul
from ag.engine.kernels.packed import gather_rows, packed_matmul, packed_matmul_pieces
from ag.engine.kernels.packing import PACKINGS
from ag.engine.primitive import PRIMITIVES

NUMBERS = ["bf16", "f16", "q8_0", "q4_0", "q4_1"]  # that arrays can be packed in
SPECIAL = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00], np.uint16)  # halves


def same(got: Array, want: Array) -> None:
    """To the bit, but that any NaN is one."""
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), ~known)
    np.testing.assert_array_equal(got[known].view(np.uint32), want[known].view(np.uint32))


def dequantised(packing: str, blocks: Array) -> Array:
    kind = gguf.GGMLQuantizationType[packing.upper()]
    with np.errstate(all="ignore"):
        return gguf.dequantize(blocks.view(np.float16) if packing == "f16" else blocks, kind)


@pytest.mark.parametrize("packing", PACKINGS)
def test_blocks_of_any_bits(packing: str) -> None:
    rng, kind = np.random.default_rng(0), PACKINGS[packing]
    for rows, count in ((1, 1), (3, 5), (37, 2), (1, 0), (0, 2), (9000, 1)):
        blocks = packed.blocks_of(rng, packing, rows, count, wild=True)
        words, inner = kind.from_blocks(blocks)
        assert inner == count * kind.block and words.nbytes <= 1.03 * blocks.nbytes + 12
        np.testing.assert_array_equal(kind.to_blocks(words, rows, inner), blocks)
        got = kind.unpack(words, rows, inner)
        assert got.shape == (rows, inner)
        if got.size:  # gguf takes no empty ones
            same(got, dequantised(packing, blocks))


@pytest.mark.parametrize("packing", PACKINGS)
def test_special_scales(packing: str) -> None:
    """Zeros with either sign, the smallest and the largest, infinities and NaN, with every quant."""
    kind = PACKINGS[packing]
    blocks = np.resize(np.arange(256, dtype=np.uint8), (len(SPECIAL), 4, kind.nbytes))
    first, last = packed.HALVES.get(packing, (0, 2))
    blocks[..., first:last] = np.repeat(SPECIAL.view(np.uint8).reshape(-1, 1, 2), 4, 1).repeat((last - first) // 2, 2)
    words, inner = kind.from_blocks(blocks.reshape(len(SPECIAL), -1))
    same(kind.unpack(words, len(SPECIAL), inner), dequantised(packing, blocks.reshape(len(SPECIAL), -1)))


@pytest.mark.parametrize("packing", NUMBERS)
def test_numbers_are_rounded_as_gguf_does(packing: str) -> None:
    rng, kind = np.random.default_rng(1), PACKINGS[packing]
    x = rng.standard_normal((300, 64)) * 10.0 ** rng.uniform(-9, 3, (300, 1))
    x[:3], x[3], x[4, ::2] = 0, -0.0, 0
    x[5], x[6], x[7] = np.arange(64), 1e-40, np.round(x[7] * 4) / 4  # ties, and scales that are 0 as halves
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        want = gguf.quantize(x, gguf.GGMLQuantizationType[packing.upper()]).view(np.uint8).reshape(300, -1)
    np.testing.assert_array_equal(kind.to_blocks(kind.pack(x), 300, 64), want)
    with pytest.raises(ValueError, match="required"):
        kind.pack(np.full((1, 64), 3.402e38, np.float32))


# ---------------------------------------------------------------------------------------------- products


def on(backend: Backend, array: Array, dtype: DType) -> Buffer:
    found = backend.alloc(array.shape, dtype)
    backend.upload(array, found)
    return found


def equal_products(backend: Any, rng: np.random.Generator, packing: str, rows: int, inner: int, cols: int,
                   pieces: bool = True) -> None:
    """W x and W^T g, in one piece and in pieces, of the words and of the float32 numbers, with guard words."""
    words, inner = packed.matrix(rng, packing, rows, inner)
    whole = PACKINGS[packing].unpack(words, rows, inner)
    a, w = on(backend, whole, F32), on(backend, words, U32)
    for ta in (False, True):
        made = {"packing": packing, "rows": inner if ta else rows, "inner": rows if ta else inner, "ta": ta}
        b = on(backend, rng.standard_normal((made["inner"], cols)).astype(np.float32), F32)
        got = backend.launch(packed_matmul, b, w, **made)
        want = backend.launch(matmul, a, b, ta=ta, tb=False)
        np.testing.assert_array_equal(backend.download(got), backend.download(want), f"{packing} {rows}x{inner} {ta}")
        if not pieces:
            continue
        got = backend.launch(packed_matmul_pieces, b, w, chunk=64, **made)
        want = backend.launch(batched_matmul, a.view((1, *a.shape)), b.view((1, *b.shape)), ta=ta, tb=False, chunk=64)
        np.testing.assert_array_equal(backend.download(got), backend.download(want)[:, 0])
    if backend.arena.guard:
        backend.check_guards()


@pytest.mark.slow_on("lavapipe", "swiftshader")
@pytest.mark.parametrize("packing", PACKINGS)
def test_products_have_the_bits_of_float32(backend: Backend, packing: str) -> None:
    rng = np.random.default_rng(2)
    for i in range(20 if backend.name == "cpu" else 3):
        sizes = [int(np.exp(rng.uniform(0, np.log(most)))) for most in (300, 700, 140)]
        equal_products(backend, rng, packing, *sizes[:2], 1 if i % 4 == 0 else sizes[2])


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def tiled(vulkan: str, kind: str) -> Iterator[Any]:
    with tiled_backend(vulkan, kind) as found:
        yield found


@pytest.mark.vulkan
@pytest.mark.slow_on("swiftshader")
@pytest.mark.parametrize("kind", [KINDS[0], *[pytest.param(*x.values, id=x.id, marks=pytest.mark.slow)
                                              for x in KINDS[1:]]], indirect=True)
def test_every_kind_of_tiles(tiled: Any, kind: str) -> None:
    rng = np.random.default_rng(3)
    for packing in ("q4_1",) if kind else ("q8_0", "q6_k", "bf16"):  # of tiles that unroll much, a second each
        equal_products(tiled, rng, packing, int(rng.integers(1, 140)), int(rng.integers(1, 300)), 37, pieces=False)


@pytest.mark.vulkan
@pytest.mark.parametrize("packing", ["q4_0", "f16"])
def test_chains_behind_products(vulkan: str, packing: str) -> None:
    """Bits of the product and the chain, each by itself."""
    rng, backend = np.random.default_rng(4), guarded(vulkan)
    launch = packed.product(rng, "packed_matmul_chain_pair", packing, 35, 33, 6, False)
    operands = [on(backend, x, U32 if x.dtype == np.uint32 else F32) for x in launch.operands]
    alone = {key: x for key, x in launch.params.items() if key not in ("chain", "kept")}
    product = backend.launch(packed_matmul, *operands[:2], **alone)
    one = backend.launch(PRIMITIVES["packed_matmul_chain"], *operands, **alone, **packed.CHAIN)
    two, _ = backend.launch(PRIMITIVES["packed_matmul_chain_pair"], *operands, **launch.params)
    want = backend.launch(PRIMITIVES["fused"], product, *operands[2:], **packed.CHAIN)
    for got in (one, two):
        np.testing.assert_array_equal(backend.download(got), backend.download(want))


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_by_ids(backend: Backend, packing: str) -> None:
    """Of scales of any bits; NaN for ids that are no row, and 0 for those that stand for nothing."""
    rng, kind = np.random.default_rng(5), PACKINGS[packing]
    words, features = kind.from_blocks(packed.blocks_of(rng, packing, 9, 45 if kind.block == 1 else 3, wild=True))
    ids = np.array([0, 8, 3, 3, 9, -1, NOTHING, 2**31 - 1, *rng.integers(0, 9, 30)], np.int32)
    inside = (ids >= 0) & (ids < 9)
    want = np.where(ids == NOTHING, np.float32(0), np.float32(np.nan)) * np.ones((features, 1), np.float32)
    want[:, inside] = kind.unpack(words, 9, features)[ids[inside]].T
    out = backend.alloc(want.shape, F32)
    backend.launch(gather_rows, on(backend, words, U32), on(backend, ids, I32), into=out, packing=packing, length=9,
                   features=features)
    same(backend.download(out), want)
    backend.check_guards()


def test_words_of_another_size() -> None:
    backend = guarded("cpu")
    with pytest.raises(ValueError, match=r"a matrix in q8_0 has \(18,\) words; \(17,\) are required"):
        backend.launch(packed_matmul, on(backend, np.ones((32, 1), np.float32), F32),
                       on(backend, np.zeros(18, np.uint32), U32), packing="q8_0", rows=2, inner=32, ta=False)
