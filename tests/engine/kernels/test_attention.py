"""Attention's kernels at the edges of their tiles; equal to attention composed of products, to the bit of its masks."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from table.cases_sequences import attention_size
from table.rows import EPS, Array, bound, restart_generator, tensor

import ag
from ag.engine import target
from ag.engine.backends.vulkan.pipelines import Kernels
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.primitive import PRIMITIVES
from ag.ops.attention import attention_of_heads

# heads, d, dv, queries, keys, batch: around tiles of 64 rows and 32 columns, in 1, 2 and 4 blocks of features
SHAPES = [(1, 32, 32, 65, 65, 1), (3, 16, 33, 64, 32, 3), (2, 40, 8, 130, 70, 1), (1, 128, 127, 33, 97, 2)]
VARIANTS: list[dict[str, Any]] = [{"causal": False, "rate": 0.0}, {"causal": True, "rate": 0.25}]
TILES = [pytest.param(shape, variant, marks=pytest.mark.slow_on("lavapipe") if i or j else ())  # 5 s each to compile
         for i, shape in enumerate(SHAPES) for j, variant in enumerate(VARIANTS)]


def operands(heads: int, d: int, dv: int, queries: int, keys: int, batch: int) -> list[Array]:
    rng = np.random.default_rng([heads, d, dv, queries, keys, batch])
    sizes = [(d, queries), (d, keys), (dv, keys), (dv, queries)]  # the last: weights of the loss
    return [rng.standard_normal((heads * f, t, batch)).astype(np.float32) for f, t in sizes]


def step(device: str, arrays: list[Array], heads: int, dtype: str = "f32", **variant: Any) -> list[Array]:
    """The result and its gradients."""
    backend = backend_of(device)
    restart_generator(backend)
    q, k, v = (tensor(x, backend, dtype, param=True) for x in arrays[:3])
    with ag.with_grad_tape():
        out = attention_of_heads(q, k, v, heads, **variant)
        loss = ag.ag_sum(out * tensor(arrays[3], backend, dtype))
    grads = ag.backward(loss)
    return [out.numpy(), *(grads[x].numpy() for x in (q, k, v))]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fused_is_composed(shape: tuple[int, ...], variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = operands(*shape)
    fused = step("cpu", arrays, shape[0], "f64", **variant)
    monkeypatch.setattr(target, "_MOST_FEATURES", 0)
    for got, want in zip(fused, step("cpu", arrays, shape[0], "f64", **variant), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("shape", "variant"), TILES, ids=str)
def test_tiles(device: str, shape: tuple[int, ...], variant: dict[str, Any]) -> None:
    arrays = operands(*shape)
    found, again = (step(device, arrays, shape[0], **variant) for _ in range(2))
    exact = step("cpu", arrays, shape[0], "f64", **variant)
    q, k, v = (np.concatenate(np.split(x, shape[0]), axis=2) for x in arrays[:3])  # heads as samples
    out = np.concatenate(np.split(np.abs(exact[0]), shape[0]), axis=2)
    size = np.maximum(out, attention_size(q[:, :1], k, v, dropout=variant["rate"]).max())
    terms = shape[1] + shape[4]
    for i, (got, repeated, want) in enumerate(zip(found, again, exact, strict=True)):
        np.testing.assert_array_equal(got, repeated)
        allowed = bound(32, terms, np.max(size) if i == 0 else np.max(size) * np.abs(want).max(), "f32")
        assert np.all(np.abs(got - want) <= allowed)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 32, 24, 68, 36, 1), (2, 7, 32, 65, 33, 1)], ids=["quads", "words"])
def test_what_is_held_changes_no_bit(lavapipe: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with little shared memory loads rows again for each tile of columns."""
    kernels, arrays = backend_of(lavapipe)._kernels, operands(*shape)  # type: ignore[attr-defined]
    shapes = tuple(x.shape for x in (arrays[3], arrays[0][: shape[0]], *arrays[:3])) + ((4,),)
    params = {"heads": shape[0], "factor": 1.0, "causal": True, "rate": 0.0}
    found, needed = [], []
    for room in (sys.maxsize, 0):
        monkeypatch.setattr(kernels, "tiles", replace(kernels.tiles, room=room))
        needed.append(kernels.plan(PRIMITIVES["attention"], shapes, params, (0,)).needs.shared_bytes)
        found.append(step(lavapipe, arrays, shape[0], causal=True, rate=0.0))
    assert needed[0] > 16384 >= needed[1]
    for got, want in zip(*found, strict=True):
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.slow_on("lavapipe", "swiftshader")
# lavapipe, which counts turns of loops, tiles up to 5000.
@pytest.mark.parametrize(("times", "rate"), [
    *(pytest.param(5000, rate, marks=pytest.mark.not_on("swiftshader")) for rate in (0.0, 0.25)), (5001, 0.0),
    (5001, 0.25), pytest.param(20_000, 0.25, marks=pytest.mark.slow)])
