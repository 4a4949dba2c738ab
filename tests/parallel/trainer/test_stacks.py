"""dp_train(stack=n): samples passed at once, what they count, and the random numbers they draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.dp_classifier import assert_equal, places
from helpers.errors import expect_error

import ag
from ag.engine.device import backend_of
from ag.parallel.trainer.samples import all_alike, stacked

RNG = np.random.default_rng(23)
DATA = [{"x": RNG.standard_normal((4, 1)).astype(np.float32), "label": np.array([i % 3])} for i in range(22)]


SEEN: set[tuple[int, ...]] = set()  # shapes


class Net(ag.Layer):
    def __init__(self, *layers: ag.Layer) -> None:
        self.body = ag.ag_sequential(ag.ag_linear(4, 6, activation="tanh"), *layers, ag.ag_linear(6, 3))

    def forward(self, sample: Any) -> Any:
        SEEN.add(np.shape(sample["x"]))
        return self.body(sample["x"])


def train(devices: list[str], *layers: Any, **options: Any) -> ag.DPResult:
    settings = {"loss_fn": ag.ag_softmax_cross_entropy_loss, "target_fn": lambda s: s["label"], "n_iter": 5, "lr": 0.05,
                "seed": 4, "batch": 16, "verbose": False}
    return ag.dp_train(lambda: Net(*[make() for make in layers]), options.pop("data", DATA), devices=devices,
                       **{**settings, **options})


LAYERS: dict[str, tuple[Any, ...]] = {
    "plain": (), "dropout": (lambda: ag.ag_dropout(0.3),),
    "norm": (lambda: ag.ag_batch_norm(6), lambda: ag.ag_dropout(0.3)),
}

# ---------------------------------------------------------------------------------------------- equal bits


def test_a_share_that_ends_in_a_stack_passes_its_part(device: str) -> None:
    """The mean is the same but for rounding, and masks of dropout are nobody else's."""
    for layers in ((), LAYERS["dropout"]):
        cut = train(places(device, 3), *layers, stack=8)
        assert np.isfinite(cut.loss_history).all()
    np.testing.assert_allclose(train(places(device, 3), stack=8).loss_history, train(["cpu"]).loss_history, rtol=1e-4)


