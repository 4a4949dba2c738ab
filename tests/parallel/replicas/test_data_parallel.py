"""DataParallel and the four functions it is made of: the gradients of one device, whatever the devices are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ag

RNG = np.random.default_rng(17)
Devices = list[str]


@pytest.fixture(params=["one", "two", "twice", "five", "two vendors"])
def devices(request: pytest.FixtureRequest) -> Devices:
    """Devices to train on; the first is where the model is."""
    if request.param == "two vendors":
        return [request.getfixturevalue("lavapipe"), request.getfixturevalue("swiftshader")]
    several = ["cpu", "cpu:1", "cpu:2", "cpu:3", "cpu:4"]
    return {"one": ["cpu"], "two": several[:2], "twice": ["cpu", "cpu"], "five": several}[request.param]


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def network(device: str, *layers: Callable[[], ag.Layer]) -> ag.Layer:
    with ag.ag_device(device):
        ag.ag_seed(3)
        return ag.ag_sequential(ag.ag_linear(4, 8, activation="tanh"), *(make() for make in layers), ag.ag_linear(8, 3))


def gradients(model: Any, x: Any, y: Any, loss_of: Any = ag.ag_mse_loss) -> dict[str, Any]:
    """Gradients after one pass, of fresh ``.grad``s."""
    for p in model.parameters().values():
        p.grad = None
    with ag.with_grad_tape():
        loss = loss_of(model(x), y)
    ag.backward(loss)
    return {name: p.grad.numpy() for name, p in model.parameters().items()}


def assert_close(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, g in expected.items():
        np.testing.assert_allclose(found[name], g, rtol=tolerance, atol=tolerance, err_msg=name)


# ---------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("batch", [1, 2, 5, 12])
def test_gradients_of_every_replica_reach_the_module(devices: Devices, batch: int) -> None:
    model, x, y = network(devices[0]), normal(4, batch), normal(3, batch)
    with ag.ag_device(devices[0]):
        expected = gradients(model, ag.ag_tensor(x), ag.ag_tensor(y))
        parallel = ag.DataParallel(model, devices)
        for _ in range(2):  # replicas' gradients do not pile up
            assert_close(gradients(parallel, ag.ag_tensor(x), ag.ag_tensor(y)), expected)
        out = parallel(ag.ag_tensor(x))
        assert out.device == devices[0] and out.shape == (3, batch)
        np.testing.assert_allclose(out.numpy(), model(ag.ag_tensor(x)).numpy(), rtol=1e-5, atol=1e-6)


class WithLoss(ag.Layer):
    """A model that returns logits and its loss, as GPT models do."""

    def __init__(self, model: ag.Layer) -> None:
        self.inner = model

    def forward(self, x: ag.Tensor, targets: Any = None, factor: float = 1.0) -> Any:
        logits = self.inner(x)
        return logits, ag.ag_mse_loss(logits, targets) * factor


@pytest.mark.parametrize("batch", [1, 5])
def test_a_model_that_returns_its_loss_trains(devices: Devices, batch: int) -> None:
    """With parts of 3 and 2 samples every sample counts the same."""
    model, x, y = network(devices[0]), normal(4, batch), normal(3, batch)
    with ag.ag_device(devices[0]):
        expected = gradients(model, ag.ag_tensor(x), ag.ag_tensor(y), lambda out, y: 2.0 * ag.ag_mse_loss(out, y))
        parallel = ag.DataParallel(WithLoss(model), devices)
        for p in model.parameters().values():
            p.grad = None
        with ag.with_grad_tape():
            logits, loss = parallel(ag.ag_tensor(x), targets=ag.ag_tensor(y), factor=2.0)
        assert logits.shape == (3, batch) and loss.shape == ()
        given = parallel.backward()
        assert_close({k: p.grad.numpy() for k, p in model.parameters().items()}, expected)
        assert len(given) == len(expected)
        with pytest.raises(ag.TapeError, match=r"DataParallel\.backward: the last call returned no recorded tensor"):
            parallel.backward()


def test_micro_batches_count_as_one_batch(devices: Devices) -> None:
    model, x, y = network(devices[0]), normal(4, 12), normal(3, 12)
    with ag.ag_device(devices[0]):
        expected = gradients(model, ag.ag_tensor(x), ag.ag_tensor(y))
        parallel = ag.DataParallel(WithLoss(model), devices)
        for p in model.parameters().values():
            p.grad = None
        for i in range(0, 12, 3):
            with ag.with_grad_tape():
                parallel(ag.ag_tensor(x[:, i : i + 3]), targets=ag.ag_tensor(y[:, i : i + 3]))
            parallel.backward(scale=1 / 4)
        assert_close({k: p.grad.numpy() for k, p in model.parameters().items()}, expected, 1e-6)


# ---------------------------------------------------------------------------------------------- state


def test_modes_buffers_and_weights_reach_the_replicas() -> None:
    model = network("cpu", lambda: ag.ag_batch_norm(8), lambda: ag.ag_dropout(0.5))
    parallel, x = ag.DataParallel(model, ["cpu", "cpu:1"]), ag.ag_tensor(normal(4, 6))
    with ag.no_grad():
        parallel(x)
        assert np.abs(model.buffers()["layer2_running_mean"].numpy()).sum() > 0  # the first replica's batch is in it
        parallel.eval()
        assert not model.training
        first = parallel(x).numpy()
        assert (first == parallel(x).numpy()).all()  # no dropout, no batch statistics
        np.testing.assert_allclose(first, model(x).numpy(), rtol=1e-6)
        model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
        np.testing.assert_allclose(parallel(x).numpy(), model(x).numpy(), rtol=1e-5)
        parallel.train()
        assert model.training


def test_state_is_the_models_own() -> None:
    model = network("cpu", lambda: ag.ag_batch_norm(8))
    parallel = ag.DataParallel(model, ["cpu", "cpu:1"])
    assert parallel.module is model and parallel.wrapped_module is model
    assert parallel.state_dict().keys() == model.state_dict().keys()
    assert list(parallel.parameters()) == list(model.parameters()) == [name for name, _ in parallel.named_parameters()]
    assert parallel.buffers().keys() == model.buffers().keys()
    state = {k: v + 1 for k, v in model.state_dict().items()}
    parallel.load_state_dict(state)
    assert all((v == state[k]).all() for k, v in model.state_dict().items())
    with pytest.raises(ag.CheckpointError, match="missing"):
        parallel.load_state_dict({})
    assert repr(parallel).startswith("DataParallel") and "Sequential" in repr(parallel)


class Tied(ag.Layer):
    def __init__(self) -> None:
        self.first = ag.ag_linear(4, 4, bias=False)
        self.again = [self.first]

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        out: ag.Tensor = self.again[0](self.first(x))
        return out


def test_tied_weights_stay_tied(devices: Devices) -> None:
    with ag.ag_device(devices[0]):
        model, x, y = Tied(), ag.ag_tensor(normal(4, 5)), ag.ag_tensor(normal(4, 5))
        for replica in ag.replicate(model, devices):
            assert replica.first is replica.again[0] and replica.first is not model.first

        def gradient(call: Any) -> Any:
            with ag.with_grad_tape():
                loss = ag.ag_mse_loss(call(x), y)
            return ag.backward(loss)[model.first.W].numpy()

        np.testing.assert_allclose(gradient(ag.DataParallel(model, devices)), gradient(model), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------- results


class Several(ag.Layer):
    def __init__(self, what: str) -> None:
        self.what, self.inner = what, ag.ag_linear(4, 2)

    def forward(self, x: ag.Tensor) -> Any:
        y = self.inner(x)
        return {"dict": {"y": y, "more": [y * 2.0, "text"]}, "tuple": (y, ag.ag_mean(y), None),
                "losses": (ag.ag_mean(y), ag.ag_mean(y * y))}[self.what]


def test_results_of_several_kinds(devices: Devices) -> None:
    x = normal(4, 5)
    with ag.ag_device(devices[0]):
        found = ag.DataParallel(Several("dict"), devices)(ag.ag_tensor(x))
        assert found["y"].shape == (2, 5) and found["more"][1] == "text"
        np.testing.assert_allclose(found["more"][0].numpy(), 2 * found["y"].numpy(), rtol=1e-6)
        y, mean, nothing = ag.DataParallel(Several("tuple"), devices)(ag.ag_tensor(x))
        assert nothing is None and mean.item() == pytest.approx(y.numpy().mean(), rel=1e-5)
        model = Several("losses")
        parallel = ag.DataParallel(model, devices)
        with ag.with_grad_tape():
            parallel(ag.ag_tensor(x))
        found = parallel.backward()[model.inner.W].numpy()
        with ag.with_grad_tape():
            one, two = model(ag.ag_tensor(x))
            total = one + two
        np.testing.assert_allclose(found, ag.backward(total)[model.inner.W].numpy(), rtol=1e-4, atol=1e-6)


def test_arrays_and_numbers_among_the_arguments(devices: Devices) -> None:
    class Scaled(ag.Layer):
        def __init__(self) -> None:
            self.inner = ag.ag_embedding(7, 3)

        def forward(self, ids: Any, factor: float, offset: ag.Tensor | None = None) -> ag.Tensor:
            return self.inner(ids) * factor + (0.0 if offset is None else offset)

    ids = RNG.integers(0, 7, (2, 5))
    with ag.ag_device(devices[0]):
        model = Scaled()
        found = ag.DataParallel(model, devices)(ids, 2.0, offset=ag.ag_tensor(1.0)).numpy()
        np.testing.assert_allclose(found, model(ids, 2.0, offset=ag.ag_tensor(1.0)).numpy(), rtol=1e-6)


def test_output_device_and_dim() -> None:
    model = ag.ag_linear(4, 2)
    assert ag.DataParallel(model, ["cpu", "cpu:1"], output_device="cpu:1")(ag.ag_tensor(normal(4, 3))).device == "cpu:1"

    class Rows(ag.Layer):
        def forward(self, x: ag.Tensor) -> ag.Tensor:
            return x * 2.0

        def parameters(self) -> dict[str, ag.Tensor]:
            return {}

    x = normal(5, 3)
    assert (ag.DataParallel(Rows(), ["cpu", "cpu:1"], dim=0)(ag.ag_tensor(x)).numpy() == 2 * x).all()


def test_devices_by_number(lavapipe: str, swiftshader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [info.name for info in ag.ag_vulkan_devices()]
    with ag.ag_device("cpu"), ag.ag_dtype("f64"):
        exact = ag.ag_linear(1, 1)
    with ag.ag_device("auto"):
        assert ag.DataParallel(ag.ag_linear(1, 1)).device_ids == ("cpu",)  # these two are software
        monkeypatch.setenv("AG_SOFTWARE", "1")
        assert ag.DataParallel(ag.ag_linear(1, 1)).device_ids == tuple(names)
        assert ag.DataParallel(exact).device_ids == ("cpu",)  # no card has float64
    with ag.ag_device("vulkan:1"):
        assert ag.DataParallel(ag.ag_linear(1, 1)).device_ids == ("vulkan:1",)
    assert ag.DataParallel(ag.ag_linear(1, 1), [1, 0]).device_ids == ("vulkan:1", "vulkan:0")


# ---------------------------------------------------------------------------------------------- errors


class Failing(ag.Layer):
    def __init__(self) -> None:
        self.inner = ag.ag_linear(4, 2)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        if x.device == "cpu:1":
            raise ValueError("a bad sample")
        out: ag.Tensor = self.inner(x)
        return out


def test_an_error_in_one_replica_surfaces_once() -> None:
    before = threading.active_count()
    parallel = ag.DataParallel(Failing(), ["cpu", "cpu:1", "cpu:2"])
    with pytest.raises(ag.CommError, match="replica 1 on cpu:1 failed with ValueError: a bad sample") as caught:
        parallel(ag.ag_tensor(normal(4, 6)))
    assert isinstance(caught.value.__cause__, ValueError)
    assert threading.active_count() <= before + 1
    assert ag.DataParallel(parallel.module, ["cpu"])(ag.ag_tensor(normal(4, 6))).shape == (2, 6)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: ag.DataParallel(ag.ag_linear(1, 1), []), ValueError, r"device_ids is \[\]; name at least"),
    (lambda: ag.DataParallel(ag.ag_linear(1, 1), ["cpu", ()]), ValueError, "name at least one device per replica"),
    (lambda: ag.DataParallel(ag.ag_linear(1, 1), "cpu"), TypeError, "device_ids is 'cpu'; a list of names is required"),
    (lambda: ag.DataParallel(ag.ag_linear(1, 1), 3), TypeError, "device_ids is 3; a list of names"),
    (lambda: ag.DataParallel(3, ["cpu"]), TypeError, "DataParallel: model is a int; a model with"),
    (lambda: ag.DataParallel(ag.ag_linear(1, 1), ["cpu", "cuda:0"]), ag.DeviceError, "cuda:0"),
    (lambda: ag.scatter(ag.ag_tensor([[1.0]]), []), ValueError, "scatter: devices is empty"),
    (lambda: ag.scatter(ag.ag_tensor([[1.0]]), ["cpu"], dim=2), ag.ShapeError, "dim is 2"),
    (lambda: ag.scatter([normal(2, 3), normal(2, 4)], ["cpu"]), ag.ShapeError, "3 and 4"),
    (lambda: ag.replicate(ag.ag_linear(1, 1), []), ValueError, "replicate: devices is empty"),
    (lambda: ag.gather([], "cpu"), ValueError, "nothing to gather"),
    (lambda: ag.gather([ag.ag_tensor(1.0)], "cpu", weights=[0.0]), ValueError, "not all 0"),
    (lambda: ag.gather([ag.ag_tensor(1.0)], "cpu", weights=[1.0, 2.0]), ValueError, "one per result"),
    (lambda: ag.gather([ag.ag_tensor(1.0), None], "cpu"), ValueError, "must be alike"),
    (lambda: ag.gather([{"a": 1}, {"b": 1}], "cpu"), ValueError, "keys"),
    (lambda: ag.gather([(1,), (1, 2)], "cpu"), ValueError, "1 items and a tuple of 2"),
    (lambda: ag.gather([ag.ag_tensor(1.0), ag.ag_tensor([[1.0]])], "cpu"), ag.ShapeError, "as many axes"),
    (lambda: ag.gather([normal(2, 3), normal(3, 3)], "cpu"), ag.ShapeError, "arrays of shape .2, 3., .3, 3."),
    (lambda: ag.syncgrads(3), TypeError, "grad_sets is a int; a list of gradients is required"),
    (lambda: ag.parallel_apply([ag.ag_sum], []), ValueError, "1 models, 0 inputs"),
])
def test_bad_arguments(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# ---------------------------------------------------------------------------------------------- the four functions


@pytest.mark.parametrize("size", [0, 1, 2, 3, 10])
def test_scatter_and_gather_undo_each_other(devices: Devices, size: int) -> None:
    x = normal(2, size)
    parts = ag.scatter(ag.ag_tensor(x, device=devices[0]), devices)
    assert [p.device for p in parts] == devices[: len(parts)] and len(parts) == max(1, min(size, len(devices)))
    assert max(p.shape[1] for p in parts) - min(p.shape[1] for p in parts) <= 1
    assert (ag.gather(parts, devices[0]).numpy() == x).all()
    assert (ag.gather(ag.scatter([x], devices), "cpu")[0] == x).all()  # arrays, too


def test_scatter_deals_out_structures() -> None:
    given = {"x": ag.ag_tensor(normal(2, 3)), "ids": np.arange(3), "more": (normal(3), "text", 1.5, ag.ag_tensor(2.0))}
    first, second = ag.scatter(given, ["cpu", "cpu:1"])
    assert first["x"].shape == (2, 2) and second["x"].device == "cpu:1"
    assert first["ids"].tolist() == [0, 1] and second["ids"].tolist() == [2]
    assert second["more"][1:3] == ("text", 1.5) and second["more"][3].device == "cpu:1"
    assert isinstance(second["more"], tuple)


def test_gather_takes_the_weighted_mean_of_losses() -> None:
    losses = [ag.ag_tensor(1.0), ag.ag_tensor(4.0)]
    assert ag.gather(losses, "cpu").item() == 2.5
    assert ag.gather(losses, "cpu", weights=[2, 1]).item() == 2.0
    assert ag.gather([x.numpy() for x in losses], "cpu", weights=[2, 1]) == 2.0


def test_devices_work_at_the_same_time() -> None:
    met = threading.Barrier(2, timeout=20)

    def wait(x: Any) -> Any:
        met.wait()
        return ag.ag_default_device()

    assert ag.parallel_apply([wait, wait], [1, 2], devices=["cpu", "cpu:1"]) == ["cpu", "cpu:1"]


def test_random_numbers_do_not_depend_on_timing() -> None:
    def once() -> Any:
        ag.ag_seed(5)
        model = network("cpu", lambda: ag.ag_dropout(0.5))
        return ag.DataParallel(model, ["cpu", "cpu:1", "cpu"])(ag.ag_tensor(np.ones((4, 30), np.float32))).numpy()

    assert all((once() == once()).all() for _ in range(5))


def test_backward_of_a_loss_is_its_gradient(devices: Devices) -> None:
    """A loss made of the result, or of one that the model returns; and times a factor."""
    x, y = normal(4, 6), normal(3, 6)
    expected = gradients(network(devices[0]), x, y)
    for scale in (None, 0.5):
        parallel = ag.DataParallel(network(devices[0]), devices)
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(parallel(x), y)
        given = parallel.backward(loss) if scale is None else parallel.backward(loss, scale)
        found = {name: p.grad.numpy() / (scale or 1.0) for name, p in parallel.parameters().items()}
        assert_close(found, expected)
        assert_close({p.name: g.numpy() / (scale or 1.0) for p, g in given.items()}, expected)


def test_backward_of_what_is_no_loss() -> None:
    parallel = ag.DataParallel(ag.ag_linear(2, 1), ["cpu"])
    parallel(normal(2, 3))
    with pytest.raises(ag.TapeError, match="with_grad_tape"):
        parallel.backward()
    with ag.with_grad_tape():
        out = parallel(normal(2, 3))
    with pytest.raises(ag.TapeError, match="one element"):
        parallel.backward(out)
    with pytest.raises(ag.TapeError, match="not recorded"):
        parallel.backward(ag.ag_tensor(1.0))
    for given in ("loss", [out], np.ones(2)):
        with pytest.raises(TypeError, match=r"DataParallel\.backward"):
            parallel.backward(given)
    with pytest.raises(TypeError, match="scale is a Tensor"):
        parallel.backward(scale=out)
