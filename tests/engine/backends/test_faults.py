"""The process goes on when the machine fails: no memory, a lost device, no driver, no extension."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.devices import EXTENSION, WITHOUT_EXTENSION, run_code
from helpers.devices import expect_reported as expect

import ag
from ag.engine.backends.shader import manifest

Run = Callable[..., dict[str, Any]]
DRIVERS = ["lavapipe", pytest.param("swiftshader", marks=pytest.mark.slow)]


@pytest.fixture
def run() -> Run:
    return run_code


OUT_OF_MEMORY = """
with ag.ag_device(DEVICE):
    kept = []

    def fill():
        while len(kept) < 40:
            kept.append(ag.ag_tensor(np.full((1 << 20,), len(kept), np.float32)))

    said["error"] = error_of(fill)
    said["right"] = all(bool((t.numpy() == k).all()) for k, t in enumerate(kept))
    said["kept"] = len(kept)
    del kept[4:]
    again = ag.ag_tensor(np.ones((1 << 21,), np.float32))
    said["again"] = ag.ag_sum(again).item()
    said["small"] = ag.ag_sum(kept[3]).item()
"""


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_out_of_memory(run: Run, layer: dict[str, str], driver: str, request: pytest.FixtureRequest) -> None:
    device = request.getfixturevalue(driver)
    said = run(OUT_OF_MEMORY.replace("DEVICE", repr(device)), **layer, KPFAULT_ALLOC_LIMIT=str(100 << 20))
    expect("a device runs out of memory", said["error"], ag.ArenaError, "4194304 bytes", "in use", "smaller batches")
    assert 10 <= said["kept"] < 25
    assert said["right"] and said["again"] == 1 << 21 and said["small"] == 3 << 20
    assert said["err"] == ""


OPENED = "for info in ag.ag_vulkan_devices():\n    ag.ag_synchronize(info.name)\n"  # in the order of their numbers
DEVICE_LOST = """
lost, healthy = DEVICES
W = ag.ag_param(np.ones((3, 3)), device=lost)
fine = ag.ag_param(np.ones((3, 3)), device=healthy)

def work():
    for _ in range(50):
        (W @ W).numpy()

said["error"] = error_of(work)
said["later"] = error_of(lambda: (W @ W).numpy())
said["upload"] = error_of(lambda: ag.ag_tensor(np.ones((3, 3)), device=lost).numpy())
said["healthy"] = (fine @ fine).numpy().tolist()
said["cpu"] = ag.ag_sum(ag.ag_tensor([1.0, 2.0])).item()
said["closed"] = error_of(ag.ag_shutdown)
"""


@pytest.mark.vulkan
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_device_lost(run: Run, layer: dict[str, str], number: int, swiftshader: str) -> None:
    lost, healthy = f"vulkan:{number}", f"vulkan:{1 - number}"
    said = run(OPENED + DEVICE_LOST.replace("DEVICES", repr((lost, healthy))), **layer,
               KPFAULT_LOST_AFTER="10", KPFAULT_DEVICE=str(number))
    for situation in ("error", "later", "upload"):
        expect("a device is lost", said[situation], ag.DeviceError, f"{lost}: the device was lost", "checkpoint",
               "whose costliest launch is", "watchdog", "AG_SUBMIT_MS=")
    assert said["healthy"] == [[3.0] * 3] * 3 and said["cpu"] == 3.0
    assert said["closed"] is None
    assert said["err"] == ""


TRAIN = """
data = [(np.ones((4, 1), np.float32), np.ones((2, 1), np.float32))] * 8

def train():
    result = ag.dp_train(lambda: ag.ag_linear(4, 2), data, ag.ag_mse_loss, lambda m, s: m(s[0]), lambda s: s[1],
                         n_iter=STEPS, seed=1, verbose=False)
    said["devices"], said["loss"] = result.devices, result.loss

"""


@pytest.mark.slow
@pytest.mark.vulkan
def test_device_lost_in_dp_train(run: Run, layer: dict[str, str], swiftshader: str) -> None:
    said = run(TRAIN.replace("STEPS", "60") + """
said["error"] = error_of(train)
said["default"] = ag.ag_default_device()
with ag.ag_device("cpu"):
    said["cpu"] = ag.ag_sum(ag.ag_tensor([1.0, 2.0])).item()
