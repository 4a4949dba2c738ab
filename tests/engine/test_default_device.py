"""The default device is the best card. lavapipe and SwiftShader stand for cards."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from helpers.devices import run_code

import ag
from ag.engine.device import default_backend, default_devices, prefer

pytestmark = pytest.mark.vulkan

EVERYTHING = """
import os
from threading import Thread
from ag.engine.device import open_backends

said["opened"] = [b.name for b in open_backends()]
said["before"] = [str(ag.ag_device("cpu")), ag.ag_device("auto"), ag.ag_default_device()]
places = said["places"] = {"tensor": ag.ag_tensor([1.0]).device, "op": ag.ag_exp([[1.0]]).device}
thread = Thread(target=lambda: places.update(thread=ag.ag_tensor([1.0]).device))
thread.start()
thread.join()
model = ag.ag_sequential(ag.ag_linear(3, 4), ag.ag_linear(4, 2))
X, y = np.ones((8, 3), np.float32), np.arange(8) % 2
ag.fit(model, (X, y), epochs=1, verbose=False)
places["fit"], places["layer"] = model.parameters()["layer1_W"].device, model(X.T).device
places["dp_train"], _ = ag.dp_train(lambda: ag.ag_linear(3, 2), [X.T[:, :1]] * 2, ag.ag_mse_loss,
                                    target_fn=lambda s: s[:2], n_iter=1, verbose=False).devices
places["loader"] = next(iter(ag.ag_dataloader(X.T, y, batch_size=4))).x.device
W = ag.ag_param([[2.0]])
said["gradcheck"] = ag.ag_gradcheck(lambda t: ag.ag_sum(t["W"] * t["W"]), {"W": W}, quiet=True)
with ag.ag_dtype("f64"):
    wide = ag.ag_param([[1.0]])
    said["wide"] = [wide.device, (wide * 2.0).device, ag.ag_exp([[1.0]]).device, ag.ag_linear(2, 2).W.device]
said["mixed"] = error_of(lambda: wide + W)
with ag.ag_device(W.device):
    said["named"] = error_of(lambda: ag.ag_tensor([1.0], dtype="f64"))
ag.ag_shutdown()
places["after ag_shutdown"] = ag.ag_tensor([1.0]).device
"""


def test_all_use_the_card(lavapipe: str) -> None:
    said = run_code(EVERYTHING, AG_SOFTWARE="1", AG_VULKAN_DEVICES=lavapipe.removeprefix("vulkan:") + ",0,1")
    assert said["opened"] == [] and said["before"] == ["auto", "cpu", lavapipe]
    assert set(said["places"].values()) == {lavapipe} and len(said["places"]) == 8
    assert said["gradcheck"] is True and set(said["wide"]) == {"cpu"}
    assert said["mixed"][0] == "DeviceError" and f"cpu and {lavapipe}" in said["mixed"][1]
    assert said["named"][0] == "DtypeError" and "cannot hold f64" in said["named"][1]
    assert "auto" not in said["err"]


FORK = """
import os
first = ag.ag_tensor([1.0]).device
reading, writing = os.pipe()
if os.fork() == 0:
    where = ag.ag_tensor([1.0]).device
    os.write(writing, f"{where} {ag.free_memory()} {list(ag.memory())[-1]}".encode())
    os._exit(0)
os.wait()
said["places"] = [first, *os.read(reading, 99).decode().split(), ag.ag_tensor([1.0]).device]
"""


def test_a_forked_child_uses_the_cpu(lavapipe: str) -> None:
    said = run_code(FORK, AG_SOFTWARE="1", AG_VULKAN_DEVICES=lavapipe)
    assert said["places"] == [lavapipe, "cpu", str(16 << 20), "cpu", lavapipe]


def test_software_is_no_card(lavapipe: str) -> None:
    said = run_code("said['places'] = [ag.ag_tensor([1.0]).device, ag.ag_default_device()]\n")
    assert said["places"] == ["cpu", "cpu"] and said["err"] == ""


def test_a_setting_comes_back(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ag.engine.device._chosen", {})
    monkeypatch.setenv("AG_SOFTWARE", "1")
    with ag.ag_device("auto") as before:
        card = ag.ag_default_device()
        assert before == "cpu" and card.startswith("vulkan")
        previous = ag.ag_device("cpu:1")
        assert (previous, repr(previous)) == ("auto", "<now 'cpu:1', before 'auto'>")
        assert default_devices() == ["cpu:1"]
        ag.ag_device(previous)
        assert ag.ag_default_device() == card and default_devices(1) == [card]
        monkeypatch.delenv("AG_SOFTWARE")
        assert ag.ag_default_device() == card  # as before, in the whole process
        prefer("cpu:2")
        assert default_backend().name == "cpu:2"
        with ag.ag_device("auto"):  # chooses anew
            assert ag.ag_default_device() == "cpu"
    assert ag.ag_default_device() == "cpu"


def test_dp_train_says_at_level_info_that_there_is_no_card(caplog: pytest.LogCaptureFixture,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ag.engine.device._chosen", {})
    data = [np.ones((1, 1), np.float32)] * 2
    for level, lines in ((logging.WARNING, 0), (logging.INFO, 1)):
        caplog.clear()
        with caplog.at_level(level, "ag"), ag.ag_device("auto"):
            ag.dp_train(lambda: ag.ag_linear(1, 1), data, ag.ag_mse_loss, n_iter=1, verbose=False)
        assert sum("run on the CPU" in record.getMessage() for record in caplog.records) == lines