def test_the_longest_sequences(device: str, times: int, rate: float) -> None:
    # Slopes of a single key are 0, and what is found instead is the rounding of a sum of so many terms.
    room = (512 if rate == 0 else 2048) * max(1, times / 8192)
    for queries, keys in (1, times), (times, 1):
        arrays = operands(1, 128, 128, queries, keys, 1)
        for got, want in zip(step(device, arrays, 1, causal=False, rate=rate),
                             step("cpu", arrays, 1, "f64", causal=False, rate=rate), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=room * EPS["f32"] * max(1, np.abs(want).max()))


def test_a_device_that_counts_turns_tiles_shorter_sequences(lavapipe: str) -> None:
    tiled = backend_of(lavapipe).target.tiled_attention
    assert tiled(128, 5000) and not tiled(128, 5001) and not tiled(129, 1)
    assert backend_of("cpu").target.tiled_attention(128, 1 << 20)


@pytest.mark.parametrize(("samples", "times"), [(2, 384), (3, 192), (4, 128), (64, 128)])
def test_cards_put_samples_first_where_they_read_them_often(samples: int, times: int) -> None:
    card = target.Target(units=132)
    assert card.samples_first(samples, times) and not target.Target().samples_first(samples, times)
    assert not card.samples_first(samples, times - 1) and not card.samples_first(1, 1 << 20)


def test_a_driver_that_finds_few_registers_composes_large_heads(lavapipe: str) -> None:
    backend: Any = backend_of(lavapipe)
    info = backend.info._replace(vendor="AMD", kind="discrete", driver="22.3.6",
                   description="AMD Radeon RX 7900 XTX (RADV GFX1100)")
    old, new = (Kernels(backend._manager, card).target(0) for card in (info, info._replace(driver="24.0.0")))
    assert old.tiled_attention(64, 5000) and not old.tiled_attention(65, 1)
    assert old.tiled_attention(32, 5000, True) and not old.tiled_attention(33, 1, True)
    assert new.tiled_attention(128, 5000, True)


def test_with_dropout_fewer_features_are_tiled(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of("cpu")
    monkeypatch.setattr(backend, "target", backend.target._replace(few_registers=True))
    for rate, names in (0.0, ["attention"]), (0.5, []):
        with record(backend) as recording:
            ag.ag_attention(*(tensor(x, backend) for x in operands(1, 64, 64, 8, 8, 1)[:3]), dropout=rate)
        assert [x.primitive.name for x in recording.launches if x.primitive.name == "attention"] == names


def test_three_launches_and_no_matrix_of_weights() -> None:
    backend = backend_of("cpu")
    q, k, v = (tensor(x, backend, param=True) for x in operands(2, 4, 4, 300, 300, 1)[:3])
    with record(backend) as recording:
        with ag.with_grad_tape():
            loss = ag.ag_sum(ag.ag_attention(q, k, v, causal=True))
        ag.backward(loss)
    found = [x for x in recording.launches if x.primitive.name.startswith("attention")]
    assert [x.primitive.name for x in found] == ["attention", "attention_delta", "attention_grad"]
    assert max(b.size for x in recording.launches for b in x.buffers) == 8 * 300


@pytest.mark.parametrize(("queries", "batch"), [(0, 2), (3, 0)])
def test_dropout_of_no_queries_and_of_no_samples(device: str, queries: int, batch: int) -> None:
    size, backend = (queries, batch), backend_of(device)
    q, k = tensor(np.ones((4, *size)), backend, param=True), tensor(np.ones((4, 5, batch)), backend, param=True)
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_attention(q, k, k, dropout=0.5))
    grads = ag.backward(loss)
    assert grads[q].shape == (4, *size) and not grads[k].numpy().any()


def test_large_heads_store_no_matrix_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, variant = operands(2, 130, 129, 40, 30, 2), VARIANTS[1]
    composed = step("cpu", arrays, 2, "f64", **variant)
    monkeypatch.setattr(sys.modules["ag.ops.attention"], "_MUCH", 2 * 2 * 40 * 30)
    for got, want in zip(step("cpu", arrays, 2, "f64", **variant), composed, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    backend = backend_of("cpu")
    with record(backend) as recording:
        ag.ag_attention(*(tensor(x, backend) for x in arrays[:3]), heads=2)
    assert [x.primitive.name for x in recording.launches] == ["masked_attention"]
