"""A cache of keys and values: what it gives is what the whole sequence gives, or it is a named error."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from threading import Thread
from types import FrameType
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.interrupts import at_place

import ag
from ag import nn, ops

WIDTH, CONTEXT, WORDS, TIMES = 16, 24, 11, 14
RNG = np.random.default_rng(7)
IDS = RNG.integers(WORDS, size=(TIMES, 3))
X = RNG.normal(size=(4, 6)).astype(np.float32)


class Block(nn.Layer):
    def __init__(self) -> None:
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4)
        self.mlp = nn.Linear(WIDTH, WIDTH, activation="gelu")

    def forward(self, x: ag.Tensor, cache: nn.KeyValueCache | None) -> ag.Tensor:
        x = x + self.attention(self.norm(x), causal_mask=True, cache=cache)
        return x + self.mlp(x)


class Model(nn.Layer):
    """From ids (time, batch) to logits (words, time, batch)."""

    def __init__(self) -> None:
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = ag.ag_param(RNG.normal(size=(WIDTH, CONTEXT, 1)))
        self.blocks = [Block(), Block()]
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: np.ndarray, cache: nn.KeyValueCache | None = None) -> ag.Tensor:
        start = 0 if cache is None else cache.positions
        x = self.words(ids) + self.places[:, start : start + len(ids)]
        for block in self.blocks:
            x = block(x, cache)
        return self.out(x)


def one_by_one(model: Model, ids: np.ndarray, first: int = 5, cache: nn.KeyValueCache | None = None) -> np.ndarray:
    """The logits of all positions, of which `first` are given together."""
    cache = nn.KeyValueCache() if cache is None else cache
    parts = [model(ids[:first], cache).numpy()]
    for i in range(first, len(ids)):
        assert cache.positions == i
        parts.append(model(ids[i : i + 1], cache).numpy())
    return np.concatenate(parts, axis=1)


def begun(layer: nn.MultiheadAttention, positions: int = 3) -> nn.KeyValueCache:
    cache = nn.KeyValueCache()
    layer(X[:, :positions], causal_mask=True, cache=cache)
    return cache


def go_on(layer: nn.MultiheadAttention, cache: nn.KeyValueCache) -> ag.Tensor:
    return layer(X[:, cache.positions : cache.positions + 1], causal_mask=True, cache=cache)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("first", [1, 5, TIMES])
def test_logits_are_those_of_the_whole_sequence(device: str, batch: int, first: int) -> None:
    model, ids = Model(), IDS[:, :batch]
    assert np.abs(one_by_one(model, ids, first) - model(ids).numpy()).max() <= 1e-5


def test_without_a_batch(device: str) -> None:
    layer, cache = nn.MultiheadAttention(4, 2, bias=False), nn.KeyValueCache()
    parts = [layer(x, causal_mask=True, cache=cache).numpy() for x in (X[:, :2], X[:, 2:3], X[:, 3:4])]
    np.testing.assert_allclose(np.concatenate(parts, 1), layer(X[:, :4], causal_mask=True).numpy(), atol=1e-5)
    assert repr(cache) == "KeyValueCache(positions=4, layers=1)"


def test_in_another_thread_which_records_nothing(device: str) -> None:
    model, cache, got = Model(), nn.KeyValueCache(), []
    model(IDS[:5], cache)
    thread = Thread(target=lambda: got.append(model(IDS[5:6], cache).numpy()))
    with ag.with_grad_tape():
        thread.start()
        thread.join()
    assert np.abs(got[0] - model(IDS[:6]).numpy()[:, 5:]).max() <= 1e-5


def test_clear_begins_again_and_a_copy_goes_on_apart() -> None:
    model, cache = Model(), nn.KeyValueCache()
    model(IDS[:5], cache)
    for twin in (copy.copy(cache), copy.deepcopy(cache)):
        other = IDS[7:8]
        got = model(other, twin).numpy()
        assert np.abs(got - model(np.concatenate([IDS[:5], other])).numpy()[:, 5:]).max() <= 1e-5
        assert twin.positions == 6 and cache.positions == 5
    cache.clear()
    assert cache.positions == 0
    assert np.abs(one_by_one(model, IDS[:, :1], 4, cache) - model(IDS[:, :1]).numpy()).max() <= 1e-5


def test_dropout_in_training_mode_means_the_same() -> None:
    """Each weight is dropped by itself with that probability; 20,000 samples average to what eval mode gives."""
    layer, many = nn.MultiheadAttention(2, 1, dropout=0.5), 20_000
    x = np.broadcast_to(RNG.normal(size=(2, 4, 1)), (2, 4, many)).astype(np.float32)
    cache = nn.KeyValueCache()
    parts = [layer(x[:, :2], causal_mask=True, cache=cache).numpy()]
    parts += [layer(x[:, i : i + 1], causal_mask=True, cache=cache).numpy() for i in (2, 3)]
    got, whole = np.concatenate(parts, axis=1), layer(x, causal_mask=True).numpy()
    nn.eval(layer)
    expected = layer(x[..., 0], causal_mask=True).numpy()
    error = 5 * got.std(axis=2) / np.sqrt(many)
    assert (np.abs(got.mean(axis=2) - expected) <= error).all() and (error > 0).any()
    np.testing.assert_allclose(got.std(axis=2), whole.std(axis=2), rtol=0.05)


def test_a_position_costs_as_many_launches_and_projections_as_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    from ag.nn import attention

    layer, cache, x = nn.MultiheadAttention(4, 2), nn.KeyValueCache(), RNG.normal(size=(4, 120)).astype("f")
    launches, times, matmul = [], [], attention.ag_matmul
    monkeypatch.setattr(attention, "ag_matmul", lambda W, x: (times.append(x.shape[1]), matmul(W, x))[1])
    for i in range(120):
        with ag.profile() as seen:
            layer(x[:, i : i + 1], causal_mask=True, cache=cache)
        launches.append(len(seen.events))
    assert set(times) == {1} and len(times) == 4 * 120
    assert len(set(launches[1:])) == 1


def written(layer: nn.MultiheadAttention) -> None:
    layer.W_v.data = layer.W_v.data


def stepped(layer: nn.MultiheadAttention) -> None:
    layer.W_k -= 0.5


def replaced(layer: nn.MultiheadAttention) -> None:
    layer.W_k = ag.ag_param(layer.W_k.numpy())


def adopted(layer: nn.MultiheadAttention) -> None:
    ag.optim.Adam(layer)


@pytest.mark.parametrize("change", [written, stepped, replaced, adopted])
def test_weights_that_changed_or_moved(device: str, change: Callable[[nn.MultiheadAttention], None]) -> None:
    layer = nn.MultiheadAttention(4, 2)
    cache = begun(layer)
    change(layer)
    with expect_error(change.__name__, ag.CacheError, "W_", "changed or moved", "3 positions", "cache.clear()"):
        go_on(layer, cache)
    cache.clear()
    layer(X[:, :4], causal_mask=True, cache=cache)
    np.testing.assert_allclose(go_on(layer, cache).numpy(), layer(X[:, :5], causal_mask=True).numpy()[:, 4:], atol=1e-5)


def test_a_training_step_between_two_positions(device: str) -> None:
    layer = nn.MultiheadAttention(4, 2)
    optimizer = ag.optim.SGD(layer)
    for step in (lambda x: train(layer, optimizer, x), ag.ag_capture(lambda x: train(layer, optimizer, x))):
        step(ag.ag_tensor(X))
        cache = begun(layer)
        go_on(layer, cache)
        step(ag.ag_tensor(X))
        with expect_error("trained", ag.CacheError, "W_", "4 positions"):
            go_on(layer, cache)


def train(layer: nn.MultiheadAttention, optimizer: ag.optim.SGD, x: ag.Tensor) -> None:
    with ag.with_grad_tape():
        loss = ops.sum(layer(x) ** 2)
    optimizer.step(ag.backward(loss))


def test_arguments_that_do_not_go_with_a_cache() -> None:
    layer: Any = nn.MultiheadAttention(4, 2)
    with expect_error("no mask", ValueError, "causal_mask is False", "causal_mask=True"):
        layer(X, cache=nn.KeyValueCache())
    for others in ({"k": X}, {"v": X}, {"k": X, "v": X}):
        with expect_error("keys", ValueError, "k or v was given with a cache"):
            layer(X, **others, causal_mask=True, cache=nn.KeyValueCache())
    with expect_error("no cache", TypeError, "cache is a dict", "ag.nn.KeyValueCache()"):
        layer(X, causal_mask=True, cache={})


def test_positions_and_batches_that_do_not_follow(device: str) -> None:
    layer = nn.MultiheadAttention(4, 2)
    cache = begun(layer)
    for count in (0, 2, 3):
        with expect_error("several", ag.ShapeError, f"{count} positions were given, after 3 in the cache"):
            layer(X[:, 3 : 3 + count], causal_mask=True, cache=cache)
    for x in (X[:, 3:4, None], np.ones((4, 1, 2), "f")):
        with expect_error("batch", ag.ShapeError, f"the input is {x.shape}", "keys of shape (4, 3)"):
            layer(x, causal_mask=True, cache=cache)
    assert cache.positions == 3
    np.testing.assert_allclose(go_on(layer, cache).numpy(), layer(X[:, :4], causal_mask=True).numpy()[:, 3:], atol=1e-5)


def test_a_model_beyond_its_places() -> None:
    """A slice past the end is empty, and would make an empty result of any token."""
    model, cache = Model(), nn.KeyValueCache()
    model(RNG.integers(WORDS, size=(CONTEXT, 1)), cache)
    with expect_error("full", ag.ShapeError, f"0 positions were given, after {CONTEXT} in the cache"):
        model(IDS[:1, :1], cache)


def test_another_device_or_element_type() -> None:
    layer = nn.MultiheadAttention(4, 2)
    cache = begun(layer)
    layer.to("cpu:1")
    with expect_error("device", ag.DeviceError, "the input is on cpu:1 and the cache on cpu"):
        go_on(layer, cache)
    layer.to("cpu")
    with expect_error("moved and back", ag.CacheError, "W_q was changed or moved"):
        go_on(layer, cache)
    cache = begun(layer)
    for name, p in layer.parameters().items():
        setattr(layer, name, ag.ag_param(p.numpy(), dtype="f64"))
    with expect_error("element type", ag.DtypeError, "element type f64 and the cache f32"):
        layer(ag.ag_tensor(X[:, 3:4], dtype="f64"), causal_mask=True, cache=cache)


def test_while_gradients_are_recorded() -> None:
    layer = nn.MultiheadAttention(4, 2)
    cache = begun(layer)
    with ag.with_grad_tape():
        with expect_error("tape", ag.TapeError, "gradients are recorded", "with ag.no_grad():"):
            go_on(layer, cache)
        with expect_error("recorded later", ag.TapeError, "gradients are recorded"):
            ag.ag_checkpoint(lambda x: layer(x, causal_mask=True, cache=cache), ag.ag_tensor(X[:, 3:4]))
        with ag.no_grad():
            assert go_on(layer, cache).shape == (4, 1) and cache.positions == 4


def test_in_a_captured_step_and_in_an_export(device: str) -> None:
    layer = nn.MultiheadAttention(4, 2)
    cache = begun(layer)
    step = ag.ag_capture(lambda x: layer(x, causal_mask=True, cache=cache))
    with expect_error("captured", ag.CaptureError, "a cache was given inside ag_capture"):
        step(ag.ag_tensor(X[:, 3:4]))
    assert cache.positions == 3 and go_on(layer, cache).shape == (4, 1)


def test_in_an_export() -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed, so nothing was exported")

    class Cached(nn.Layer):
        def __init__(self) -> None:
            self.attention = nn.MultiheadAttention(4, 2)

        def forward(self, x: ag.Tensor) -> ag.Tensor:
            return self.attention(x, causal_mask=True, cache=nn.KeyValueCache())

    with expect_error("exported", ag.ExportError, "a cache was given while the model is exported"):
        ag.export_onnx(Cached(), "model.onnx", X)


def test_it_cannot_be_pickled() -> None:
    with expect_error("pickle", TypeError, "KeyValueCache: it cannot be pickled"):
        pickle.dumps(begun(nn.MultiheadAttention(4, 2)))


def test_a_forward_pass_that_ended_midway() -> None:
    first, second = nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2)
    for begin in (1, 3):
        cache = begun(first, begin)
        second(X[:, :begin], causal_mask=True, cache=cache)
        go_on(first, cache)
        assert repr(cache) == f"KeyValueCache(positions={begin} to {begin + 1}, layers=2)"
        with expect_error("read", ag.CacheError, f"{begin + 1} positions and others {begin}", "cache.clear()"):
            _ = cache.positions
        with expect_error("next", ag.CacheError, f"has seen {begin + 1} positions and another {begin}"):
            first(X[:, 4:5], causal_mask=True, cache=cache)


@pytest.mark.parametrize("read", [False, True])
def test_a_first_pass_that_ended_midway(read: bool) -> None:
    first, second = nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2)
    cache = begun(first, 3)
    with expect_error("again", ag.ShapeError, "3 positions were given, after 3"):
        first(X[:, :3], causal_mask=True, cache=cache)
    cache = begun(first, 1)
    assert not read or cache.positions == 1
    first(X[:, 1:2], causal_mask=True, cache=cache)
    for new in (1, 2):
        with expect_error("new", ag.CacheError, f"new to the cache, with {new} of the positions of which others have "
                                                f"seen 2"):
            second(X[:, :new], causal_mask=True, cache=cache)


def test_a_cache_of_another_model_or_read_inside() -> None:
    first, second = nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2)
    cache = begun(first)
    assert cache.positions == 3
    with expect_error("another", ag.CacheError, "cache.positions was read inside one", "another model's"):
        second(X[:, :3], causal_mask=True, cache=cache)


def test_a_layer_that_stands_in_two_places() -> None:
    shared, other = nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2)
    cache = nn.KeyValueCache()
    with expect_error("twice", ag.CacheError, "has seen 2 positions and another 1", "called twice"):
        for layer in (shared, other, shared) * 2:
            layer(X[:, :1], causal_mask=True, cache=cache)


def test_layers_are_held_weakly() -> None:
    layer = nn.MultiheadAttention(4, 2)
    cache = begun(layer)
    assert cache.positions == 3
    del layer
    gc.collect()
    assert cache.positions == 0
    pair = nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2)
    for layer in pair:  # another model may begin
        layer(X[:, :2], causal_mask=True, cache=cache)
    assert cache.positions == 2


def test_a_thread_that_goes_on_with_the_same_cache_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    from ag.nn import attention

    layer, heads = nn.MultiheadAttention(4, 2), attention.attention_of_heads
    cache = begun(layer)

    def meanwhile(*args: Any) -> ag.Tensor:
        monkeypatch.setattr(attention, "attention_of_heads", heads)
        thread = Thread(target=lambda: go_on(layer, cache))
        thread.start()
        thread.join()
        return heads(*args)

    monkeypatch.setattr(attention, "attention_of_heads", meanwhile)
    with expect_error("two threads", ag.CacheError, "somebody else went on with the cache"):
        go_on(layer, cache)
    assert cache.positions == 4


@pytest.mark.slow  # tries each line
def test_an_interrupt_anywhere_in_a_forward_pass() -> None:
    """Go on after the interrupt: no layer or all saw the position, and results are right, or a CacheError is raised."""
    model = Model()
    whole = model(IDS[:7]).numpy()
    inside = ("attention.py", "key_value_cache.py", "test_key_value_cache.py")

    def within(frame: FrameType) -> bool:
        return frame.f_code.co_filename.endswith(inside)

    def interrupt() -> None:
        raise KeyboardInterrupt

    noticed, number = 0, 0
    while True:
        number += 1
        cache = nn.KeyValueCache()
        model(IDS[:5], cache)
        try:
            with at_place(number, interrupt, within) as seen:
                model(IDS[5:6], cache)
        except KeyboardInterrupt:
            pass
        if seen[0] < number:
            break
        try:
            if cache.positions == 5:
                model(IDS[5:6], cache)
            got = model(IDS[6:7], cache).numpy()
        except ag.CacheError:
            noticed += 1
        else:
            assert np.abs(got - whole[:, 6:]).max() <= 1e-5, number
    assert number > 50 and noticed > 5
