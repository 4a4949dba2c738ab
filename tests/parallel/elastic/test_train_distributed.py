"""Devices fail under `train_distributed`, and it goes on: with the weights of an undisturbed job, to the bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from parallel.elastic.trained import Trained, X, Y, calls

import ag

Fail = Callable[[str, int], None]
THREE = ["cpu", "cpu:1", "cpu:2"]
KINDS = ["batch norm", "synchronised", "compressed", "model parallel", "pipeline"]


@pytest.mark.parametrize(("failing", "step", "after", "every"), [
    ("cpu:2", 0, 0, None), ("cpu", 4, 41, 1), ("cpu:2", 11, 5, 3), *(
        pytest.param(failing, step, after, every, marks=pytest.mark.slow) for failing in ("cpu", "cpu:2")
        for step, after in ((0, 0), (1, 20), (4, 41), (7, 0), (11, 5)) for every in (None, 1, 3))])
def test_the_weights_are_those_of_an_undisturbed_job(failing: str, step: int, after: int, every: int | None, fail: Fail,
                                                     tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = undisturbed("batch norm")
    found = Trained(THREE, "batch norm", happens=calls({step: lambda: fail(failing, after)}), checkpoint_every=every,
                    checkpoint=tmp_path / "job.safetensors")
    assert failing not in found.world.devices and len(found.world.devices) == 3
    assert failing not in {p.device for p in found.model.parameters().values()}
    (said,) = caplog.messages
    numbers = re.fullmatch(rf"train_distributed: {failing} failed in step (\d+) .* going on from step (\d+) on "
                           rf"cpu(:1)?, cpu:\d\.", said)
    assert numbers is not None, said
    at, back = int(numbers[1]), int(numbers[2])
    assert step <= at <= step + 2 and back == at - at % (every or 4), said
    assert found.everything() == wanted


@cache
def undisturbed(kind: str) -> list[Any]:
    return Trained(THREE, kind).everything()


@pytest.mark.parametrize("failing", ["cpu", pytest.param("cpu:1", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_way_to_spread_a_model(kind: str, failing: str, fail: Fail, tmp_path: Path) -> None:
    wanted = undisturbed(kind)
    found = Trained(THREE, kind, happens=calls({9: lambda: fail(failing, 25)}), checkpoint=tmp_path / "job.safetensors",
                    checkpoint_every=2)
    assert failing not in {x.device for x in found.model.parameters().values()} | set(found.world.devices)
    assert found.everything() == wanted


def test_one_device_after_the_other(fail: Fail, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is left of a model that began on three devices, but the last; a list of batches is gone through anew."""
    batches = [(ag.ag_tensor(X[:, k : k + 11]), ag.ag_tensor(Y[:, k : k + 11])) for k in range(0, 44, 11)]
    with ag.ag_device("cpu:3"):  # which is not in the world
        elsewhere = [(ag.ag_to_device(x, "cpu:3"), ag.ag_to_device(y, "cpu:3")) for x, y in batches]
    wanted = Trained(THREE, data=lambda: batches).everything()
    found = Trained(THREE, data=lambda: elsewhere, checkpoint=tmp_path / "job.safetensors", checkpoint_every=1,
                    happens=calls({3: lambda: fail("cpu", 10), 8: lambda: fail("cpu:1", 10)}))
    assert found.world.devices == ("cpu:2",) * 3
    assert len(caplog.messages) == 2
    assert found.everything() == wanted


def test_the_default_device_fails(fail: Fail, tmp_path: Path) -> None:
    wanted = undisturbed("data parallel")
    with ag.ag_device("cpu:1"):
        found = Trained(["cpu:1", "cpu", "cpu:2"], checkpoint=tmp_path / "job.safetensors", checkpoint_every=1,
                        happens=calls({5: lambda: fail("cpu:1", 3)}))
        assert ag.ag_default_device() == "cpu:1"
    assert found.everything() == wanted


def test_a_checkpoint_stays_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the program goes to another folder."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    Trained(["cpu"], checkpoint="job.safetensors", checkpoint_every=2, epochs=1,
            happens=calls({2: lambda: monkeypatch.chdir(tmp_path / "other")}))
    assert (tmp_path / "job.safetensors").exists() and not [*(tmp_path / "other").iterdir()]


