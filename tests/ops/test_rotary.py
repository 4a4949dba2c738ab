"""Rotary positions: exact at any position, in one launch, and those of the models that have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag import ops

RNG = np.random.default_rng(5)
Array = np.ndarray[Any, Any]
TAU = 2 * math.pi


def refused(error: type[BaseException], call: Callable[[], object], *fragments: str) -> None:
    with expect_error(" ".join(fragments), error, *fragments):
        call()


def cosines(frequencies: Array, position: int) -> Array:
    """Cosine and sine of angles, which are reduced in whole numbers of 2**-60."""
    turns = [int(f * 2**60 / TAU) * position % 2**60 / 2**60 for f in frequencies.tolist()]
    return np.array([*map(math.cos, np.multiply(turns, 2 * math.pi)), *map(math.sin, np.multiply(turns, 2 * math.pi))])


@pytest.mark.parametrize("position", [1, 4095, 131_072, 1_000_003, 2**31 - 1, -131_072])
def test_large_positions_are_as_exact_as_small_ones(device: str, position: int) -> None:
    unit = np.zeros((128, 1), np.float32)
    unit[:64] = 1
    want = cosines(500_000.0 ** -(np.arange(0, 128, 2) / 128), position)
    for given in (position, np.array([position])):
        got = ops.rope(ag.ag_tensor(unit, device), positions=given, base=500_000.0).numpy().ravel()
        assert np.abs(got - want).max() < 3e-7


def test_products_depend_on_the_distance_alone(device: str) -> None:
    q, k = (ag.ag_tensor(x, device) for x in RNG.standard_normal((2, 64, 1)))
    dots = [(ops.rope(q, positions=at) * ops.rope(k, positions=at + 7)).sum().item() for at in (0, 11, 100_000)]
    assert np.ptp(dots) < 1e-5


def test_queries_and_keys_turn_in_one_launch(device: str) -> None:
    q, k = ag.ag_tensor(RNG.standard_normal((32, 5, 2)), device), ag.ag_tensor(RNG.standard_normal((8, 5, 2)), device)
    ops.rope(q, k, heads=4, positions=3)  # which uploads the frequencies
    with ag.profile() as launches:
        got = ops.rope(q, k, heads=4, positions=3)
    assert [event.kernel for event in launches.events] == ["rope_pair"]
    for out, x, heads in zip(got, (q, k), (4, 1), strict=True):
        assert (out.numpy() == ops.rope(x, heads=heads, positions=3).numpy()).all()


def test_each_has_its_own_gradient(device: str) -> None:
    x, y = RNG.standard_normal((2, 8, 3))
    g = ag.ag_tensor(RNG.standard_normal((8, 3)), device)
    for needs_q, needs_k in ((True, True), (True, False), (False, True)):
        with ag.ag_device(device):
            q = ag.ag_param(x) if needs_q else ag.ag_tensor(x)
            k = ag.ag_param(y) if needs_k else ag.ag_tensor(y)
            with ag.with_grad_tape():
                both = ops.rope(q, k, heads=2, positions=9)
                assert [t.requires_grad for t in both] == [needs_q, needs_k]
                loss = ag.ag_sum(both[0] * g) + 2 * ag.ag_sum(both[1] * g)
            grads = ag.backward(loss)
        back = ops.rope(g, heads=2, positions=[-9, -10, -11]).numpy()
        for p, factor in ((q, 1), (k, 2)):
            assert not p.requires_grad or np.allclose(grads[p].numpy(), factor * back, atol=1e-5)


def test_gradients_in_float64() -> None:
    params = {name: ag.ag_param(RNG.standard_normal((12, 3, 2)), dtype="f64") for name in "qk"}
    for settings in ({}, {"interleaved": True, "rotary_dim": 4}, {"scaling": YARN}, {"positions": [[5, 9]] * 3}):
        assert ag.ag_gradcheck(lambda t, s=settings: sum(ag.ag_sum(ag.ops.square(x) * x) for x in ops.rope(
            t["q"], t["k"], heads=2, **s)), params, quiet=True)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_16_bits_round_once(device: str, dtype: str) -> None:
    with ag.ag_device(device):
        q, k = (ag.ag_tensor(x, dtype=dtype) for x in RNG.standard_normal((2, 8, 3)))
        for out, x in zip(ops.rope(q, k, positions=1000), (q, k), strict=True):
            assert out.dtype == dtype
            assert (out.numpy() == ops.rope(x.astype("f32"), positions=1000).astype(dtype).numpy()).all()


def test_a_captured_step_follows_positions_on_the_device(device: str) -> None:
    with ag.ag_device(device):
        x, y = (ag.ag_tensor(t) for t in RNG.standard_normal((2, 8, 3, 2)))
        step = ag.ag_capture(lambda at: ops.rope(x, y, positions=at))
        for at in (0, 5, 70_000, 131_069):
            for given in (ag.ag_tensor(np.array(at), dtype="i32"), np.arange(at, at + 3), np.array(at)):
                got, want = step(given), ops.rope(x, y, positions=at)
                assert all((a.numpy() == b.numpy()).all() for a, b in zip(got, want, strict=True))
        assert step.kinds == len(step._programs) == 3


def test_special_numbers_stay_in_their_pair(device: str) -> None:
    x = np.ones((6, 2), np.float32)
    x[1, 0], x[5, 1] = np.nan, np.inf
    out = ops.rope(ag.ag_tensor(x, device), rotary_dim=4, positions=1).numpy()
    assert np.isnan(out).tolist() == [[False, False], [True, False], [False, False], [True, False]] + [[False] * 2] * 2
    assert out[5, 1] == np.inf


# Inverse frequencies and factors that Hugging Face transformers 4.46 computes (modeling_rope_utils.py).
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


def llama3(f: Array) -> Array:
    """As transformers: by wave lengths."""
    length = 2 * math.pi / f
    smooth = (8192 / length - 1.0) / (4.0 - 1.0)
    between = (1 - smooth) * f / 8.0 + smooth * f
    return np.where(length > 8192 / 1.0, f / 8.0, np.where(length < 8192 / 4.0, f, between))


def yarn(f: Array) -> Array:
    """As transformers, at 64 features and the base 10,000: pair 10 is the last that is quick, 23 the first slow one."""
    ramp = np.clip((np.arange(32) - 10) / (23 - 10), 0, 1)
    return f / 4.0 * ramp + f * (1 - ramp)


@pytest.mark.parametrize(("scaling", "base", "rule", "factor"), [
    ({"type": "linear", "factor": 3.0}, 10_000.0, lambda f: f / 3, 1.0), (LLAMA3, 500_000.0, llama3, 1.0),
    (YARN, 10_000.0, yarn, 0.1 * math.log(4) + 1), ({**YARN, "attention_factor": 1.5}, 10_000.0, yarn, 1.5),
    ({**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}, 10_000.0, yarn,
     (0.07 * math.log(4) + 1) / (0.1 * math.log(4) + 1))])
def test_scaled_frequencies(scaling: dict[str, Any], base: float, rule: Any, factor: float) -> None:
    unit = np.zeros((64, 1))
    unit[:32] = 1
    want = factor * cosines(rule(base ** -(np.arange(0, 64, 2) / 64)), 9001)
    got = ops.rope(ag.ag_tensor(unit, dtype="f64"), positions=9001, base=base, scaling=scaling).numpy().ravel()
    assert np.abs(got - want).max() < 1e-11


def test_what_does_not_turn_has_no_factor() -> None:
    out = ops.rope(np.ones((8, 1)), rotary_dim=4, scaling=YARN).numpy().ravel()
    assert np.allclose(out, [1 + 0.1 * math.log(4)] * 4 + [1] * 4)


def test_errors_say_what_is_needed() -> None:
    x = ag.ag_tensor(np.ones((8, 3)))
    refused(TypeError, lambda: ops.rope(x, scaling=8.0), "rope: scaling is a float")
    refused(TypeError, lambda: ops.rope(x, scaling={**YARN, "truncate_": 1}), "rope: ", "truncate_", "beta_fast")
    refused(TypeError, lambda: ops.rope(x, scaling={**YARN, "factor": x}), "rope: ", "factor")
    refused(ValueError, lambda: ops.rope(x, scaling={**YARN, "factor": -1}), "rope: factor is -1", "above 0")
    refused(ValueError, lambda: ops.rope(x, scaling={**LLAMA3, "high_freq_factor": 1}), "rope: low_freq_factor")
    refused(ag.DtypeError, lambda: ops.rope(x, positions=ag.ag_tensor([0.0, 1.0, 2.0])), "rope: ", "f32", "i32")
    refused(ag.DtypeError, lambda: ops.rope(x, positions=True), "rope: ", "bool", "i32")
    refused(ag.DtypeError, lambda: ops.rope(x, x.astype("f16")), "rope: ", "f32 and f16")
    refused(ag.DeviceError, lambda: ops.rope(x, positions=ag.ag_tensor([0, 1, 2], "cpu:1", "i32")), "rope: ",
                 "cpu:1 (the positions)")
