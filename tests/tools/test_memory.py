"""`ag.memory` and `ag.free_memory`: exact numbers, kinds, and memory that really goes back."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

import ag
from ag.engine.device import backend_of, open_backends

STATM = Path("/proc/self/statm")
BIG = np.ones((1 << 20, 8), np.float32)  # 32 MiB


@pytest.fixture(params=["cpu:5", pytest.param("lavapipe", marks=pytest.mark.vulkan),
                        pytest.param("swiftshader", marks=pytest.mark.vulkan)])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """A device whose memory nothing else uses, or only what is constant meanwhile."""
    name = request.param if request.param.startswith("cpu") else request.getfixturevalue(request.param)
    with ag.ag_device(name):
        gc.collect()
        yield name


def used(device: str) -> dict[str, int]:
    return dict(ag.memory(device)[device])


def grown(before: dict[str, int], device: str) -> dict[str, int]:
    """Return by how much each kind has grown."""
    after = used(device)
    kinds = ("used", "parameters", "gradients", "optimizers", "captured")
    return {kind: after[kind] - before[kind] for kind in kinds if after[kind] != before[kind]}


def resident() -> int:
    return int(STATM.read_text().split()[1]) * 4096


def test_each_kind(place: str) -> None:
    before = used(place)
    W = ag.ag_param(np.ones((64, 256)))  # 64 KiB
    x = ag.ag_tensor(np.ones((64, 256)))
    assert grown(before, place) == {"used": 2 << 16, "parameters": 1 << 16}
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_exp(W))  # which is saved
    assert (2 << 16) + 4 <= grown(before, place)["used"] - (1 << 16) <= (2 << 16) + 1024
    ag.backward(loss)
    del loss
    found = grown(before, place)
    assert found["gradients"] == found["parameters"] == 1 << 16
    optimizer = ag.optimizer_adam({"W": W})
    found = grown(before, place)
    assert found["parameters"] == 1 << 16  # which lies in the optimizer's flat buffer now
    assert found["gradients"] == 2 << 16 and 2 << 16 < found["optimizers"] <= (2 << 16) + 2048
    del optimizer, x
    W.grad = None
    found = grown(before, place)
    assert found.pop("used") <= (1 << 16) + 1024 and found == {"parameters": 1 << 16}


def test_a_captured_step(place: str) -> None:
    W = ag.ag_param(np.ones((64, 256)))
    before = used(place)
    step = ag.ag_capture(lambda x: ag.ag_sum(ag.ag_matmul(W, ag.ag_exp(x))))
    for _ in range(3):
        step(ag.ag_tensor(np.ones((256, 64))))
    assert step.program is not None and 1 << 16 <= grown(before, place)["captured"] <= step.program.nbytes
    step.close()
    assert "captured" not in grown(before, place)


def test_all_adds_up_and_prints(place: str) -> None:
    W = ag.ag_param(np.ones((4, 4)))
    row = used(place)
    assert row["used"] == sum(list(row.values())[4:]) and row["used"] <= row["peak"] <= row["reserved"] <= row["total"]
    head, line = str(ag.memory(place)).splitlines()
    assert head.split() == ["MiB", *row] and line.split()[0] == place
    assert place in ag.memory() and W.device == place


def test_the_peak(place: str) -> None:
    x = ag.ag_tensor(BIG[: 1 << 17])  # 4 MiB
    del x
    base = ag.memory(place, reset_peak=True)[place]["used"]
    assert used(place)["peak"] == base
    x = ag.ag_tensor(BIG[: 1 << 17])
    del x
    for _ in range(2):  # the reading that resets it shows the one before
        assert ag.memory(place, reset_peak=True)[place]["peak"] == base + (4 << 20)
        x = ag.ag_tensor(BIG[: 1 << 17])
        del x


@pytest.mark.skipif(not STATM.is_file(), reason="the system does not tell")
def test_memory_goes_back(place: str) -> None:
    W = ag.ag_param(np.full((8, 8), 2.0))
    optimizer = ag.optimizer_adam({"W": W})
    step = ag.ag_capture(lambda x: ag.ag_sum(W * x))
    expected = [step(ag.ag_tensor(np.ones((8, 8)))).item() for _ in range(4)]
    ag.free_memory(place)
    before, reserved = resident(), used(place)["reserved"]
    x = ag.ag_tensor(BIG)
    y = x + x
    assert ag.ag_sum(y).item() == 2.0 * BIG.size and resident() > before + BIG.nbytes
    assert ag.free_memory(place) < BIG.nbytes  # nothing of what is used
    assert y.numpy()[-1, -1] == 2.0
    del x, y
    assert ag.free_memory(place) >= 2 * BIG.nbytes and ag.free_memory(place) == 0
    assert used(place)["reserved"] == reserved and resident() < before + BIG.nbytes // 2
    assert [step(ag.ag_tensor(np.ones((8, 8)))).item() for _ in range(4)] == expected
    with ag.with_grad_tape():
        loss = ag.ag_sum(W * W)
    optimizer.step(ag.backward(loss))
    x = ag.ag_tensor(BIG[: 1 << 19])  # in a new segment
    assert (x + x).numpy().max() == 2.0


def test_after_dp_train_on_several_cpu_devices() -> None:
    """Devices that reach each other's memory let go of it, too."""
    data = [(np.ones((512, 1), np.float32), np.ones((1, 1), np.float32))] * 4
    ag.dp_train(lambda: ag.ag_sequential(ag.ag_linear(512, 4096), ag.ag_linear(4096, 1)), data,
                ag.ag_mse_loss, lambda model, s: model.forward(s[0]), lambda s: s[1], n_iter=2,
                devices=["cpu:6", "cpu:7"], verbose=False)
    assert ag.free_memory() > 0
    alive = {id(there) for backend in open_backends() for n, there in backend.arena.segments if n}
    assert all(id(there) in alive for name in ("cpu", "cpu:6", "cpu:7")
               for _, there in backend_of(name).arena.segments if there is not None)