def test_no_device_is_left(fail: Fail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.safetensors"

    def all_fail() -> None:
        for device in THREE:
            fail(device, 0)

    with expect_error("train_distributed when every device has failed", ag.DeviceError, "cpu, cpu:1, cpu:2 failed in "
                      "step 6", "no device is left", "resume=True"):
        Trained(THREE, happens=calls({6: all_fail}), checkpoint=path, checkpoint_every=4)
    monkeypatch.undo()
    again = Trained(["cpu:3", "cpu:3", "cpu:4"], checkpoint=path, resume=True)
    assert again.everything() == undisturbed("data parallel")


def test_one_failure_too_many(fail: Fail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.safetensors"
    with expect_error("train_distributed with more failures than max_restarts", ag.DeviceError, "cpu:1 failed in step",
                      "max_restarts are used up", "resume=True"):
        Trained(THREE, happens=calls({3: lambda: fail("cpu:2", 0), 6: lambda: fail("cpu:1", 0)}), checkpoint=path,
                max_restarts=1)
    monkeypatch.undo()
    with pytest.raises(ag.DeviceError, match="cpu:1: the device was lost"):  # without a checkpoint
        Trained(["cpu", "cpu:1"], home="cpu:1", happens=calls({3: lambda: fail("cpu:1", 0)}))


def test_what_is_no_failure_of_a_device_is_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def own_error() -> None:
        raise ag.DeviceError("a tensor is on another device.")

    with pytest.raises(ag.DeviceError, match="a tensor is on another"):
        Trained(THREE, happens=calls({3: own_error}), checkpoint=tmp_path / "job.safetensors")
    assert not caplog.messages


def test_a_replica_that_does_not_come_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All devices work, so the job goes on with all of them."""
    def late() -> None:
        raise ag.CommError("all_reduce: rank 1 did not come within 60 s.")

    found = Trained(THREE, happens=calls({6: late}), checkpoint=tmp_path / "job.safetensors")
    assert found.world.devices == tuple(THREE)
    (said,) = caplog.messages
    assert "a replica did not answer in step 6 (all_reduce: rank 1" in said and "going on from step 4" in said
    assert found.everything() == undisturbed("data parallel")


@pytest.mark.parametrize(("options", "fault"), [
    ({"checkpoint_every": 2}, "without checkpoint"), ({"resume": True}, "without checkpoint"),
    ({"checkpoint": "x", "checkpoint_every": 0}, "checkpoint_every is 0; a whole number of at least 1"),
    ({"checkpoint": "x", "max_restarts": -1}, "max_restarts is -1; a whole number of at least 0"),
    ({"checkpoint": "x", "data": lambda: iter([])}, "data is a list_iterator, which can be passed through once"),
    ({"epochs": 2, "data": lambda: iter([])}, "which can be passed through once, and epochs is 2"),
])
def test_wrong_arguments_are_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Trained(["cpu"], **options)


class Once:
    """Batches that are there in the first epoch only."""

    def __init__(self) -> None:
        self.left = [(X[:, :12], Y[:, :12])] * 3

    def __iter__(self) -> Any:
        while self.left:
            yield self.left.pop()


def test_an_epoch_without_batches_is_no_epoch() -> None:
    with expect_error("data that is gone after an epoch", ValueError, "no batch in epoch 1"):
        Trained(["cpu"], data=Once)


def test_a_loss_that_is_not_finite_ends_the_job() -> None:
    model = ag.ag_linear(4, 2)
    before = model.state_dict()
    with expect_error("a NaN in the data", FloatingPointError, "step 1 is nan", "as before the step"):
        ag.train_distributed(model, [(X * 0, Y * 0), (X * np.nan, Y)], ag.DistributedWorld.init(devices=["cpu"]),
                             ag.ag_mse_loss, ag.optimizer_sgd(model, lr=0.1))
    assert all(x.tobytes() == before[name].tobytes() for name, x in model.state_dict().items())


def test_zero_cannot_be_restarted(tmp_path: Path) -> None:
    zero = ag.ZeroOptimizer(ag.ag_linear(4, 2), devices=["cpu", "cpu:1"])
    world = ag.DistributedWorld.init(devices=["cpu", "cpu:1"])
    optimizer: Any = zero
    with pytest.raises(ValueError, match="a ZeroOptimizer, whose state cannot go to another device"):
        ag.train_distributed(zero.model, [], world, ag.ag_mse_loss, optimizer, checkpoint=tmp_path / "x")


@pytest.mark.slow
@pytest.mark.vulkan
def test_two_vendors_of_which_one_fails(lavapipe: str, swiftshader: str, fail: Fail, tmp_path: Path) -> None:
    """Lost for good in a process of its own: test_faults."""
    found = Trained([lavapipe, swiftshader], checkpoint=tmp_path / "job.safetensors", checkpoint_every=2,
                    happens=calls({5: lambda: fail(lavapipe, 7)}))
    assert found.world.devices == (swiftshader, swiftshader)
    np.testing.assert_allclose(found.losses, Trained(["cpu", "cpu:1"]).losses, atol=1e-4)


@pytest.mark.parametrize(("options", "error", "words"), [
    ({"epochs": 2.0}, ValueError, "epochs is 2.0"), ({"epochs": -1}, ValueError, "epochs is -1"),
    ({"epochs": True}, ValueError, "epochs is True"),
    ({"checkpoint": "no folder/job"}, ag.CheckpointError, "cannot be written"),
])
def test_what_is_refused_before_the_first_step(options: dict[str, Any], error: type[Exception], words: str) -> None:
    world = ag.DistributedWorld.init(devices=["cpu"])
    model = ag.DataParallel(ag.ag_linear(2, 1), world.devices)
    before = model.module.W.numpy()
    data = [(ag.ag_tensor([[1.0], [2.0]]), ag.ag_tensor([[1.0]]))]
    with pytest.raises(error, match=words):
        ag.train_distributed(model, data, world, ag.ag_mse_loss, **options)
    assert np.array_equal(model.module.W.numpy(), before)


@pytest.mark.parametrize("extra", [None, {"epoch": 1, "batch": 0, "losses": ["x"]}, {"epoch": -1, "batch": 0}])
def test_a_checkpoint_of_another_kind_is_refused(extra: Any, tmp_path: Path) -> None:
    world, path = ag.DistributedWorld.init(devices=["cpu"]), tmp_path / "job"
    model = ag.DataParallel(ag.ag_linear(2, 1), world.devices)
    optimizer = ag.optimizer_adam(model.parameters())
    data = ag.ag_dataloader(X[:2], Y[:1], batch_size=12, seed=1)
    ag.ag_save_checkpoint(path, model, optimizer, dataloader=data, step=1, extra=extra)
    with expect_error("another checkpoint", ag.CheckpointError, "train_distributed", "job", "losses"):
        ag.train_distributed(model, data, world, ag.ag_mse_loss, optimizer, checkpoint=path, resume=True)
