"""Attention with masks, biases, windows, shared heads and segments, against attention written out in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from table.rows import EPS, Array, restart_generator, tensor

import ag
from ag.engine.device import backend_of

# heads, kv_heads, d, dv, queries, keys, batch
SHAPES = [(1, 1, 4, 3, 1, 1, 1), (2, 1, 5, 4, 7, 9, 3), (4, 2, 8, 8, 66, 35, 2), (3, 3, 16, 33, 33, 70, 1)]
VARIANTS: list[dict[str, Any]] = [
    {}, {"mask": (0, 0, 1, 1)}, {"mask": (0, 1, 1, 0), "causal": True}, {"mask": (1, 1, 1, 1), "bias": (1, 1, 1, 0)},
    {"bias": (0, 1, 1, 0), "rate": 0.3}, {"bias": (0, 0, 1, 1), "softcap": 1.5, "scale": 0.7},
    {"window": (3, 1), "alibi": True}, {"segments": True, "causal": True}, {"bias": (1, 1, 1, 1), "window": 4},
    {"mask": (0, 1, 1, 1), "bias": (1, 0, 0, 1), "softcap": 2.0, "window": (2, 5), "alibi": True, "segments": True,
     "rate": 0.25}]


class Case:
    """Operands of one shape, with the terms that a variant asks for."""

    def __init__(self, shape: tuple[int, ...], mask: Any = None, bias: Any = None, alibi: bool = False,
                 segments: bool = False, rate: float = 0.0, **terms: Any) -> None:
        self.heads, self.kv_heads, d, dv, queries, keys, batch = shape
        rng = np.random.default_rng([*shape, rate > 0])
        sizes = self.sizes = (self.heads, queries, keys, batch)
        draw = rng.standard_normal
        self.q, self.k = draw((self.heads * d, queries, batch)), draw((self.kv_heads * d, keys, batch))
        self.v, self.g = draw((self.kv_heads * dv, keys, batch)), draw((self.heads * dv, queries, batch))
        self.terms, self.rate = terms, rate
        if mask:
            shape = [n if along else 1 for n, along in zip(sizes, mask, strict=True)]
            self.terms["attn_mask"] = rng.random(shape) < 0.6
        self.bias = draw([n if along else 1 for n, along in zip(sizes, bias, strict=True)]) if bias else None
        if alibi:
            self.terms["alibi"] = 2.0 ** -np.arange(1, self.heads + 1)
        if segments:
            self.terms["segments"] = tuple(np.sort(rng.integers(0, 3, (n, batch)), 0) for n in (queries, keys))

    def expected(self, uniform: Array | None = None) -> Array:
        """The result, one sample, head and query at a time."""
        heads, queries, keys, batch = self.sizes
        q, k, v = (x.reshape(n, -1, *x.shape[1:]) for x, n in (
            (self.q, heads), (self.k, self.kv_heads), (self.v, self.kv_heads)))
        out = np.zeros((heads, v.shape[1], queries, batch))
        bias = np.broadcast_to(0.0 if self.bias is None else self.bias, self.sizes)
        mask = np.broadcast_to(self.terms.get("attn_mask", True), self.sizes)
        window = self.terms.get("window", keys + queries)
        before, after = window if isinstance(window, tuple) else (window, window)
        for h, i, n in np.ndindex(heads, queries, batch):
            j, kv = np.arange(keys), h // (heads // self.kv_heads)
            score = q[h, :, i, n] @ k[kv, :, :, n] * self.terms.get("scale", 1 / np.sqrt(q.shape[1]))
            if cap := self.terms.get("softcap"):
                score = cap * np.tanh(score / cap)
            score = score + bias[h, i, :, n] - (self.terms["alibi"][h] * abs(i - j) if "alibi" in self.terms else 0)
            seen = mask[h, i, :, n] & (j <= i + after) & (j >= i - before)
            if self.terms.get("causal"):
                seen &= j <= i
            if "segments" in self.terms:
                seen &= self.terms["segments"][0][i, n] == self.terms["segments"][1][:, n]
            w = np.where(seen, np.exp(score), 0)
            w /= w.sum() or 1
            if uniform is not None:
                w = w * (uniform[n, h, i] >= np.float32(self.rate)) / (1 - self.rate)
            out[h, :, i, n] = v[kv, :, :, n] @ w
        return out.reshape(-1, queries, batch)

    def call(self, q: Any, k: Any, v: Any, bias: Any = None) -> ag.Tensor:
        return ag.ops.attention(q, k, v, heads=self.heads, kv_heads=self.kv_heads, attn_bias=bias, dropout=self.rate,
                                **self.terms)

    def step(self, device: str, dtype: str = "f32") -> list[Array]:
        """The result and its gradients."""
        backend = backend_of(device)
        restart_generator(backend)
        given = [x for x in (self.q, self.k, self.v, self.bias) if x is not None]
        params = [tensor(x, backend, dtype, param=True) for x in given]
        with ag.with_grad_tape():
            out = self.call(*params)
            loss = ag.ag_sum(out * tensor(self.g, backend, dtype))
        grads = ag.backward(loss)
        return [out.numpy(), *(grads[x].numpy() for x in params)]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_result(shape: tuple[int, ...], variant: dict[str, Any]) -> None:
    case = Case(shape, **variant)
    uniform = None
    if case.rate:
        from table.oracles import uniform as drawn
        h, i, j, n = case.sizes
        uniform = np.asarray(drawn(n * h * i * j)).reshape(n, h, i, j)
    np.testing.assert_allclose(case.step("cpu", "f64")[0], case.expected(uniform), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_gradients(variant: dict[str, Any]) -> None:
    case = Case(SHAPES[1], **{**variant, "rate": 0.0})
    params = {name: ag.ag_param(x, dtype="f64") for name, x in vars(case).items() if name in "qkv" or (
        name == "bias" and x is not None)}
    g = ag.ag_tensor(case.g, dtype="f64")
    assert ag.ag_gradcheck(lambda t: ag.ag_sum(case.call(*t.values()) * g), params, quiet=True)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(device: str, shape: tuple[int, ...], variant: dict[str, Any]) -> None:
    case = Case(shape, **variant)
    found, again = (case.step(device) for _ in range(2))
    for got, repeated, want in zip(found, again, case.step("cpu", "f64"), strict=True):
        np.testing.assert_array_equal(got, repeated)
        np.testing.assert_allclose(got, want, rtol=0, atol=400 * EPS["f32"] * max(1, np.abs(want).max()))


def test_masks_are_arguments_of_a_captured_step_or_computed_in_it(device: str) -> None:
    rng = np.random.default_rng(0)
    W = ag.ag_param(rng.standard_normal((1, 5, 7, 1)).astype(np.float32))
    q, k, v = (ag.ag_tensor(rng.standard_normal((8, n, 2))) for n in (5, 7, 7))

    positions, zeros = ag.ag_tensor(np.arange(7.0)), ag.ag_tensor(np.zeros((7, 1)), dtype="i32")

    def step(q: Any, mask: Any, lengths: Any, ids: Any) -> list[ag.Tensor]:
        with ag.with_grad_tape():
            padding = positions < lengths
            one = ag.ops.attention(q, k, v, heads=2, attn_mask=mask, attn_bias=W)
            two = ag.ops.attention(one, k, v, heads=2, attn_mask=padding, attn_bias=W, alibi=[0.5, 0.25],
                                   segments=(ids, zeros))
            loss = ag.ag_sum(two * two)
        return [two, ag.backward(loss)[W]]

    captured = ag.ag_capture(step)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        given = q * (seed + 1), rng.random((5, 7, 1)) < 0.7, np.float32([[seed + 1, 7]]), rng.integers(0, 2, (5,))
        for got, want in zip(captured(*given), step(*given), strict=True):
            assert got.numpy().tobytes() == want.numpy().tobytes()
