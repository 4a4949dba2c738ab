"""A cache of fixed size: tokens one by one, in chunks, with padding and captured give what the whole sequence gives."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag import nn, ops

WIDTH, HEADS, WORDS, LAYERS = 8, 2, 7, 2
RNG = np.random.default_rng(3)
IDS = RNG.integers(WORDS, size=(68, 3))
Array = np.ndarray[Any, Any]


def refused(error: type[BaseException], call: Callable[[], object], *fragments: str) -> None:
    with expect_error(" ".join(fragments), error, *fragments):
        call()


def attention(q: ag.Tensor, keys: ag.Tensor, values: ag.Tensor, mask: ag.Tensor) -> ag.Tensor:
    """Attention to what a mask shows, of products and a softmax."""
    def heads(x: ag.Tensor, axis: int) -> ag.Tensor:
        shape = [HEADS, x.shape[0] // HEADS, *x.shape[1:]]
        shape.insert(axis, 1)
        return x.reshape(*shape)

    scores = ops.sum(heads(q, 3) * heads(keys, 2), 1) * (WIDTH // HEADS) ** -0.5
    weights = ops.softmax(ops.where(mask, scores, -1e9), 2)
    out = ops.sum(heads(values, 2) * ops.unsqueeze(weights, 1), 3)
    return out.reshape(-1, *out.shape[2:])


class Model(nn.Layer):
    """From ids (time, batch) to logits (words, time, batch), with rotary positions; values are wider than keys."""

    def __init__(self) -> None:
        self.words = nn.Embedding(WORDS, WIDTH)
        self.weights = [[ag.ag_param(RNG.normal(size=(n, m)) / 4) for n, m in (
            (WIDTH, WIDTH), (WIDTH, WIDTH), (2 * WIDTH, WIDTH), (WIDTH, 2 * WIDTH))] for _ in range(LAYERS)]
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Array, cache: nn.StaticCache | None = None, lengths: Array | None = None,
                padding: str = "right") -> ag.Tensor:
        x = self.words(ids)
        places: Any = 0 if cache is None else cache.advance(len(ids), lengths, padding)
        for layer, (W_q, W_k, W_v, W_o) in enumerate(self.weights):
            q, k = ops.rope(W_q @ x, W_k @ x, places, heads=HEADS)
            if cache is None:
                seen = ops.attention(q, k, W_v @ x, causal=True, heads=HEADS)
            else:
                seen = attention(q, *cache.append(k, W_v @ x, layer))
            x = x + W_o @ seen
        return self.out(x)


def cache_of(capacity: int, batch: int = 3, **settings: Any) -> nn.StaticCache:
    return nn.StaticCache(LAYERS, WIDTH, capacity, batch, 2 * WIDTH, **settings)


def in_chunks(model: Callable[..., ag.Tensor], ids: Array, sizes: list[int], cache: nn.StaticCache) -> Array:
    parts, start = [], 0
    for size in sizes:
        assert cache.positions == start
        parts.append(model(ids[start : start + size], cache).numpy())
        start += size
    assert cache.lengths().tolist() == [start] * ids.shape[1]
    return np.concatenate(parts, 1)


@pytest.mark.parametrize("sizes", [[1] * 9, [9], [4, 1, 3, 1]], ids=str)
def test_chunks_give_what_the_whole_sequence_gives(device: str, sizes: list[int]) -> None:
    with ag.ag_device(device):
        model, cache = Model(), cache_of(12)
        want = model(IDS[:9]).numpy()
        for _ in range(2):
            assert np.abs(in_chunks(model, IDS[:9], sizes, cache) - want).max() <= 1e-5
            cache.reset()
            assert cache.positions == 0 and cache.lengths().tolist() == [0, 0, 0]


def test_64_tokens_of_one_recording(device: str) -> None:
    with ag.ag_device(device):
        model, cache, programs = Model(), cache_of(68), set()
        step = ag.ag_capture(lambda ids: model(ids, cache))
        want = model(IDS).numpy()
        got = [model(IDS[:4], cache).numpy()]  # the beginning in one chunk
        for i in range(4, 68):
            got.append(step(IDS[i : i + 1]).numpy())
            assert cache.positions == i + 1
            programs.add(id(step.program))
        assert np.abs(np.concatenate(got, 1) - want).max() <= 1e-5
        assert len(programs) == len(step._programs) == 1 and step.replayed
        full = ["StaticCache: 1 positions were given after 68", "capacity is 68"]
        for _ in range(2):
            refused(ag.CacheError, lambda: step(IDS[:1]), *full)
            assert cache.positions == 68 and cache.lengths().tolist() == [68] * 3
        cache.reset()
        assert np.abs(step(IDS[:1]).numpy() - want[:, :1]).max() <= 1e-5
        assert len(step._programs) == 1


def test_captured_equals_eager(device: str) -> None:
    with ag.ag_device(device):
        model = Model()
        found = []
        for capture in (ag.ag_capture, lambda f: f):
            cache = cache_of(12)
            step = capture(lambda ids, c=cache: model(ids, c))
            found.append([step(IDS[i : i + 3]).numpy() for i in range(0, 12, 3)])
        for captured, eager in zip(*found, strict=True):
            assert captured.tobytes() == eager.tobytes()


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("captured", [False, True])
def test_padding_takes_no_place(device: str, padding: str, captured: bool) -> None:
    with ag.ag_device(device):
        model, cache = Model(), cache_of(16)

        def step(ids: Array, lengths: Array) -> ag.Tensor:
            return model(ids, cache, lengths, padding)

        call = ag.ag_capture(step) if captured else step
        lengths, total = np.array([[4, 2, 0], [1, 3, 4], [4, 4, 1]]), np.zeros(3, int)
        alone = [model(IDS[:, b : b + 1]).numpy()[:, :, 0] for b in range(3)]
        for row in lengths:
            chunk = np.full((4, 3), 6)
            starts = np.zeros(3, int) if padding == "right" else 4 - row
            for b, (start, n) in enumerate(zip(starts, row, strict=True)):
                chunk[start : start + n, b] = IDS[total[b] : total[b] + n, b]
            out = call(chunk, row).numpy()
            assert np.isfinite(out).all()
            for b, (start, n) in enumerate(zip(starts, row, strict=True)):
                assert np.abs(out[:, start : start + n, b] - alone[b][:, total[b] : total[b] + n]).max(initial=0) < 1e-5
            total += row
        assert cache.lengths().tolist() == total.tolist() and cache.positions == 12
        refused(IndexError, lambda: call(IDS[:4], np.array([1, 5, 0])), "StaticCache: the length 5", "0..4")
        assert cache.lengths().tolist() == total.tolist() and cache.positions == 12


def test_going_back(device: str) -> None:
    with ag.ag_device(device):
        model, cache = Model(), cache_of(8)
        step = ag.ag_capture(lambda ids: model(ids, cache))
        want, other = model(IDS[:6]).numpy(), model(IDS[[0, 1, 2, 9, 10, 11]]).numpy()
        for i in range(3):
            step(IDS[i : i + 1])
        three = cache.snapshot()
        for ids, expected in ((IDS[[9, 10, 11]], other), (IDS[3:6], want), (IDS[[9, 10, 11]], other)):
            for i in range(3):
                assert np.abs(step(ids[i : i + 1]).numpy()[:, 0] - expected[:, 3 + i]).max() <= 1e-5
            six = cache.snapshot()
            cache.rollback(three)
            assert cache.positions == 3 and cache.lengths().tolist() == [3] * 3
            refused(ag.CacheError, partial(cache.rollback, six), "StaticCache: the snapshot is of another cache")
        assert len(step._programs) == 1
        cache.reset()
        refused(ag.CacheError, lambda: cache.rollback(three), "StaticCache: the snapshot is of another cache")
        refused(ag.CacheError, lambda: cache.rollback(cache_of(8).snapshot()), "another cache")


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("of", ["f32", "own"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_16_bits_are_kept(device: str, dtype: str, of: str, batch: int) -> None:
    """In a cache of float32 or of their own type, one token behind the other, captured and not."""
    kind = dtype if of == "own" else "f32"
    chunks = [tuple([ag.ag_tensor(RNG.normal(size=(3, 1, batch)), device, dtype) for _ in range(2)]) for _ in range(5)]
    for captured in (False, True):
        cache = nn.StaticCache(1, 3, 7, batch, dtype=kind, device=device)
        append = ag.ag_capture(lambda k, v, cache=cache: cache.append(k, v)[:2]) if captured else cache.append
        for count, chunk in enumerate(chunks):
            for i, kept in enumerate(append(*chunk)[:2]):
                given = np.concatenate([c[i].numpy() for c in chunks[: count + 1]], 1)
                assert kept.dtype == dtype and (kept.numpy()[:, : count + 1] == given).all()
                assert (kept.numpy()[:, count + 1 :] == 0).all()
    k, v = chunks[0]
    refused(ag.DtypeError, lambda: cache.append(k, v.astype("f32")), "StaticCache: operands have", "f32")


def test_float64() -> None:
    cache = nn.StaticCache(1, WIDTH, 9, 3, dtype="f64", device="cpu")
    q, k, v = (ag.ag_tensor(x, "cpu", "f64") for x in RNG.normal(size=(3, WIDTH, 9, 3)))
    want = ops.attention(q, k, v, causal=True, heads=HEADS).numpy()
    got = [attention(q[:, i : i + 1], *cache.append(k[:, i : i + 1], v[:, i : i + 1])).numpy() for i in range(9)]
    assert np.abs(np.concatenate(got, 1) - want).max() < 1e-13


def test_an_interrupted_pass_is_refused(device: str) -> None:
    with ag.ag_device(device):
        model, cache = Model(), cache_of(8)
        step = ag.ag_capture(lambda ids: model(ids, cache))
        for i in range(4):
            step(IDS[i : i + 1])
        before, weight = cache.snapshot(), model.weights[1][2]
        model.weights[1][2] = ag.ag_param(np.ones((3, WIDTH)))
        refused(ag.ShapeError, lambda: model(IDS[4:5], cache), "StaticCache: v is (3, 1, 3)")
        for call in (lambda: step(IDS[4:5]), lambda: model(IDS[4:5], cache), lambda: cache.advance(1)):
            refused(ag.CacheError, call, "a forward pass ended midway", "rollback")
        refused(ag.CacheError, cache.snapshot, "1 of 2 layers")
        cache.rollback(before)
        model.weights[1][2] = weight
        assert np.abs(step(IDS[4:5]).numpy()[:, 0] - model(IDS[:5]).numpy()[:, 4]).max() <= 1e-5
        assert cache.positions == 5


def test_a_captured_step_that_fails_counts_nothing_twice(device: str) -> None:
    with ag.ag_device(device):
        model, cache = Model(), cache_of(8)

        def step(ids: Array) -> ag.Tensor:
            out = model(ids, cache)
            out.numpy()
            return out

        refused(ag.CaptureError, lambda: ag.ag_capture(step)(IDS[:1]), "reads")
        assert cache.lengths().tolist() == [cache.positions] * 3 == [1] * 3


def test_what_a_step_may_not_do(device: str) -> None:
    with ag.ag_device(device):
        x, one = ag.ag_tensor(np.ones((2, 1, 1))), nn.StaticCache(1, 2, 4)

        def refuses(act: Callable[[nn.StaticCache], object], said: str) -> None:
            cache = nn.StaticCache(2, 2, 4)
            refused(ag.CaptureError, lambda: ag.ag_capture(lambda t: (t * 2.0, act(cache))[0])(x), said)

        refuses(lambda cache: cache.positions, "cache.advance(time)")
        refuses(lambda cache: cache.snapshot(), "takes a snapshot")
        refuses(lambda cache: cache.reset(), "resets a cache")
        refuses(lambda cache: cache.append(x, x), "the step")  # in one of two layers
        p = ag.ag_param(np.ones((2, 1, 1)))
        with ag.with_grad_tape():
            refused(ag.TapeError, lambda: one.append(p * 2.0, x), "StaticCache: keys were given while gradients")
            assert one.append(x, x)[0].numpy()[0, 0, 0] == 1  # without one, the tape is no matter
        assert one.append(p * 2.0, p)[0].numpy()[:, :2, 0].tolist() == [[1, 2], [1, 2]]


def test_nothing_is_kept_of_a_cache_that_is_gone() -> None:
    x, cache = ag.ag_tensor(np.ones((2, 1, 1))), nn.StaticCache(1, 2, 8)
    step = ag.ag_capture(lambda t: cache.append(t, t)[0] * 1.0)
    for _ in range(3):
        step(x)
    gone, cache = ref(cache), nn.StaticCache(1, 2, 8)
    assert step(x).numpy()[0, :, 0].tolist() == [1] + [0] * 7 and cache.positions == 1
    step.close()
    gc.collect()
    assert gone() is None


def test_a_nan_is_gone_after_a_reset(device: str) -> None:
    with ag.ag_device(device):
        cache, x = nn.StaticCache(1, 2, 4), ag.ag_tensor(np.ones((2, 2, 1)))
        cache.append(x * np.nan, x / 0.0)
        cache.reset()
        keys, values, mask = cache.append(x, x)
        assert (keys.numpy()[0, :, 0] == [1, 1, 0, 0]).all() and (values.numpy() == keys.numpy()).all()
        assert mask.dtype == "bool" and mask.numpy()[0, :, :, 0].tolist() == [[True] + [False] * 3,
                                                                             [True, True, False, False]]


def test_arrays_and_masks_are_numbers(device: str) -> None:
    cache = nn.StaticCache(1, 2, 2, device=device)
    keys, values, _ = cache.append(np.ones((2, 1, 1)), ag.ag_tensor(np.ones((2, 1, 1)), device) > 0)
    assert keys.dtype == values.dtype == "f32" and keys.numpy().tolist() == values.numpy().tolist() == [[[1], [0]]] * 2


def test_errors_say_what_is_needed() -> None:
    cache, x = nn.StaticCache(1, 2, 4), ag.ag_tensor(np.ones((2, 1, 1)))
    refused(ValueError, lambda: nn.StaticCache(0, 2, 4), "StaticCache: layers is 0")
    refused(ag.DtypeError, lambda: nn.StaticCache(1, 2, 4, dtype="i32"), "StaticCache: dtype is i32")
    refused(ag.DtypeError, lambda: cache.append(None, x), "StaticCache: data of type object")  # type: ignore[arg-type]
    refused(ag.ShapeError, lambda: cache.append(x, x[:1]), "StaticCache: v is (1, 1, 1); (2, time, 1)")
    refused(ag.ShapeError, lambda: cache.append(x[:, :, 0], x), "StaticCache: k is (2, 1)")
    refused(ag.DeviceError, lambda: cache.append(ag.ag_to_device(x, "cpu:1"), x), "StaticCache: operands", "cpu:1")
    wide = ag.ag_tensor(np.ones((2, 1, 1)), "cpu", "f64")
    refused(ag.DtypeError, lambda: cache.append(wide, wide), "StaticCache: operands have", "f32 and f64")
    refused(ag.CacheError, lambda: cache.append(x, x, 1), "layer 1 was given and layer 0 of 1 is next")
    refused(ag.CacheError, lambda: cache.advance(5), "5 positions were given after 0", "capacity is 4")
    refused(ValueError, lambda: cache.advance(0), "StaticCache: time is 0")
    refused(ValueError, lambda: cache.advance(1, padding="both"), "StaticCache: padding is 'both'")
    refused(ag.ShapeError, lambda: cache.advance(1, [1, 1]), "StaticCache: the lengths are (2,); (1,)")
    refused(IndexError, lambda: cache.advance(1, [2]), "StaticCache: the length 2 is outside 0..1")
    refused(TypeError, lambda: copy.copy(cache), "StaticCache: it cannot be copied")
    refused(TypeError, lambda: pickle.dumps(cache), "StaticCache: it cannot be copied")
    cache.advance(2)
    refused(ag.ShapeError, lambda: cache.append(x, x), "StaticCache: k is (2, 1, 1) in a chunk of 2 tokens")
    assert repr(cache) == "StaticCache(positions=2, capacity=4, layers=1, features=2, batch=1)"


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_any_order_of_calls(device: str, seed: int) -> None:
    """Chunks, padding, captured and eager calls, full caches, going back and resets, against lists of numbers."""
    rng, batch, capacity = np.random.default_rng(seed), 2, 12
    cache = nn.StaticCache(1, 1, capacity, batch, device=device)
    held: list[list[float]] = [[], []]
    taken, saved = 0, [(cache.snapshot(), 0, [0, 0])]

    def keep(x: ag.Tensor, lengths: Array, padding: str) -> list[ag.Tensor]:
        places = cache.advance(x.shape[1], lengths, padding)
        keys, values, mask = cache.append(x, x * 2.0)
        return [keys * 1.0, values * 1.0, mask, places]

    steps = {side: ag.ag_capture(lambda x, n, side=side: keep(x, n, side)) for side in ("left", "right")}
    for act in rng.choice(["chunk"] * 10 + ["reset", "back", "save"], 90):
        if act == "reset":
            cache.reset()
            held, taken, saved = [[], []], 0, []
        elif act == "save":
            saved.append((cache.snapshot(), taken, [len(row) for row in held]))
        elif act == "back" and saved:
            snapshot, taken, counts = saved[rng.integers(len(saved))]
            cache.rollback(snapshot)
            held = [row[:n] for row, n in zip(held, counts, strict=True)]
            saved = [s for s in saved if s[1] <= taken]
        elif act == "chunk":
            time, side = int(rng.integers(1, 4)), str(rng.choice(["left", "right"]))
            x, lengths = rng.normal(size=(1, time, batch)).astype(np.float32), rng.integers(time + 1, size=batch)
            call = steps[side] if rng.random() < 0.7 else partial(keep, padding=side)
            given = ag.ag_tensor(x, device), lengths
            if taken + time > capacity:
                refused(ag.CacheError, partial(call, *given), f"{time} positions were given after {taken}")
                continue
            keys, values, mask, places = (t.numpy() for t in call(*given))
            taken += time
            for b, n in enumerate(lengths):
                first = 0 if side == "right" else time - n
                held[b] += x[0, first : first + n, b].tolist()
                assert places[first : first + n, b].tolist() == [*range(len(held[b]) - n, len(held[b]))]
                assert (np.delete(places[:, b], range(first, first + n)) == -1).all()
                assert keys[0, : len(held[b]), b].tolist() == held[b]
                assert values[0, : len(held[b]), b].tolist() == [2 * y for y in held[b]]
                assert (mask[0, :, :, b].sum(1) == np.maximum(places[:, b], 0) + 1).all()
        assert cache.positions == taken and cache.lengths().tolist() == [len(row) for row in held]