""", **layer, AG_SOFTWARE="1", KPFAULT_LOST_AFTER="30", KPFAULT_DEVICE="1")
    assert said["error"] is None and said["devices"] == ["vulkan:0"]
    assert said["default"] == "vulkan:0" and said["cpu"] == 3.0
    assert "dp_train: vulkan:1 failed in step" in said["err"] and "1 of 2 replicas go on" in said["err"]


RESTART = """
import logging
logging.basicConfig(format="%(message)s", stream=sys.stdout)
x, y = np.ones((4, 8), np.float32), np.ones((2, 8), np.float32)
found = []
for devices, options in ((["vulkan:0", "vulkan:1"], {"checkpoint": PATH, "checkpoint_every": 5}), (["cpu"] * 2, {})):
    world = ag.DistributedWorld.init(devices=devices)
    with ag.ag_device(devices[LOST] if len(set(devices)) == 2 else "cpu"):  # which has the weights
        ag.ag_seed(3)
        model = ag.DataParallel(ag.ag_linear(4, 2), devices)
        found.append(ag.train_distributed(model, [(x, y)] * 60, world, ag.ag_mse_loss,
                                          ag.optimizer_sgd(model, lr=0.02), **options))
    said.setdefault("devices", world.devices)
    said.setdefault("places", sorted({p.device for p in model.parameters().values()}))
said["steps"] = [len(losses) for losses in found]
said["off"] = float(np.abs(np.subtract(*found)).max())
said["closed"] = error_of(ag.ag_shutdown)
"""


@pytest.mark.slow
@pytest.mark.vulkan
@pytest.mark.parametrize("number", [0, 1])
def test_device_lost_in_train_distributed(run: Run, layer: dict[str, str], number: int, swiftshader: str,
                                          tmp_path: Path) -> None:
    code = RESTART.replace("PATH", repr(str(tmp_path / "job.safetensors"))).replace("LOST", str(number))
    said = run(OPENED + code, **layer, KPFAULT_LOST_AFTER="100", KPFAULT_DEVICE=str(number))
    survivor = f"vulkan:{1 - number}"
    assert said["devices"] == [survivor] * 2 and said["places"] == [survivor]
    assert said["steps"] == [60, 60] and said["off"] < 1e-4
    (line,) = [line for line in said["out"].splitlines() if line.startswith("train_distributed: ")]
    assert f"vulkan:{number} failed in step" in line and f"on {survivor}." in line
    assert said["closed"] is None and said["err"] == ""


LOOK = """
said["count"] = ag.ag_vulkan_device_count()
said["list"] = ag.ag_vulkan_devices()
said["gpu"] = error_of(lambda: ag.ag_device("gpu"))
said["named"] = error_of(lambda: ag.ag_device("vulkan:0"))
ag.ag_device("auto")
said["auto"] = ag.ag_default_device()
ag.ag_vulkan_status()
train()
"""
NO_DRIVER = {"VK_ICD_FILENAMES": "/nonexistent", "VK_DRIVER_FILES": "/nonexistent"}


@pytest.mark.parametrize(("before", "environment", "missing"), [
    ("", NO_DRIVER, ["vulkan:0", "mesa-vulkan-drivers"]),
    (WITHOUT_EXTENSION + "\n", {}, ["this installation of ag has no Vulkan extension", "pip install ag-autograd"])],
    ids=["driver", "extension"])
def test_nothing_but_the_cpu(run: Run, before: str, environment: dict[str, str], missing: list[str]) -> None:
    if environment:
        pytest.importorskip(EXTENSION, reason="it was not built, and then the driver is not what is missing")
    said = run(before + TRAIN.replace("STEPS", "2") + LOOK, **environment)
    expect("ag_device('gpu') without Vulkan", said["gpu"], ag.DeviceError, "'gpu'", "no Vulkan device")
    expect("ag_device('vulkan:0') without Vulkan", said["named"], ag.DeviceError, *missing)
    assert said["count"] == 0 and said["list"] == [] and said["auto"] == "cpu" and said["devices"] == ["cpu"]
    assert said["loss"] > 0
    assert missing[1] in said["out"]  # the status
    assert said["err"] == ""  # what dp_train logs is no warning


NO_KERNELS = """
from pathlib import Path
from ag.engine.backends.shader import manifest
manifest._SPV = Path(PATH)
"""


@pytest.mark.vulkan
@pytest.mark.parametrize("name", ["manifest.json", pytest.param("exp.spv", marks=pytest.mark.slow)])
def test_a_device_without_kernels_does_not_count(run: Run, lavapipe: str, tmp_path: Path, name: str) -> None:
    spv = tmp_path / "spv"
    shutil.copytree(manifest._SPV, spv)
    (spv / name).unlink()
    said = run(NO_KERNELS.replace("PATH", repr(str(spv))) + TRAIN.replace("STEPS", "2") + LOOK + "train()\n")
    expect("ag_device('gpu') without kernels", said["gpu"], ag.DeviceError, "'gpu'", "no Vulkan device")
    expect("ag_device('vulkan:0') without kernels", said["named"], ag.KernelError, "Vulkan: ", "kernels_build.py")
    assert said["count"] == 0 and said["list"] == [] and said["auto"] == "cpu" and said["devices"] == ["cpu"]
    assert said["loss"] > 0 and "kernels_build.py" in said["out"]
    counts, auto, *trained = said["err"].splitlines()
    assert counts.startswith("ag_vulkan_devices: none counts") and auto.startswith("ag_device: 'auto' is 'cpu' here")
    for line in trained:
        assert line.startswith("dp_train: Vulkan: ") and "run on the CPU" in line
    assert len(trained) == 2 and all("kernels_build.py" in line for line in (counts, auto, *trained))


@pytest.mark.vulkan
def test_the_status_with_devices(lavapipe: str, swiftshader: str, capsys: pytest.CaptureFixture[str]) -> None:
    ag.ag_vulkan_status()
    table = capsys.readouterr().out
    for word in (lavapipe, swiftshader, "llvmpipe", "SwiftShader", "Mesa", "Google"):
        assert word in table
    assert ag.ggml_vulkan_device_count() == len(ag.ggml_vulkan_list_devices()) >= 2


@pytest.mark.vulkan
def test_one_driver_of_two_missing(run: Run, lavapipe: str) -> None:
    files = os.environ.get("VK_ICD_FILENAMES", "").split(os.pathsep)
    icd = next((path for path in files if "lvp" in path), None)
    if icd is None:
        pytest.skip("VK_ICD_FILENAMES does not name lavapipe, so it cannot be listed beside a missing driver")
    said = run("said['names'] = [d.description for d in ag.ag_vulkan_devices()]",
               VK_ICD_FILENAMES=os.pathsep.join([icd, "/nonexistent"]))
    assert len(said["names"]) == 1 and "llvmpipe" in said["names"][0]


AFTER_CLOSING = """
import os, signal
x, kept = ag.ag_tensor(np.ones((3, 1)), device=DEVICE), []
x.numpy()
if KEEP:
    kept.append(ag.engine.device.backend_of(DEVICE)._manager)
