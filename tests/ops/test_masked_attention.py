"""Attention with masks, biases, windows, shared heads and segments, against attention written out in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from table.rows import EPS, Array, restart_generator, tensor

import ag
from ag.engine.compile.pipeline import record
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
    case = Case((2, 1, 3, 2, 3, 4, 2), **{**variant, "rate": 0.0})
    params = {name: ag.ag_param(x, dtype="f64") for name, x in vars(case).items() if name in "qkv" or (
        name == "bias" and x is not None)}
    g = ag.ag_tensor(case.g, dtype="f64")
    assert ag.ag_gradcheck(lambda t: ag.ag_sum(case.call(*t.values()) * g), params, quiet=True)


@pytest.mark.parametrize(("shape", "variant"), [
    pytest.param(shape, variant, marks=pytest.mark.slow_on(*["lavapipe"] * ((i, j) != (1, 9)), "swiftshader"))
    for i, shape in enumerate(SHAPES) for j, variant in enumerate(VARIANTS)], ids=str)
def test_kernels(device: str, shape: tuple[int, ...], variant: dict[str, Any]) -> None:
    case = Case(shape, **variant)
    found, again = (case.step(device) for _ in range(2))
    for got, repeated, want in zip(found, again, case.step("cpu", "f64"), strict=True):
        np.testing.assert_array_equal(got, repeated)
        np.testing.assert_allclose(got, want, rtol=0, atol=400 * EPS["f32"] * max(1, np.abs(want).max()))


@pytest.mark.slow_on("swiftshader")
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


@pytest.mark.slow_on("swiftshader")
def test_a_query_that_sees_nothing(device: str) -> None:
    """0, and a gradient of 0, however nothing is seen."""
    rng = np.random.default_rng(0)
    for terms in ({"attn_mask": np.arange(3)[:, None, None] != 1},
                  {"attn_bias": np.where(np.arange(3) == 1, -np.inf, 0.0)[:, None, None].astype(np.float32)},
                  {"segments": (np.array([0, 5, 0]), np.zeros(4, int))},
                  {"attn_mask": np.arange(3)[:, None, None] != 1, "alibi": [1.0], "window": 2, "causal": True}):
        q, k, v = (ag.ag_param(rng.standard_normal((2, n, 2)).astype(np.float32)) for n in (3, 4, 4))
        with ag.with_grad_tape():
            out = ag.ops.attention(q, k, v, **terms)
            loss = ag.ag_sum(out * out + out)
        grads = ag.backward(loss)
        assert not out.numpy()[:, 1].any() and out.numpy()[:, [0, 2]].all(), terms
        assert not grads[q].numpy()[:, 1].any() and all(np.isfinite(grads[x].numpy()).all() for x in (q, k, v)), terms


@pytest.mark.slow_on("swiftshader")
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_terms_of_16_bit_attention(device: str, dtype: str) -> None:
    """A bias and slopes may stay in float32; numbers of segments are exact beyond the range of the type."""
    case = Case(SHAPES[1], mask=(0, 0, 1, 1), bias=(1, 1, 1, 0), alibi=True)
    ids = 100_000 + (np.arange(7) > 3), 100_000 + (np.arange(9) > 4)
    q, k, v = (tensor(x, backend_of(device), dtype, param=True) for x in (case.q, case.k, case.v))
    bias = ag.ag_param(case.bias.astype(np.float32))
    with ag.with_grad_tape():
        case.terms["segments"] = ids
        out = case.call(q, k, v, bias)
        loss = ag.ag_sum(out * tensor(case.g, backend_of(device), dtype))
    grads = ag.backward(loss)
    assert out.dtype == dtype and grads[bias].dtype == "f32"
    want = case.step("cpu", "f64")
    for got, exact in zip([out, *(grads[x] for x in (q, k, v, bias))], want, strict=True):
        room = (0.01 if dtype == "f16" else 0.08) * abs(exact).max()
        np.testing.assert_allclose(got.numpy(), exact, rtol=0, atol=room)


@pytest.mark.slow_on("swiftshader")
def test_samples_first_change_no_result(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = backend_of(device)
    if device == "cpu":
        pytest.skip("cards put samples first")
    for variant in VARIANTS[3], VARIANTS[9]:
        case = Case((2, 1, 8, 4, 70, 36, 3), **variant)
        want = case.step(device)
        monkeypatch.setattr(type(backend.target), "samples_first", lambda *_sizes: True)
        with record(backend) as recording:
            case.call(*(tensor(x, backend) for x in (case.q, case.k, case.v, case.bias)))
        assert [x.params["samples"] for x in recording.launches if x.primitive.name == "masked_attention"] == [3]
        for got, wanted in zip(case.step(device), want, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
        monkeypatch.undo()


@pytest.mark.slow_on("swiftshader")
def test_heads_of_many_features(device: str) -> None:
    for shape in ((1, 1, 200, 136, 5, 9, 2), (2, 1, 130, 256, 3, 4, 1)):
        case = Case(shape, mask=(0, 1, 1, 0), bias=(0, 1, 1, 0))
        for got, want in zip(case.step(device), case.step("cpu", "f64"), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * max(1, np.abs(want).max()))


q, k = np.zeros((4, 3, 2), np.float32), np.zeros((4, 5, 2), np.float32)
WRONG = [
    ({"attn_mask": np.ones((3, 5))}, "attn_mask is of type float64; True and False are required"),
    ({"attn_mask": np.ones((4, 5), bool)}, r"attn_mask is \(4, 5\), and .* batch are \(2, 3, 5, 2\)"),
    ({"attn_bias": np.ones(5)}, r"attn_bias is \(5,\).*each equal or 1"),
    ({"kv_heads": 3}, "kv_heads is 3; it must be a whole number that divides"), ({"softcap": -1.0}, "softcap is -1.0"),
    ({"kv_heads": 1}, r"k is \(4, 5, 2\).*as many features in each of 2 and 1 heads"),
    ({"window": -1}, "window is -1"), ({"window": (1, 2, 3)}, r"window is \(1, 2, 3\)"),
    ({"alibi": [1.0]}, "a constant for each of 2 heads"),
    ({"segments": np.zeros(3, int)}, r"segments are \(3,\), where the sequence has 5 times"),
    ({"segments": np.zeros(3)}, "segments are of type float64"), ({"scale": "1"}, "scale is '1'; a number is required"),
    ({"alibi": ag.ag_param([1.0, 2.0])}, "which is trained; a constant for each"),
    ({"dropout": 1.0, "scale": 1.0}, "dropout is 1.0")]


@pytest.mark.parametrize(("terms", "words"), WRONG, ids=lambda x: str(x)[:30])
def test_wrong_terms(terms: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match="ag_attention: .*" + words):
        ag.ops.attention(q, k, k, heads=2, **terms)


def test_a_mask_that_could_mean_two_things() -> None:
    x, mask = np.random.default_rng(0).standard_normal((2, 3, 3)), np.tri(3, dtype=bool)
    with pytest.raises(ag.ShapeError, match=r"it could be \(1, 3, 3, 1\) or \(1, 1, 3, 3\); give it that shape"):
        ag.ops.attention(x, x, x, attn_mask=mask)
    np.testing.assert_allclose(ag.ops.attention(x, x, x, attn_mask=mask[:, :, None][None]).numpy(),
                               ag.ops.attention(x, x, x, causal=True).numpy(), rtol=1e-6)
    for shape, same in (((3, 1), (1, 1, 3, 1)), ((3, 3, 1), (1, 3, 3, 1))):  # of one sample
        bias = np.random.default_rng(1).standard_normal(shape)
        one = x[..., :1]
        np.testing.assert_array_equal(ag.ops.attention(one, one, one, attn_bias=bias).numpy(),
                                      ag.ops.attention(one, one, one, attn_bias=bias.reshape(same)).numpy())


def test_terms_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    case = Case((4, 2, 8, 8, 6, 9, 3), mask=(0, 1, 1, 1), bias=(1, 1, 1, 0))

    def heads_first(x: Array, heads: int) -> Any:
        return torch.tensor(x.reshape(heads, -1, *x.shape[1:]).transpose(3, 0, 2, 1), requires_grad=True)

    given = [heads_first(x, n) for x, n in ((case.q, 4), (case.k, 2), (case.v, 2))]
    bias, seen = (torch.tensor(x.transpose(3, 0, 1, 2)) for x in (case.bias, case.terms["attn_mask"]))
    seen[..., 0] = case.terms["attn_mask"][:, :, 0] = True
    bias.requires_grad_()
    out = F.scaled_dot_product_attention(*given, attn_mask=bias.masked_fill(~seen, -np.inf), enable_gqa=True, scale=0.3)
    (out * heads_first(case.g, 4).detach()).sum().backward()
    case.terms["scale"] = 0.3
    found = [x.detach().numpy().transpose(1, 3, 2, 0) for x in (out, *(x.grad for x in given))]
    want = [x.reshape(-1, *x.shape[2:]) for x in found] + [bias.grad.numpy().transpose(1, 2, 3, 0)]
    for got, exact in zip(case.step("cpu", "f64"), want, strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-9, atol=1e-12)


def test_the_layer_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.MultiheadAttention(8, 2, kdim=5, vdim=3, dtype=torch.float64)
    layer = ag.nn.MultiheadAttention(8, 2, qkv_bias=True, kdim=5, vdim=3)
    rng = np.random.default_rng(0)
    with torch.no_grad():
        theirs.in_proj_bias.copy_(torch.tensor(rng.standard_normal(24)))
        theirs.out_proj.bias.copy_(torch.tensor(rng.standard_normal(8)))
    W = [theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight, theirs.out_proj.weight]
    b = [*theirs.in_proj_bias.chunk(3), theirs.out_proj.bias]
    layer.load_state_dict({f"{kind}_{x}": t.detach().numpy().reshape(t.shape[0], -1)
                           for kind, ts in (("W", W), ("b", b)) for x, t in zip("qkvo", ts, strict=True)})
    x, y, z = (rng.standard_normal((f, n, 2)) for f, n in ((8, 4), (5, 6), (3, 6)))
    padding = np.arange(6)[:, None] < [6, 4]
    want = theirs(*(torch.tensor(t.transpose(1, 2, 0)) for t in (x, y, z)), key_padding_mask=torch.tensor(~padding.T),
                  need_weights=False)[0]
    np.testing.assert_allclose(layer(x, y, z, attn_mask=padding).numpy(), want.detach().numpy().transpose(2, 0, 1),
                               rtol=1e-5, atol=1e-5)


def test_a_layer_with_shared_heads(tmp_path: Any) -> None:
    layer = ag.nn.MultiheadAttention(8, 4, kv_heads=2, qkv_bias=True, bias=False)
    assert {name: x.shape for name, x in layer.parameters().items()} == {
        "W_q": (8, 8), "W_k": (4, 8), "W_v": (4, 8), "W_o": (8, 8), "b_q": (8, 1), "b_k": (4, 1), "b_v": (4, 1)}
    x = ag.ag_tensor(np.random.default_rng(0).standard_normal((8, 5, 3)))
    ag.ag_save_model(layer, tmp_path / "layer.ag")
    again, cache, cached = ag.ag_load_model(tmp_path / "layer.ag"), ag.nn.KeyValueCache(), []
    for part in (x[:, :3], x[:, 3:4], x[:, 4:]):
        cached.append(again(part, causal_mask=True, cache=cache).numpy())
    np.testing.assert_allclose(np.concatenate(cached, 1), layer(x, causal_mask=True).numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="window, alibi or segments were given with a cache"):
        layer(x, causal_mask=True, cache=ag.nn.KeyValueCache(), window=2)
    with pytest.raises(ValueError, match="n_heads is 4 and kv_heads 3; kv_heads must divide"):
        ag.nn.MultiheadAttention(8, 4, kv_heads=3)
