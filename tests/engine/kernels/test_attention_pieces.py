"""Attention over contexts that are cut into pieces of keys, or of queries: the results are those of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from table.rows import Array, bound, restart_generator, tensor

import ag
from ag.engine.backends.shader import plans
from ag.engine.device import backend_of
from ag.engine.kernels import attention
from ag.engine.primitive import PRIMITIVES

Q, K, T, D, DV = 70, 110, 97, 12, 20  # times of queries, keys and both; features


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workgroups do little at a time: there are several pieces."""
    monkeypatch.setattr(attention, "_MOST_WORK", 64 * 32 * 4 * 40)
    plans.planned.cache_clear()
    yield
    plans.planned.cache_clear()


def step(device: str, arrays: list[Array], dtype: str = "f32", capture: bool = False, **given: Any) -> list[Array]:
    """The result and its gradients."""
    backend: Any = backend_of(device)
    restart_generator(backend)

    def forward_and_back(*operands: Any) -> list[Any]:
        with ag.with_grad_tape():
            out = ag.ag_attention(*operands, **given)
            loss = ag.ag_sum(out * out * 0.5)
        grads = ag.backward(loss)
        return [out, *(grads[x] for x in operands)]

    operands = [tensor(x, backend, dtype, param=True) for x in arrays]
    with ag.ag_device(device):
        given = {name: ag.ag_tensor(x, dtype=TYPES[x.dtype.kind]) if isinstance(x, np.ndarray) else x
                 for name, x in given.items()}
    made = (ag.ag_capture(lambda: forward_and_back(*operands)) if capture else lambda: forward_and_back(*operands))()
    return [x.numpy() for x in made]


def launched(device: str, arrays: list[Array], **given: Any) -> int:
    with ag.profile() as seen:
        step(device, arrays, **given)
    return sum("attention" in event.kernel and "delta" not in event.kernel for event in seen.events)


def operands(heads: int, kv_heads: int, queries: int, keys: int) -> list[Array]:
    rng = np.random.default_rng([heads, queries, keys])
    return [rng.standard_normal(shape).astype(np.float32) for shape in (
        (heads * D, queries, 2), (kv_heads * D, keys, 2), (kv_heads * DV, keys, 2))]


MASK = np.random.default_rng(0).random((1, 1, T, 2)) < 0.7
MASK[..., :70, 0] = False  # a query sees nothing in the first pieces
CASES: dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]] = {
    "plain": ((2, 2, Q, K), {"heads": 2}),
    "causal": ((2, 2, T, T), {"heads": 2, "causal": True}),
    "dropout": ((1, 1, Q, K), {"heads": 1, "dropout": 0.3}),
    "grouped": ((4, 2, T, T), {"heads": 4, "kv_heads": 2, "causal": True}),
    "mask": ((2, 1, T, T), {"heads": 2, "kv_heads": 1, "attn_mask": MASK}),
    "segments": ((1, 1, T, T), {"heads": 1, "segments": (np.arange(T) // 30).astype(np.int32)}),
    "window": ((1, 1, T, T), {"heads": 1, "causal": True, "window": 20}),
}
TYPES = {"b": "bool", "i": "i32"}
SLOW = {"dropout", "segments", "window"}


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES])
def test_equals_float64(lavapipe: str, name: str) -> None:
    shape, given = CASES[name]
    arrays = operands(*shape)
    found, want = step(lavapipe, arrays, **given), step("cpu", arrays, "f64", **given)
    for got, exact in zip(found, want, strict=True):
        assert np.all(np.abs(got - exact) <= bound(64, 110, max(1.0, np.abs(exact).max()), "f32"))
    for got, again in zip(step(lavapipe, arrays, capture=True, **given), found, strict=True):
        np.testing.assert_array_equal(got, again)
    assert launched(lavapipe, arrays, **given) > 4


@pytest.mark.parametrize(("queries", "keys", "features", "group", "forward", "backward"), [
    (4096, 4096, 128, 1, 1, 1), (12_000, 12_000, 128, 1, 1, 1), (16_384, 16_384, 128, 1, 1, 2),
    (131_072, 131_072, 64, 1, 2, 6), (8192, 8192, 128, 8, 1, 6), (1, 1 << 20, 64, 1, 9, 43)])
def test_no_workgroup_takes_a_slow_card_half_a_second(queries: int, keys: int, features: int, group: int, forward: int,
                                                      backward: int) -> None:
    """By the multiply-adds of a workgroup, of which one unit of a slow card makes 4e9 per second."""
    heads = 8
    shapes = (heads * features, queries, 1), *[(heads // group * features, keys, 1)] * 2
    for held, pieces, each in (1, forward, 4), (2, backward, 20 * group):
        sizes = attention._sizes(*shapes, heads, 0.0, held, heads // group)
        assert sizes["pieces"] == pieces and sizes["span"] % 32 == 0
        assert sizes["span"] * pieces >= keys and sizes["span"] * 64 * features * each <= 2.02e9


def test_pieces_are_dispatches_of_other_numbers(lavapipe: str) -> None:
    q, backend = (128, 16_384, 1), cast(Any, backend_of(lavapipe))
    params: Any = {"heads": 1, "factor": 1.0, "causal": True, "rate": 0.0}
    shapes = (*[q] * 7, (1, *q[1:]), (1, *q[1:]), (4,))
    plan = plans.planned(PRIMITIVES["attention_grad"], shapes, tuple(params.items()), backend._kernels.tiles, True)
    first, second = (np.frombuffer(push, np.uint32) for push in plan.pushes(plan.push([0] * 10)))
    assert np.flatnonzero(first != second) == [plan.piece_at] and second[plan.piece_at] == 1
    assert plan.seconds >= 2 * attention.MOST_SECONDS


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", ["causal", "grouped"])
def test_16_bits_are_rounded_once(lavapipe: str, name: str) -> None:
    """A capture stores no sums of pieces in 16 bits: it has the bits of single launches, which are in float32."""
    shape, given = CASES[name]
    arrays = operands(*shape)
    assert launched(lavapipe, arrays, **given) > 4
    for got, want in zip(*[step(lavapipe, arrays, "bf16", capture, **given) for capture in (True, False)], strict=True):
        np.testing.assert_array_equal(got, want)
