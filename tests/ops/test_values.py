"""Test what the case table leaves out: gradients at kinks, large and special numbers, and what the losses accept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from table.rows import EPS, Array

import ag
from ag.autograd.tensor import Tensor

INF, NAN = math.inf, math.nan


def gradient(f: Callable[[Tensor], Tensor], x: object) -> list[float]:
    """Gradient of the sum of f at x, as a flat list."""
    p = ag.ag_param(x)
    with ag.with_grad_tape():
        loss = ag.ag_sum(f(p))
    return ag.backward(loss)[p].numpy().ravel().tolist()


def values(t: Tensor) -> list[float]:
    return t.numpy().ravel().tolist()


def test_relu_has_slope_0_at_0(device: str) -> None:
    assert gradient(ag.ag_relu, [[-1.0, -0.0, 0.0, 1.0]]) == [0, 0, 0, 1]


def test_clamp_has_slope_1_at_its_ends(device: str) -> None:
    assert gradient(lambda x: ag.ag_clamp(x, -1, 1), [[-2.0, -1.0, 0.0, 1.0, 2.0]]) == [0, 1, 1, 1, 0]


def test_clamp_without_ends_changes_nothing(device: str) -> None:
    x = ag.ag_tensor([[-3e38, -INF, 0.0, INF]])
    assert values(ag.ag_clamp(x)) == values(x)


@pytest.mark.parametrize(("p", "want", "slope"), [
    (0, [1, 1, 1], [0, 0, 0]), (1, [-2, 0, 3], [1, 1, 1]), (2, [4, 0, 9], [-4, 0, 6]), (3, [-8, 0, 27], [12, 0, 27]),
])
def test_powers_of_negative_numbers(device: str, p: int, want: list[float], slope: list[float]) -> None:
    # in ggmlR a negative base is NaN on the GPU
    np.testing.assert_allclose(values(ag.ag_pow([[-2.0, 0.0, 3.0]], p)), want, rtol=8 * EPS["f32"])
    np.testing.assert_allclose(gradient(lambda x: ag.ag_pow(x, p), [[-2.0, 0.0, 3.0]]), slope, rtol=8 * EPS["f32"])


@pytest.mark.parametrize("p", [INF, -INF, float("nan"), 1e39])
def test_an_exponent_is_a_finite_number(p: float) -> None:
    with expect_error("an exponent", ValueError, "ag_pow: p is", "finite"):
        ag.ag_tensor([[2.0]]) ** p


def test_negative_numbers_have_no_broken_powers(device: str) -> None:
    assert np.isnan(ag.ag_pow([[-2.0]], 0.5).item())


def test_sigmoid_and_tanh_reach_their_limits(device: str) -> None:
    x = [[-INF, -1e30, -200.0, 200.0, 1e30, INF]]
    np.testing.assert_allclose(values(ag.ag_sigmoid(x)), [0, 0, 0, 1, 1, 1], atol=1e-38)
    assert values(ag.ag_tanh(x)) == [-1, -1, -1, 1, 1, 1]
    for f in (ag.ag_sigmoid, ag.ag_tanh):
        np.testing.assert_allclose(gradient(f, [[-1e30, -200.0, 200.0, 1e30]]), 0, atol=1e-38)


def test_softmax_of_large_numbers(device: str) -> None:
    np.testing.assert_allclose(values(ag.ag_softmax([[1e30], [1e30], [0.0]])), [0.5, 0.5, 0])
    np.testing.assert_allclose(values(ag.ag_softmax([[-1e30], [-1e30]])), [0.5, 0.5])


@pytest.mark.parametrize("gap", [20.0, 100.0, 1e4, 1e30])
def test_softmax_cross_entropy_is_exact_for_any_logits(device: str, gap: float) -> None:
    # ggmlR's loss is capped at 16.118, because it takes the logarithm of a rounded probability
    logits = [[gap, 0.0], [0.0, gap]]
    for target in ([1, 0], np.array([[0, 1], [1, 0]])):
        assert ag.ag_softmax_cross_entropy_loss(logits, target).item() == pytest.approx(gap)
        p = ag.ag_param(logits)
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(p, target)
        np.testing.assert_allclose(ag.backward(loss)[p].numpy(), [[0.5, -0.5], [-0.5, 0.5]], rtol=1e-6)
    assert ag.ag_softmax_cross_entropy_loss(logits, [0, 1]).item() == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("kind", ["ids", "one-hot"])
@pytest.mark.parametrize("options", [
    {"sample_weight": [1.0, 0.0, 3.0]}, {"weight": [1.0, 2.0, 0.0]},
    {"weight": [1.0, 2.0, 0.0], "label_smoothing": 0.1, "sample_weight": [1.0, 0.0, 3.0]}], ids=", ".join)
def test_a_class_that_cannot_be_counts_nothing_with_weights(device: str, kind: str, options: dict[str, Any]) -> None:
    """Logits of -inf beside targets of 0: the loss and the gradient are those without that class."""
    x, ids = np.array([[1.0, 0.5, -1.0], [0.0, 2.0, 0.25], [-INF, -INF, -INF]]), np.array([0, 1, 1])
    weight = options.get("weight", np.ones(3))
    target = ids if kind == "ids" else np.eye(3)[ids].T
    smoothing = options.get("label_smoothing", 0.0)
    soft = (np.eye(3)[ids].T * (1 - smoothing) + smoothing / 3)[:2] * np.c_[weight[:2]]
    of_sample = np.array(options.get("sample_weight", np.ones(3)))
    counts = of_sample * (np.array(weight)[ids] if kind == "ids" else 1)
    chance = np.exp(x[:2]) / np.exp(x[:2]).sum(0)
    p = ag.ag_param(x)
    with ag.with_grad_tape():
        loss = ag.ag_softmax_cross_entropy_loss(p, target, **options)
    assert loss.item() == pytest.approx(-(soft * np.log(chance)).sum(0) @ of_sample / counts.sum(), rel=1e-5)
    slope = (chance * soft.sum(0) - soft) * of_sample / counts.sum()
    np.testing.assert_allclose(ag.backward(loss)[p].numpy(), [*slope, np.zeros(3)], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", [
    lambda w: ag.ag_mse_loss(np.ones((2, 2)), np.ones((2, 2)), sample_weight=w),
    lambda w: ag.ag_softmax_cross_entropy_loss(np.ones((2, 2)), [0, 1], weight=w),
    lambda w: ag.ag_bce_with_logits_loss(np.ones((2, 2)), np.ones((2, 2)), pos_weight=w)])
def test_weights_are_not_negative(loss: Callable[[object], Tensor]) -> None:
    assert loss([0.0, 0.0]).item() == 0.0
    for w in ([-1.0, 1.0], [NAN, 1.0]):
        with pytest.raises(ValueError, match=r"eight goes from .* numbers of at least 0 are required"):
            loss(w)


def test_one_inf_among_the_logits_is_not_hidden(device: str) -> None:
    for logits in ([[NAN], [0.0]], [[INF], [0.0]]):
        assert np.isnan(ag.ag_softmax_cross_entropy_loss(logits, [0]).item())


def test_infinities_and_nan_are_values_without_warnings(device: str) -> None:
    x = ag.ag_param([[0.0, 1e30, -1.0]])

    def step() -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_sum(ag.ag_log(x) + ag.ag_exp(x) * 1e30 + x / ag.ag_tensor([[0.0, 1e-30, INF]]))
        return ag.backward(loss)[x]

    assert not np.isfinite(step().numpy()).all()  # warnings are errors here
    captured = ag.ag_capture(lambda y: ag.ag_log(y) / y)
    for _ in range(2):
        assert np.isnan(captured(ag.ag_tensor([[0.0, -1.0]])).numpy()).any()


def losses(logits: Array, *targets: object) -> set[float]:
    return {ag.ag_softmax_cross_entropy_loss(logits, t).item() for t in targets}


def test_labels_of_any_kind(device: str) -> None:
    logits = np.array([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]], np.float32)
    ids = np.array([0, 1, 1])
    same = [ids, ids.astype(np.uint8), ids.astype(np.int32), ids.astype(np.float64), ids.tolist(), ids.reshape(3, 1),
            ag.ag_tensor(ids), ag.ag_tensor(ids, dtype="i32")]
    assert len(losses(logits, *same)) == 1
    one_hot = np.eye(2)[:, ids]
    kinds = [one_hot.astype(kind) for kind in (bool, np.int64, np.uint8, np.float16, np.float32, np.float64)]
    assert len(losses(logits, *kinds, ag.ag_tensor(one_hot))) == 1
    assert losses(logits, one_hot).pop() == pytest.approx(losses(logits, ids).pop(), rel=1e-6)


@pytest.mark.parametrize("label", [-1, 2, 1000])
def test_wrong_labels_in_a_tensor(device: str, label: int) -> None:
    for dtype in ("f32", "i32"):
        target = ag.ag_tensor([0, label], dtype=dtype)
        with expect_error("a label that is no class, in a tensor", IndexError, f"label {label}", "outside 0..1"):
            ag.ag_softmax_cross_entropy_loss([[0.0, 1.0], [1.0, 0.0]], target)


@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8", "f4"])
def test_no_class_is_negative(device: str, kind: str) -> None:
    many = {"i1": 300, "i2": 40_000}.get(kind, 3)
    good, bad = np.array([1, 2], kind), np.array([1, -1], kind)
    weight = ag.ag_tensor(np.zeros((1, many), np.float32))
    lookup = ag.ag_capture(ag.ag_embedding_lookup)
    lookup(weight, good), lookup(weight, good)
    for call in (ag.ag_embedding_lookup, lookup):
        with expect_error("an id of -1", IndexError, "the id -1", f"outside 0..{many - 1}"):
            call(weight, bad)
    with expect_error("a label of -1", IndexError, "the label -1", f"outside 0..{many - 1}"):
        ag.ag_softmax_cross_entropy_loss(np.zeros((many, 2), np.float32), bad)
    with expect_error("a label of -1", IndexError, "the label -1", f"outside 0..{many - 1}"):
        ag.training.top_k_accuracy(2)(np.zeros((many, 2), np.float32), bad)


@pytest.mark.parametrize("captured", [False, True])
def test_no_setting_of_numpy_changes_a_result(device: str, captured: bool) -> None:
    ones, zeros = ag.ag_tensor([[1.0]] * 4), ag.ag_tensor([[0.0]] * 4)

    def step(x: ag.Tensor) -> list[ag.Tensor]:
        found = [ag.ag_exp(x), x / 0.0, ag.ag_log(x * 0.0), x * x, ag.ag_softmax(x), ag.ag_cast(x, "f16")]
        return [*found, ag.ag_layer_norm_op(x, ones, zeros)]

    run, values = ag.ag_capture(step) if captured else step, np.array([[1e-30], [200.0], [-200.0], [1e30]])
    with np.errstate(all="ignore"):
        want = [t.numpy() for t in run(ag.ag_tensor(values))]
    with np.errstate(all="raise"):
        for _ in range(3 if captured else 1):
            for got, right in zip(run(ag.ag_tensor(values)), want, strict=True):
                np.testing.assert_array_equal(got.numpy(), right)
        for dtype in ("f32", "f16", "bf16"):
            assert ag.ag_tensor([1e300, 1e-300, np.nan], dtype=dtype).numpy()[:2, 0].tolist() == [np.inf, 0]
        with expect_error("a label that is NaN", IndexError, "label nan"):
            ag.ag_softmax_cross_entropy_loss(np.zeros((2, 1), np.float32), [np.nan])
        gradients = {"a": np.float32([[1e-30, 3e38]])}
        assert ag.clip_grad_norm({"a": ag.ag_param([[0.0, 0.0]])}, gradients, 1e-10) == pytest.approx(3e38)


@pytest.mark.parametrize("captured", [False, True])
def test_nothing_of_what_cannot_be(device: str, captured: bool) -> None:
    pred, logits = ag.ag_param([[1.0, 0.5], [0.0, 0.5]]), ag.ag_param([[0.0, 1.0], [-np.inf, 1.0]])
    target = np.float32([[1, 0.5], [0, 0.5]])

    def step(target: ag.Tensor) -> tuple[ag.Tensor, ...]:
        with ag.with_grad_tape():
            losses = ag.ag_cross_entropy_loss(pred, target), ag.ag_softmax_cross_entropy_loss(logits, target)
            total = losses[0] + losses[1]
        grads = ag.backward(total)
        return *losses, grads[pred], grads[logits]

    run = ag.ag_capture(step) if captured else step
    for _ in range(3 if captured else 1):
        a, b, of_pred, of_logits = run(ag.ag_tensor(target))
        assert a.item() == pytest.approx(np.log(2) / 2, rel=1e-6) == b.item()
        np.testing.assert_allclose(of_pred.numpy(), [[-0.5, -0.5], [0, -0.5]], rtol=1e-6)
        np.testing.assert_allclose(of_logits.numpy(), [[0, 0], [0, 0]], atol=1e-7)
    assert ag.ag_cross_entropy_loss([[0.0]], [[0.5]]).item() == np.inf
    assert np.isnan(ag.ag_cross_entropy_loss([[np.nan]], [[0.0]]).item())
    assert np.isnan(ag.ag_softmax_cross_entropy_loss([[0.0], [np.nan]], np.float32([[1], [0]])).item())


def test_labels_on_another_device(device: str) -> None:
    target = ag.ag_tensor([0, 1], device="cpu:1", dtype="i32")
    with expect_error("labels on another device than the logits", ag.DeviceError, device, "cpu:1", "ag_to_device"):
        ag.ag_softmax_cross_entropy_loss([[0.0, 1.0], [1.0, 0.0]], target)


def test_long_sums_keep_their_digits(device: str) -> None:
    x = np.full(1_000_003, 0.1, np.float32)
    exact = x.size * float(np.float32(0.1))
    assert ag.ag_sum(x).item() == pytest.approx(exact, rel=1e-6)
    assert ag.ag_mean(x).item() == pytest.approx(float(np.float32(0.1)), rel=1e-6)


def test_moving_to_where_a_tensor_is_already(device: str) -> None:
    x = ag.ag_tensor([1.0])
    assert ag.ag_to_device(x, device) is x


@pytest.mark.vulkan
def test_more_axes_than_a_kernel_takes(lavapipe: str) -> None:
    x = np.zeros((2, 1) * 3 + (2,) * 9, np.float32)
    assert ag.ag_transpose(x).shape == x.shape[::-1]
    with expect_error("a transpose of too many axes", ag.ShapeError, "ag_transpose: ", "8 are supported", "reshape"):
        ag.ag_transpose(ag.ag_tensor(x, device=lavapipe))
