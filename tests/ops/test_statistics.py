"""Edges of statistics: equal elements, infinite and huge ones, zeros, and nothing at all; values are PyTorch's."""

from __future__ import annotations

import numpy as np
from helpers.errors import expect_error

import ag
from ag import ops


def gradient(function: object, x: object) -> np.ndarray:
    p = ag.ag_param(x)
    with ag.with_grad_tape():
        loss = ag.ag_sum(function(p))  # type: ignore[operator]
    found: np.ndarray = ag.backward(loss)[p].numpy()
    return found


def test_equal_elements_send_back_0(device: str) -> None:
    with ag.ag_device(device):
        for function in (ops.std, ops.norm, lambda x: ops.norm(x, 3.0), lambda x: ops.norm(x, 0.5), ops.normalize):
            assert np.array_equal(gradient(function, np.zeros((2, 3))), np.zeros((2, 3))) or function is ops.normalize
            assert np.isfinite(gradient(function, np.zeros((2, 3)))).all()
        assert np.isnan(ops.var([[1.0]]).item()) and ops.var([[1.0]], correction=0).item() == 0.0


def test_large_exponents(device: str) -> None:
    with ag.ag_device(device):
        assert np.allclose(ops.logsumexp([[1000.0, 1000.0], [-1000.0, -1000.0]], 1).numpy(), [1000.6931, -999.3069])
        assert ops.logsumexp(np.full((1, 3), -np.inf)).item() == -np.inf
        assert ops.logsumexp([[1.0, np.inf]]).item() == np.inf
        assert np.array_equal(gradient(ops.logsumexp, np.full((1, 3), -np.inf)), np.zeros((1, 3)))
        assert np.allclose(gradient(ops.logsumexp, [[0.0, 0.0, -np.inf]]), [[0.5, 0.5, 0.0]])


def test_products_with_zeros(device: str) -> None:
    with ag.ag_device(device):
        for x in ([[2.0, 3.0, 4.0]], [[2.0, 0.0, 4.0]], [[0.0, 0.0, 4.0]], [[2.0, 3.0, 4.0, 5.0, 6.0, 0.5, 1.0]]):
            others = [np.prod(np.delete(x[0], i)) for i in range(len(x[0]))]
            assert np.allclose(gradient(ops.prod, x), [others]) and np.isclose(ops.prod(x).item(), np.prod(x))
        assert ops.prod(np.zeros((2, 0)), 1).numpy().tolist() == [1.0, 1.0]


def test_smallest_elements_and_products_at_the_edges(device: str) -> None:
    with ag.ag_device(device):
        assert np.array_equal(gradient(ops.min, [[2.0, -1.0, -1.0, 3.0]]), [[0, 0.5, 0.5, 0]])
        assert np.isnan(ops.min([[1.0, np.nan, -np.inf]]).item()) and np.isnan(ops.prod([[np.nan, 0.0]]).item())
        assert ops.min([[1.0, -np.inf]]).item() == -np.inf and ops.prod([[-2.0, np.inf]]).item() == -np.inf
        assert ops.min(np.full((3, 200000), 7.0), 1).numpy().tolist() == [7.0, 7.0, 7.0]
        assert ops.prod(np.ones((1, 300000))).item() == 1.0 and ops.prod(np.zeros((0, 2)), 0, True).shape == (1, 2)
        assert np.array_equal(gradient(ops.prod, [[1e30, 1e30, 0.0]]), [[0, 0, np.inf]])
        assert np.array_equal(gradient(lambda x: ops.prod(x, 1), [[3.0, -2.0], [0.0, 5.0]]), [[-2, 3], [5, 0]])
        half = ag.ag_tensor([[300.0, 200.0, 0.5]], dtype="f16")
        assert ops.prod(half, 1).dtype == "f16" and ops.prod(half, 1).item() == 30000 and ops.min(half).item() == 0.5
        assert (np.prod(half), np.min(half)) == (30000.0, 0.5) and ops.prod(half > 0.5).item() == 0.0
    with expect_error("no element", ag.ShapeError, "min: x is (2, 0) and dim is 1", "a minimum needs"):
        ops.min(np.zeros((2, 0)), 1)


def test_places_and_the_elements_there(device: str) -> None:
    with ag.ag_device(device):
        x = np.float32([[2.0, 5.0, 5.0, -np.inf], [np.nan, 1.0, np.nan, 0.0], [np.inf, 3.0, np.inf, -3.0]])
        for name, values, places in (("max", [5.0, np.nan, np.inf], [1, 0, 0]),
                                     ("min", [-np.inf, np.nan, -3.0], [3, 0, 3])):
            with_indices = getattr(ops, f"{name}_with_indices")
            found, where = with_indices(x, 1)
            assert where.dtype == "i32" and where.numpy().tolist() == places
            assert np.array_equal(found.numpy(), np.float32(values), equal_nan=True)
            assert [t.shape for t in with_indices(x, -1, keepdim=True)] == [(3, 1), (3, 1)]
            assert with_indices(ag.ag_tensor(x, dtype="bf16"), 0)[0].dtype == "bf16"
            sent = gradient(lambda t, of=with_indices: of(t, 1)[0], x)
            assert np.array_equal(sent, np.arange(4) == np.reshape(places, (3, 1)))
        step = ag.ag_capture(lambda t: ops.max_with_indices(t, 0))
        for shift in (0, 1, 2, 1, 0):
            value, place = step(ag.ag_tensor(np.roll([[1.0], [7.0], [3.0]], shift, 0)))
            assert (value.item(), place.item()) == (7.0, (1 + shift) % 3)
        assert step.replayed
        assert [t.item() for t in ops.aminmax(x[:1, :3])] == [2.0, 5.0]
        assert np.array_equal(ag.ag_tensor(x[:1]).max_with_indices(1)[0].numpy(), [5.0])
    with expect_error("no element", ag.ShapeError, "max_with_indices: x is (2, 0)"):
        ops.max_with_indices(np.zeros((2, 0)), 1)