ag.ag_shutdown()
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    try:
        print("CHILD", float(ag.ag_sum(ag.ag_tensor(np.ones((3, 1)), device=DEVICE))), flush=True)
    except ag.DeviceError as error:
        print("CHILD", error, flush=True)
    os._exit(0)
said["status"] = os.waitpid(pid, 0)[1]
"""


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("keep", [False, True], ids=["tensors are kept", "the driver is still in use"])
def test_a_forked_child_after_the_device_was_closed(run: Run, driver: str, keep: bool,
                                                    request: pytest.FixtureRequest) -> None:
    said = run(AFTER_CLOSING.replace("DEVICE", repr(request.getfixturevalue(driver))).replace("KEEP", repr(keep)))
    assert said["status"] == 0 and ("this is a forked child" if keep else "CHILD 3.0") in said["out"], said


@pytest.mark.slow
@pytest.mark.vulkan
def test_a_spawned_child_works(run: Run, lavapipe: str, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("import ag\ndef work(device):\n"
                                        "    return ag.ag_sum(ag.ag_tensor([1.0, 2.0], device)).item()\n")
    said = run(f"""
import multiprocessing
sys.path.insert(0, {str(tmp_path)!r})
import worker
said["here"] = worker.work({lavapipe!r})
with multiprocessing.get_context("spawn").Pool(1) as pool:
    said["there"] = pool.apply(worker.work, ({lavapipe!r},))
""", PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert said["here"] == said["there"] == 3.0
