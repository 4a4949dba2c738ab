"""Losses against PyTorch's numbers, and their edges: labels that are ignored, captured steps, extremes, bad input."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from ops.losses.cases import Array, Case, cases, factors, told

import ag
from ag import ops

NUMBERS = json.loads((Path(__file__).parent / "losses" / "torch.json").read_text("utf-8"))
NAMES = sorted({case.name for case in cases()})
RICHEST = {name: max((case for case in cases() if case.name == name and case.options["reduction"] == "mean"),
                     key=lambda case: len(case.options)) for name in NAMES}
IGNORED = np.array([0, -100, 2, 1, -100])
LOGITS = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)


def computed(case: Case, dtype: str) -> tuple[Array, list[Array]]:
    operands, options = case.drawn(0)
    given = [ag.ag_param(x, dtype=dtype) if i in case.gradients else x for i, x in enumerate(operands)]
    with ag.with_grad_tape():
        losses = getattr(ops, case.name)(*given, **options)
        total = ag.ag_sum(losses * factors(losses.shape))
    grads = ag.backward(total)
    return losses.numpy(), [grads[given[i]].numpy() for i in case.gradients]


def gradient(function: Any, x: Any) -> Array:
    p = ag.ag_param(x)
    with ag.with_grad_tape():
        loss = ag.ag_sum(function(p))
    return ag.backward(loss)[p].numpy()


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_pytorchs(name: str) -> None:
    for case in (case for case in cases() if case.name == name):
        np.testing.assert_allclose(told(*computed(case, "f64")), NUMBERS[str(case)], 1e-12, 1e-12, err_msg=str(case))


@pytest.mark.not_on("swiftshader")
def test_float32_on_every_device(device: str) -> None:
    for case in RICHEST.values():
        np.testing.assert_allclose(told(*computed(case, "f32")), NUMBERS[str(case)], 2e-5, 2e-5, err_msg=str(case))


@pytest.mark.slow_on("lavapipe", "swiftshader")
@pytest.mark.parametrize("name", NAMES)
def test_captured_equals_eager(device: str, name: str) -> None:
    case = RICHEST[name]
    params = [ag.ag_param(x) for x in case.drawn(0)[0][:1]]

    def step(*others: Array) -> tuple[ag.Tensor, ag.Tensor]:
        with ag.with_grad_tape():
            loss = getattr(ops, case.name)(*params, *others, **options)
        return loss, ag.backward(loss)[params[0]]

    options = {k: ag.ag_tensor(v) if np.ndim(v) == 2 else v for k, v in case.drawn(0)[1].items()}
    run = ag.ag_capture(step)
    for seed in range(4):
        others = case.drawn(seed)[0][1:]
        for got, want in zip(run(*others), step(*others), strict=True):
            np.testing.assert_array_equal(got.numpy(), want.numpy())


# ---------------------------------------------------------------------------------------------- labels


def test_the_kernel_of_class_ids_computes_every_kind(device: str) -> None:
    for options in ({}, {"weight": [1.0, 2.0, 3.0]}, {"ignore_index": 1, "reduction": "none"}):
        with ag.profile() as launches:
            ops.cross_entropy(ag.ag_tensor(LOGITS), IGNORED % 3 if options else IGNORED, **options)
        names = [event.kernel for event in launches.events]
        assert names.count("softmax_cross_entropy_ids") == 1 and "softmax_cross_entropy" not in names


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("loss", [ops.cross_entropy, ops.nll_loss])
def test_ignored_labels_are_allowed_and_others_checked(device: str, loss: Any, captured: bool) -> None:
    x = ag.ag_tensor(LOGITS)
    run = ag.ag_capture(lambda ids: loss(x, ids)) if captured else lambda ids: loss(x, ids)
    for ids in ([0, 1, 2, 0, 1], IGNORED, [-100] * 4 + [2], [-100] * 5):
        wanted = np.array(ids)
        kept = wanted != -100
        want = np.float32(loss(LOGITS[:, kept], wanted[kept]).item() if kept.any() else np.nan)
        np.testing.assert_allclose(run(wanted).item(), want, 1e-6)
    for wrong in (3, -1, -101):
        with expect_error("a label that is no class", IndexError, f"{loss.__name__}: the label {wrong}", "0..2"):
            run(np.array([0, wrong, -100, 1, 1]))


def test_a_step_computes_labels(device: str) -> None:
    scores = ag.ag_tensor(LOGITS[::-1].copy())
    ids, weight = scores.numpy().argmax(0), [1.0, 2.0, 0.5]
    p = ag.ag_param(LOGITS)

    def step(given: ag.Tensor) -> tuple[ag.Tensor, ...]:
        with ag.with_grad_tape():
            losses = [ops.cross_entropy(p, ops.argmax(scores, 0), weight, label_smoothing=0.1),
                      ops.cross_entropy(p, given, reduction="sum"), ops.nll_loss(p, given)]
            total = losses[0] + losses[1] + losses[2]
        return *losses, ag.backward(total)[p]

    run = ag.ag_capture(step)
    for _ in range(3):
        found = [t.numpy() for t in run(ag.ag_tensor(IGNORED.reshape(-1), dtype="i32").reshape(5))]
        np.testing.assert_allclose(found[0], ops.cross_entropy(LOGITS, ids, weight, label_smoothing=0.1).item(), 1e-6)
        np.testing.assert_allclose(found[1], ops.cross_entropy(LOGITS, IGNORED, reduction="sum").item(), 1e-6)
        np.testing.assert_allclose(found[2], ops.nll_loss(LOGITS, IGNORED).item(), 1e-6)
        assert np.isfinite(found[3]).all()
    wrong = run(ag.ag_tensor([0, 7, -100, 1, -1], dtype="i32").reshape(5))
    assert np.isnan(wrong[1].item()) and np.isnan(wrong[2].item())


def test_weights_as_tensors_and_lists() -> None:
    for weight in ([1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0]), ag.ag_tensor([1.0, 2.0, 3.0])):
        assert ops.cross_entropy(LOGITS, IGNORED, weight).item() == pytest.approx(
            ops.cross_entropy(LOGITS, IGNORED, [1.0, 2.0, 3.0]).item(), rel=1e-7)
    for bad in ([1.0, 2.0], [[1.0, 2.0, 3.0]]):
        with expect_error("weights of another number", ag.ShapeError, "cross_entropy: weight is", "(3,)"):
            ops.cross_entropy(LOGITS, IGNORED, bad)


def test_the_old_losses_and_the_new_agree() -> None:
    ids, soft = np.array([0, 1, 2, 0, 1]), np.random.default_rng(1).random((3, 5)).astype(np.float32)
    for target in (ids, soft):
        for options in ({}, {"weight": [1.0, 2.0, 0.5]}, {"label_smoothing": 0.1}):
            assert ops.cross_entropy(LOGITS, target, **options).item() == pytest.approx(
                ag.ag_softmax_cross_entropy_loss(LOGITS, target, **options).item(), rel=1e-6)
    assert ops.binary_cross_entropy_with_logits(LOGITS, soft).item() == ag.ag_bce_with_logits_loss(LOGITS, soft).item()
    squares = ag.ag_mse_loss(LOGITS, soft, reduction="none").numpy()
    assert squares.mean() == pytest.approx(ops.mse_loss(LOGITS, soft).item(), rel=1e-6)
    assert ag.ag_mse_loss(LOGITS, soft, sample_weight=[1.0, 0, 0, 0, 2], reduction="sum").item() == pytest.approx(
        (squares * [1, 0, 0, 0, 2]).sum(), rel=1e-6)


def test_layers_keep_the_arguments_of_a_loss() -> None:
    criterion = ag.nn.CrossEntropyLoss([1.0, 2.0, 0.5], label_smoothing=0.1)
    want = ops.cross_entropy(LOGITS, IGNORED, [1.0, 2.0, 0.5], label_smoothing=0.1).item()
    for layer in (criterion, pickle.loads(pickle.dumps(criterion)), ag.nn.Sequential(criterion)[0]):
        assert layer(LOGITS, IGNORED).item() == want and [*layer.state_dict()] == ["weight"]
    assert criterion.to("cpu:1").weight.device == "cpu:1"
    made = [getattr(ag.nn, name)() for name in dir(ag.nn) if name.endswith("Loss")]
    assert {layer.reduction for layer in made} == {"mean"} and len(made) == 17
    assert ag.nn.TripletMarginLoss(swap=True)(LOGITS, LOGITS + 1, LOGITS - 1).shape == ()
    with expect_error("an option that is not there", TypeError, "L1Loss: there is no argument 'beta'"):
        ag.nn.L1Loss(beta=1.0)


# ---------------------------------------------------------------------------------------------- extremes


def test_extreme_logits(device: str) -> None:
    x, t = np.float32([[-1e4, 1e4, 0.0, 1e4, -1e4]]), np.float32([[1.0, 0.0, 1.0, 1.0, 0.0]])
    np.testing.assert_allclose(ops.binary_cross_entropy_with_logits(x, t, reduction="none").numpy(),
                               [[1e4, 1e4, np.log(2), 0, 0]], 1e-6)
    np.testing.assert_allclose(gradient(lambda p: ops.binary_cross_entropy_with_logits(p, t, reduction="sum"), x),
                               [[-1, 1, -0.5, 0, 0]], atol=1e-7)
    assert np.isfinite(gradient(lambda p: ops.sigmoid_focal_loss(p, t), x)).all()
    np.testing.assert_allclose(ops.soft_margin_loss(x, 2 * t - 1, "none").numpy(), [[1e4, 1e4, np.log(2), 0, 0]], 1e-6)
    columns = np.float32([[1e4, -1e4], [-1e4, 1e4]])
    assert ops.cross_entropy(columns, [0, 0], reduction="none").numpy().tolist() == [0, 2e4]
    assert gradient(lambda p: ops.cross_entropy(p, [0, 0], reduction="sum"), columns).tolist() == [[0, -1], [0, 1]]


def test_probabilities_of_0_and_1(device: str) -> None:
    p, t = np.float32([[0.0, 1.0, 0.0, 1.0]]), np.float32([[1.0, 0.0, 0.0, 1.0]])
    assert ops.binary_cross_entropy(p, t, reduction="none").numpy().tolist() == [[100, 100, 0, 0]]
    np.testing.assert_allclose(gradient(lambda p: ops.binary_cross_entropy(p, t, reduction="sum"), p),
                               [[-1e12, 1e12, 0, 0]], 1e-6)  # as PyTorch's
    logs = np.float32([[-np.inf], [0.0]])
    assert ops.kl_div(logs, [[0.0], [1.0]], "sum").item() == 0
    assert gradient(lambda x: ops.kl_div(x, [[0.0], [1.0]], "sum"), logs).tolist() == [[0], [-1]]
    assert np.isnan(ops.kl_div([[np.nan]], [[0.0]]).item())


def test_what_is_infinite_or_not_a_number(device: str) -> None:
    x = np.float32([[np.inf, -np.inf, 1e30]])
    for loss in (ops.huber_loss, ops.smooth_l1_loss, ops.l1_loss):
        assert gradient(lambda p, loss=loss: loss(p, np.zeros((1, 3)), "sum"), x).tolist() == [[1, -1, 1]]
        assert np.isnan(loss([[np.nan]], [[0.0]]).item())
    assert np.isnan(ops.gaussian_nll_loss([[1.0]], [[1.0]], [[-1.0]]).item())
    assert np.isfinite(ops.gaussian_nll_loss([[1.0]], [[1.0]], [[0.0]]).item())
    assert np.isnan(ops.cross_entropy([[np.nan], [0.0]], [0]).item())
    equal = np.ones((2, 3), np.float32)
    assert np.isfinite(gradient(lambda a: ops.triplet_margin_loss(a, equal, equal, eps=0.0), equal)).all()
    assert np.isfinite(gradient(lambda a: ops.cosine_embedding_loss(a, equal, np.ones(3)), 0 * equal)).all()


def test_preferences_are_learned_from_equal_policies(device: str) -> None:
    """The loss of direct preference optimization begins at log 2, where its gradient must not be 0."""
    w = ag.ag_param([[0.0, 0.0]])
    optimizer, losses = ag.optim.SGD([w], lr=1.0), []
    for _ in range(3):
        with ag.with_grad_tape():
            loss = -ops.logsigmoid(0.5 * (w[:, 0] - w[:, 1])).mean()
        optimizer.step(ag.backward(loss))
        losses.append(loss.item())
    assert losses[0] == pytest.approx(np.log(2), rel=1e-6) and losses[0] > losses[1] + 0.1 > losses[2] + 0.15


def test_losses_of_16_bits_are_float32() -> None:
    for dtype in ("f16", "bf16"):
        for name in NAMES:
            operands, options = RICHEST[name].drawn(0)
            halves = [ag.ag_tensor(x, dtype=dtype) if x.dtype.kind == "f" and x.ndim > 1 else x for x in operands]
            wide = [x.astype("f32") if isinstance(x, ag.Tensor) else x for x in halves]
            found = getattr(ops, name)(*halves, **options)
            assert found.dtype == "f32" or name == "mse_loss"
            np.testing.assert_allclose(found.numpy(), getattr(ops, name)(*wide, **options).numpy(), 1e-2)


# ---------------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(("call", "error", "fragments"), [
    (lambda x: ops.l1_loss(x, x[0]), ag.ShapeError, ["l1_loss: operands are (3, 5) and (5,)", "must be equal"]),
    (lambda x: ops.l1_loss(x, x, "average"), ValueError, ["l1_loss: reduction is 'average'", "'sum' or 'none'"]),
    (lambda x: ops.l1_loss(x, x, weight=np.ones((2, 3, 5))), ag.ShapeError, ["l1_loss: weight is (2, 3, 5)", "(3, 5)"]),
    (lambda x: ops.huber_loss(x, x, delta=0.0), ValueError, ["huber_loss: delta is 0.0", "positive"]),
    (lambda x: ops.smooth_l1_loss(x, x, beta=-1.0), ValueError, ["smooth_l1_loss: beta is -1.0", "positive"]),
    (lambda x: ops.cross_entropy(x, [0, 1]), ag.ShapeError, ["cross_entropy: logits are (3, 5)", "(5,) (class ids)"]),
    (lambda x: ops.cross_entropy(x, IGNORED, ignore_index=0.5), TypeError, ["cross_entropy: ignore_index is 0.5"]),
    (lambda x: ops.cross_entropy(x, IGNORED, label_smoothing=2.0), ValueError, ["cross_entropy: label_smoothing is 2"]),
    (lambda x: ops.cross_entropy(x, x, ignore_index=1), ValueError, ["cross_entropy: ignore_index is 1", "class ids"]),
    (lambda x: ops.nll_loss(x, x), ag.ShapeError, ["nll_loss: input is (3, 5) and target is (3, 5)", "class ids"]),
    (lambda x: ops.multi_margin_loss(x, IGNORED), IndexError, ["multi_margin_loss: the label -100", "0..2"]),
    (lambda x: ops.multi_margin_loss(x, IGNORED, p=3), ValueError, ["multi_margin_loss: p is 3", "1 or 2"]),
    (lambda x: ops.binary_cross_entropy(x, x), ValueError, ["binary_cross_entropy: targets go from", "required"]),
    (lambda x: ops.dice_loss(x, x), ag.ShapeError, ["dice_loss: input is (3, 5)", "pixels"]),
    (lambda x: ops.gaussian_nll_loss(x, x, np.ones((4, 1, 5))), ag.ShapeError, ["gaussian_nll_loss: var is (4, 1, 5)"]),
    (lambda x: ops.cosine_embedding_loss(x, x, x), ag.ShapeError, ["cosine_embedding_loss: inputs are (3, 5)", "(5,)"]),
    (lambda x: ops.kl_div(x, x, log_target="yes"), TypeError, ["kl_div: log_target is a str", "True or False"]),
    (lambda x: ops.l1_loss(x[:, :0], x[:, :0]), ag.ShapeError, ["l1_loss: ", "at least one element"]),
])
def test_wrong_input_is_named(call: Any, error: type[Exception], fragments: list[str]) -> None:
    with expect_error(fragments[0], error, *fragments):
        call(LOGITS)


@pytest.mark.parametrize(("logit", "target", "want"), [
    (np.inf, 0.0, np.inf), (-np.inf, 1.0, np.inf), (1e4, 1.0, 0.0), (-1e4, 0.0, 0.0), (-50.0, 0.0, math.exp(-50)),
    (50.0, 1.0, math.exp(-50))])
def test_cross_entropy_of_sure_logits(device: str, logit: float, target: float, want: float) -> None:
    with ag.ag_device(device):
        found = ag.ops.binary_cross_entropy_with_logits([[logit]], [[target]]).item()
    assert found == pytest.approx(want, rel=1e-6, abs=0)