def test_axes_are_called_as_in_numpy_too() -> None:
    x = np.arange(6.0).reshape(2, 3)
    for name, want in (("std", np.std(x, 1, ddof=1, keepdims=True)), ("amax", np.max(x, 1, keepdims=True)),
                       ("logsumexp", np.log(np.exp(x).sum(1, keepdims=True))), ("min", np.min(x, 1, keepdims=True))):
        assert np.allclose(getattr(ops, name)(x, axis=1, keepdims=True).numpy(), want)
        assert np.allclose(getattr(ag.ag_tensor(x), name)(axis=-1, keepdims=True).numpy(), want)
    with expect_error("an axis that is not there", ag.ShapeError, "std: dim 2", "-2..1"):
        ops.std(x, 2)
    with expect_error("an argument that is not there", TypeError, "var: there is no argument 'unbiased'"):
        ops.var(x, unbiased=False)


def test_16_bits_keep_the_digits_of_float32(device: str) -> None:
    with ag.ag_device(device):
        h, z = ag.ag_tensor([[300.0], [400.0]], dtype="f16"), ag.ag_tensor([[1e-4], [1e-4]], dtype="f16")
        assert ops.norm(h, 2.0, 0).item() == 500 and ops.cosine_similarity(h, h).item() == 1
        assert np.allclose(ops.normalize(h).numpy(), [[0.6], [0.8]], atol=1e-3)
        assert np.allclose(ops.normalize(z).numpy(), 0.5**0.5, atol=1e-3)
        assert np.allclose(ops.std(ag.ag_tensor([[-300.0], [300.0]], dtype="f16"), 0).numpy(), 424.26, rtol=1e-3)
        b = ag.ag_tensor([[1000.0], [1000.0], [1004.0]], dtype="bf16")
        assert np.allclose(ops.var(b, 0).numpy(), 5.34, rtol=1e-2) and ops.var(b, 0).dtype == "bf16"


def test_a_changed_parameter_is_noticed() -> None:
    for function in (ops.square, ops.softplus, ops.log1p, lambda w: ops.power(w, 2.0), ops.norm):
        w = ag.ag_param([[1.0, 2.0, 3.0]])
        with ag.with_grad_tape():
            loss = ag.ag_sum(function(w))
        w -= 0.25
        with expect_error("a backward pass through what was changed", ag.TapeError, "backward: "):
            ag.backward(loss)


def test_odd_numbers_are_refused() -> None:
    for call, fragments in ((lambda: ops.softshrink([[1.0]], -1.0), ("softshrink: lambd is -1.0", "at least 0")),
                            (lambda: ops.celu([[1.0]], 0.0), ("celu: alpha is 0.0", "other than 0")),
                            (lambda: ops.hardshrink([[1.0]], float("nan")), ("hardshrink: lambd is nan", "finite"))):
        with expect_error("a parameter that makes no sense", ValueError, *fragments):
            call()


def test_vectors_are_repeated_before_their_cosine_is_taken(device: str) -> None:
    with ag.ag_device(device):
        a, b = np.array([[[1.0, 2.0], [3.0, -1.0]]]), np.array([[[2.0, 1.0]], [[-1.0, 4.0]]])
        whole = [np.broadcast_to(x, (2, 2, 2)) for x in (a, b)]
        want = (whole[0] * whole[1]).sum(1) / np.linalg.norm(whole[0], axis=1) / np.linalg.norm(whole[1], axis=1)
        assert np.allclose(ops.cosine_similarity(a, b, 1).numpy(), want, atol=1e-6)


def test_the_larger_of_a_number_and_nan_sends_back_its_cotangent(device: str) -> None:
    nan = np.nan
    with ag.ag_device(device):
        for function in (ops.maximum, ops.minimum):
            assert gradient(lambda x, f=function: f(x, [[nan, 1.0, nan]]), [[1.0, nan, nan]]).tolist() == [[1, 1, 1]]
            assert gradient(lambda x, f=function: f(x, [[2.0, 2.0]]), [[2.0, 2.0]]).tolist() == [[0.5, 0.5]]
        assert gradient(lambda x: ops.maximum(x, 0.0), [[-1.0, 1.0]]).tolist() == [[0, 1]]
        assert gradient(lambda x: ops.minimum(x, 0.0), [[-1.0, 1.0]]).tolist() == [[1, 0]]
        assert np.isnan(ops.threshold([[nan]], 1.0, 2.0).item()) and ops.threshold([[1.0]], 1.0, 2.0).item() == 2.0