def test_stacks_are_the_batches_of_a_loop_of_ones_own() -> None:
    """One replica, one stack per step: the same operations, with dropout and batch norm in train mode."""
    layers = LAYERS["norm"]
    result = train(["cpu"], *layers, stack=11, batch=11, shuffle=False, lr=0.05, n_iter=6)
    ag.ag_seed(4)
    model = Net(*[make() for make in layers])
    optimizer = ag.optimizer_adam(model, lr=0.05)
    for k in range(6):
        batch = stacked([DATA[(11 * k + j) % 22] for j in range(11)])
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(batch), batch["label"])
        optimizer.step(ag.backward(loss))
        assert loss.item() == pytest.approx(result.loss_history[k], rel=1e-5)
    for name, p in model.parameters().items():
        np.testing.assert_allclose(result.params[name].numpy(), p.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    for name, x in model.buffers().items():
        np.testing.assert_allclose(result.model.buffers()[name].numpy(), x.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_micro_batch_is_the_size_of_stacks() -> None:
    SEEN.clear()
    one_by_one = train(["cpu"], stack=1)
    assert {(4, 1)} == SEEN
    at_once = train(["cpu"], batch=None, micro_batch=16)
    assert (4, 16) in SEEN
    np.testing.assert_allclose(at_once.loss_history, one_by_one.loss_history, rtol=1e-4)
    assert_equal(train(["cpu", "cpu:1"], batch=None, micro_batch=8), train(["cpu"], stack=8))


def test_with_synchronous_batch_norm() -> None:
    layers = (lambda: ag.ag_batch_norm(6),)
    whole = train(["cpu"], *layers, stack=1, batch=8, sync_batch_norm=True)
    for devices in (["cpu"], ["cpu", "cpu:1"]):
        found = train(devices, *layers, stack=3, batch=8, sync_batch_norm=True)
        np.testing.assert_allclose(found.loss_history, whole.loss_history, rtol=1e-3)
        for name, x in whole.model.buffers().items():
            np.testing.assert_allclose(found.model.buffers()[name].numpy(), x.numpy(), rtol=1e-3, atol=1e-5)


# ---------------------------------------------------------------------------------------------- what a stack is


def test_the_last_axis_is_that_of_samples() -> None:
    samples = [{"column": np.full((4, 1), i), "vector": np.full(4, i), "image": np.full((3, 2, 2), i), "id": i,
                "ids": np.array([i]), "pair": (np.float32(i), True), "name": "a", "nothing": None} for i in range(3)]
    assert all_alike(samples)
    stack = stacked(samples)
    assert {key: np.shape(x) for key, x in stack.items() if key not in ("pair", "name", "nothing")} == {
        "column": (4, 3), "vector": (4, 3), "image": (3, 2, 2, 3), "id": (3,), "ids": (3,)}
    assert [np.shape(x) for x in stack["pair"]] == [(3,), (3,)] and stack["pair"][1].dtype == bool
    assert stack["name"] == "a" and stack["nothing"] is None
    assert all(np.array_equal(stack[key][..., 2], np.full(np.shape(stack[key])[:-1], 2)) for key in ("vector", "image"))
    tensors = stacked([ag.ag_tensor([[float(i)], [1.0]]) for i in range(3)])
    assert tensors.numpy().tolist() == [[0, 1, 2], [1, 1, 1]]


def test_what_makes_no_stack() -> None:
    x = np.zeros((4, 1))
    for other in (np.zeros((4, 2)), np.zeros((4, 1), np.float32), ag.ag_tensor(x), [x], 1.0):
        assert not all_alike([x, other])
    assert not all_alike([{"a": 1}, {"b": 1}]) and not all_alike([(x, "a"), (x, "b")])
    assert not all_alike([(x, 1), (x, 1.0)])
    assert not all_alike([object(), object()]) and not all_alike([np.ma.masked_array(x)] * 2)
    assert not all_alike([np.array(["a"])] * 2) and not all_alike([ag.ag_param(x)] * 2)


def test_samples_of_several_shapes_are_passed_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    data = [{"x": RNG.standard_normal((4, 1 + i % 2)), "label": RNG.integers(0, 3, 1 + i % 2)} for i in range(22)]
    one = train(["cpu"], data=data, stack=1)
    assert_equal(train(["cpu"], data=data, batch=None, micro_batch=16), one)
    assert_equal(train(["cpu", "cpu:1"], data=data, batch=None, micro_batch=8), one)
    assert not caplog.records


@pytest.mark.parametrize("layers", [(), LAYERS["dropout"]], ids=["plain", "dropout"])
def test_where_some_samples_differ_their_stack_is_passed_one_by_one(layers: Any) -> None:
    data = [{"x": RNG.standard_normal((4, 1 + (i == 5))), "label": RNG.integers(0, 3, 1 + (i == 5))} for i in range(22)]
    SEEN.clear()
    one = train(["cpu"], *layers, data=data, stack=4)
    assert {(4, 1), (4, 2), (4, 4)} <= SEEN
    assert_equal(train(["cpu", "cpu:1"], *layers, data=data, stack=4), one)
    if not layers:
        np.testing.assert_allclose(one.loss_history, train(["cpu"], data=data, stack=1).loss_history, rtol=1e-4)


def total(output: ag.Tensor, label: Any) -> ag.Tensor:
    """The sum of the samples' losses where their mean is required."""
    return ag.ag_softmax_cross_entropy_loss(output, label) * float(np.size(label))


def first_class(output: ag.Tensor, label: Any) -> ag.Tensor:
    """Looks at one label where there may be several."""
    return ag.ag_softmax_cross_entropy_loss(output, label) * (1.0, 10.0, 100.0)[int(np.ravel(label)[0])]


def single(output: ag.Tensor, label: Any) -> ag.Tensor:
    """Fails where there are several."""
    return ag.ag_softmax_cross_entropy_loss(output, label) * (2.0 if label == 1 else 1.0)


@pytest.mark.parametrize("loss_fn", [total, first_class, single])
def test_functions_for_single_samples_get_single_samples(loss_fn: Any, caplog: pytest.LogCaptureFixture) -> None:
    right = train(["cpu"], loss_fn=loss_fn, stack=1, capture=False)
    for devices in (["cpu"], ["cpu", "cpu:1"]):
        caplog.clear()
        assert_equal(train(devices, loss_fn=loss_fn, batch=None, micro_batch=16 // len(devices), capture=False), right)
        (record,) = caplog.records
        assert "one by one" in record.getMessage()
    if loss_fn is not single:
        caplog.clear()
        train(["cpu"], loss_fn=loss_fn, stack=16, capture=False, n_iter=1)
        (record,) = caplog.records
        assert "must take samples on the last axis" in record.getMessage() and "stack=1" in record.getMessage()


def test_a_function_that_is_found_out_later() -> None:
    """In the first steps all samples are of one class."""
    data = [{**s, "label": np.array([int(i >= 13)])} for i, s in enumerate(DATA)]
    with expect_error("dp_train with a loss that looks at the first of several labels", ValueError, "in step 4",
                      "must take samples on the last axis", "stack=1"):
        train(["cpu"], data=data, loss_fn=first_class, batch=None, micro_batch=3, shuffle=False, capture=False,
              n_iter=9)


# ---------------------------------------------------------------------------------------------- what samples count


def batches(sizes: list[int]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    return [{"x": rng.standard_normal((4, n)).astype(np.float32), "label": rng.integers(0, 3, n)} for n in sizes]


def columns(sample: dict[str, Any]) -> int:
    return len(sample["label"])


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu:1"]])
def test_batches_of_unequal_size_count_by_weight(devices: list[str]) -> None:
    """A batch of 1 and one of 63: the loss and the gradient are those of the 64 samples."""
    data = batches([1, 63])
    whole = {key: np.concatenate([s[key] for s in data], -1) for key in ("x", "label")}
    options: dict[str, Any] = {"n_iter": 4, "optimizer": lambda p: ag.optimizer_sgd(p, lr=0.5)}
    expected = train(["cpu"], data=[whole], batch=1, **options)
    found = train(devices, data=data, batch=2, weight_fn=columns, **options)
    np.testing.assert_allclose(found.loss_history, expected.loss_history, rtol=1e-5)
    for name, p in expected.params.items():
        np.testing.assert_allclose(found.params[name].numpy(), p.numpy(), rtol=1e-4, atol=1e-6)
    assert abs(train(devices, data=data, batch=2, **options).loss_history - expected.loss_history).max() > 1e-2


def test_a_stack_counts_the_sum_of_its_samples_weights() -> None:
    def weighted(output: ag.Tensor, sample: Any) -> ag.Tensor:
        w = np.reshape(sample["w"], (1, -1)).astype(np.float32)
        each = ag.ag_sum(output * output, dim=0, keepdim=True)
        return ag.ag_sum(each * ag.ag_tensor(w)) * (1.0 / float(w.sum()))

    data = [{**s, "w": float(1 + i % 4)} for i, s in enumerate(DATA)]
    options: dict[str, Any] = {"data": data, "loss_fn": weighted, "target_fn": None, "weight_fn": lambda s: s["w"]}
    one = train(["cpu"], **options, stack=1, capture=False)
    found = train(["cpu"], **options, stack=8, capture=False)
    np.testing.assert_allclose(found.loss_history, one.loss_history, rtol=1e-4)


@pytest.mark.parametrize("stack", [{"micro_batch": 4}, {"stack": 4}])
def test_samples_that_count_unlike_are_passed_one_by_one(stack: dict[str, Any]) -> None:
    """The samples of the first stack count alike, and some later stacks have a rare sample."""
    data = [{**s, "w": 50.0 if i in (10, 18, 21) else 3.0 if i < 4 else 1.0} for i, s in enumerate(DATA)]
    options: dict[str, Any] = {"data": data, "weight_fn": lambda s: s["w"], "shuffle": False, "batch": 8}
    one = train(["cpu"], **options, stack=1)
    found = train(["cpu"], **options, **stack)
    np.testing.assert_allclose(found.loss_history, one.loss_history, rtol=1e-4)


def test_samples_that_count_unlike_are_not_synchronized() -> None:
    with expect_error("sync_batch_norm", ag.ShapeError, "differ in", "weight", "stack=1"):
        train(["cpu"], stack=4, sync_batch_norm=True, weight_fn=lambda s: 1.0 + s["x"][0, 0] ** 2)


def test_wrong_weights() -> None:
    for weight, words in ((-1.0, "at least 0"), (float("nan"), "finite"), ("a", "number"), (None, "number")):
        with expect_error(f"dp_train with weights of {weight!r}", ValueError, "weight_fn returned", words):
            train(["cpu"], weight_fn=lambda s, weight=weight: weight)


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu:1"]])
def test_a_step_whose_samples_count_nothing_changes_nothing(devices: list[str],
                                                            caplog: pytest.LogCaptureFixture) -> None:
    weights = {0: 0.0, 1: 0.0, 3: 0.0}  # of the first step, and one of the second, which is not even finite
    data = [{**s, "w": weights.get(i, 1.0), "x": s["x"] * np.nan if i in (0, 3) else s["x"]}
            for i, s in enumerate(DATA[:4])]
    options: dict[str, Any] = {"data": data, "weight_fn": lambda s: s["w"], "shuffle": False, "batch": 2}
    none, one, two, four = (train(devices, n_iter=n, **options) for n in (0, 1, 2, 4))
    assert all((one.params[name].numpy() == p.numpy()).all() for name, p in none.params.items())
    assert any((two.params[name].numpy() != p.numpy()).any() for name, p in none.params.items())
    assert one.optimizer_state["state"].tolist() == none.optimizer_state["state"].tolist()
    assert np.isnan(four.loss_history).tolist() == [True, False, True, False]
    assert [r.getMessage() for r in caplog.records].count(
        "dp_train: the weights of the samples of step 0 add up to 0; it has no loss and changes nothing.") == 3


# ---------------------------------------------------------------------------------------------- random numbers


class Drops(ag.Layer):
    """Draws as many random numbers as the sample says, and shows the masks."""

    masks: list[bytes] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.line, self.drop = ag.ag_linear(32, 1), ag.ag_dropout(0.5)

    def forward(self, sample: Any) -> Any:
        total = self.line(ag.ag_tensor(np.ones((32, 1))))
        for _ in range(sample["draws"]):
            dropped = self.drop(ag.ag_tensor(np.ones((32, 1), np.float32)))
            if not dropped.buffer.backend.recording:
                self.masks.append(dropped.numpy().tobytes())
            total = total + self.line(dropped)
        return ag.ag_mean(total * total)


@pytest.mark.parametrize("draws", [[0, 2, 1, 0, 3, 2], [1, 2, 2, 2, 1, 3], [3, 1, 1, 0, 2, 2]], ids=str)
def test_samples_may_draw_differently_often(draws: list[int], device: str) -> None:
    """No two draws share a stream, whatever the first sample draws, and replicas change nothing."""
    data = [{"draws": n} for n in draws]
    options: dict[str, Any] = {"micro_batch": 6, "n_iter": 3, "seed": 3, "verbose": False, "stack": 1}
    Drops.masks.clear()
    one = ag.dp_train(Drops, data, devices=places(device, 1), capture=False, **options)
    assert len(set(Drops.masks)) == 3 * sum(draws)
    for n in (2, 3):
        for capture in (False, "auto"):
            found = ag.dp_train(Drops, data, devices=places(device, n), capture=capture,
                                **{**options, "micro_batch": 6 // n})
            assert_equal(found, one)


def test_a_replicas_generator_is_where_others_find_it() -> None:
    """Seeding in a callback changes nothing of the job, whose numbers are those of its own seed."""
    layers = LAYERS["dropout"]
    assert_equal(train(["cpu", "cpu:1"], *layers, callback=lambda step: ag.ag_seed(77)), train(["cpu"], *layers))
    assert backend_of("cpu").recording is None