def test_a_captured_step_refuses(place: str) -> None:
    with pytest.raises(ag.CaptureError, match="frees memory"):
        ag.ag_capture(lambda x: (ag.free_memory(), x * 2.0)[1])(ag.ag_tensor([1.0]))


def test_beside_a_recording_and_threads(place: str) -> None:
    """Another thread frees and counts while this one records, and while others make tensors."""
    end, failed = Event(), list[BaseException]()

    def meddle() -> None:
        try:
            while not end.is_set():
                ag.free_memory(place)
                row = used(place)
                assert row["other"] >= 0 and row["used"] <= row["reserved"]
        except BaseException as error:  # noqa: BLE001 - reported below
            failed.append(error)

    thread = Thread(target=meddle)
    thread.start()
    try:
        W = ag.ag_param(np.full((32, 32), 0.5))
        for k in range(8):
            step = ag.ag_capture(lambda x: ag.ag_sum(ag.ag_matmul(W, x) * x))
            x = np.full((32, 32), float(k), np.float32)
            assert {step(x).item() for _ in range(3)} == {16.0 * k * k * 1024}
            del step
    finally:
        end.set()
        thread.join()
    assert not failed


def test_a_device_that_is_closed_and_an_unknown_one() -> None:
    with pytest.raises(ag.DeviceError, match="unknown device"):
        ag.memory("tpu")
    with pytest.raises(ag.DeviceError, match="unknown device"):
        ag.free_memory("tpu")


def test_too_little_memory_is_told_before_the_step(caplog: pytest.LogCaptureFixture,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured step asks for its memory as a whole, before it is run; the log says so once per device."""
    arena = backend_of("cpu:8").arena
    monkeypatch.setattr(arena, "_budget", lambda: 1 << 20)
    monkeypatch.setattr(arena, "_told", False)
    with ag.ag_device("cpu:8"):
        small = [ag.ag_tensor(np.ones((256, 256))) for _ in range(4)]
        assert not caplog.records
        big = [ag.ag_tensor(BIG[: 1 << 19]) for _ in range(2)]
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith("cpu:8: 0.02 GB more are needed and 0.00 GB are free")
    assert "smaller batches" in message and "ag_checkpoint" in message and "ag.memory()" in message
    assert len(small) + len(big) == 6


@pytest.mark.skipif(not hasattr(backend_of("cpu:9"), "run"), reason="there was no compiler")
def test_a_captured_step_is_told_of_before_it_runs(caplog: pytest.LogCaptureFixture,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    arena, ran = backend_of("cpu:9").arena, list[int]()
    with ag.ag_device("cpu:9"):
        W = ag.ag_param(np.ones((1 << 10, 4)))
        x = ag.ag_tensor(np.ones((4, 1 << 12)))
    monkeypatch.setattr(arena, "_budget", lambda: 1 << 20)
    run: Callable[..., object] = getattr(backend_of("cpu:9"), "run")  # noqa: B009 - of C kernels alone

    def noted(*args: object) -> object:
        ran.append(len(caplog.records))
        return run(*args)

    monkeypatch.setattr(backend_of("cpu:9"), "run", noted)
    ag.ag_capture(lambda x: ag.ag_sum(ag.ag_softmax(ag.ag_matmul(W, x))))(x)  # of 16 MiB
    (record,) = caplog.records
    assert "cpu:9: 0.02 GB more are needed" in record.getMessage() and ran and 0 not in ran


def test_fit_says_before_its_first_step_that_memory_may_not_suffice(
        caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of a batch, counted by a pass of one sample, with gradients; fewer samples fit."""
    arena, told = backend_of("cpu:17").arena, list[str]()
    monkeypatch.setattr(arena, "_budget", lambda: 1 << 20)
    monkeypatch.setattr(arena, "_told", True)  # of what is asked for later

    def loss(output: ag.Tensor, target: ag.Tensor) -> ag.Tensor:
        told.append(caplog.text)
        return ag.ag_mse_loss(output, target)

    with ag.ag_device("cpu:17"):
        model = ag.ag_sequential(ag.ag_linear(2, 1 << 12, activation="relu"), ag.ag_linear(1 << 12, 1))
    data = np.ones((512, 2), np.float32), np.ones((512, 1), np.float32)
    ag.fit(model, data, loss=loss, epochs=1, batch_size=8, verbose=False, capture=False)
    assert not any(told)
    told.clear()
    ag.fit(model, data, loss=loss, epochs=1, batch_size=512, verbose=False, capture=False)
    (record,) = caplog.records
    assert "fit: a step needs about 0.0" in record.getMessage() and "accumulate" in record.getMessage()
    assert "fit: a step needs" in told[0]


def test_an_allocation_that_fails_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_of("cpu:8").arena, "_limit_bytes", 1 << 10)
    with pytest.raises(ag.ArenaError, match=r"ag_checkpoint.*ag\.memory\(\) tells"):
        ag.ag_tensor(BIG, "cpu:8")
