"""Kernels on devices that have less than a software driver: what does not fit is not chosen, or is refused by name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.devices import expect_reported
from limits.conftest import Limited

import ag
from ag.engine.backend import DeviceInfo
from ag.engine.backends.shader.manifest import kernel_state
from ag.engine.backends.vulkan.pipelines import Kernels

ROOT = Path(__file__).parents[2]
DISCRETE = 2
SMALLEST = {"SHARED": 16384, "INVOCATIONS": 128}  # what Vulkan guarantees
SMALL = {"SHARED": 16384, "INVOCATIONS": 256}  # of a Raspberry Pi
FEW = {"BINDINGS": 9}  # storage buffers: attention_grad has an operand more

CHOSEN = """
from ag.engine.device import backend_of
device = backend_of(DEVICE)
limits = device._manager.get_device_properties()
said["limits"] = [limits["max_shared_memory"], limits["max_work_group_invocations"]]
tiles = device._kernels.tiles
chosen = [tiles.choose(rows, cols, 1) for rows in (4, 64, 256, 2048) for cols in (4, 64, 256, 2048)]
said["most"] = [max(t.shared_bytes for t in chosen), max(t.threads for t in chosen)]
said["kinds"] = sorted(kind for kind, _ in tiles.rates)
said["heads"] = device.target.longest_sequence > 0
from ag.engine.backends.shader import plans
from ag.engine.kernels.attention import attention, attention_grad
given = {"heads": 1, "factor": 1.0, "causal": False, "rate": 0.0}
x, row = (32, 64, 1), (1, 64, 1)
said["held"] = [dict(zip([c["name"] for c in plans.manifest()["kernels"][primitive.name]["spec"]],
                         device._kernels.plan(primitive, shapes, given, (0,)).spec))["held"]
                for primitive, shapes in ((attention, (x, row, x, x, x, (4,))),
                                          (attention_grad, (*[x] * 7, row, row, (4,))))]
rng = np.random.default_rng(0)
x = rng.standard_normal((64, 40, 2)).astype(np.float32)
a, b = rng.standard_normal((300, 70)).astype(np.float32), rng.standard_normal((70, 260)).astype(np.float32)
results = {}
for name in ("cpu", DEVICE):
    with ag.ag_device(name):
        q, W = ag.ag_param(x), ag.ag_param(a)
        with ag.with_grad_tape():
            y = ag.ag_attention(q, q, q, causal=True, heads=2)
            loss = ag.ag_sum(y * y) + ag.ag_sum(ag.ag_relu(ag.ag_matmul(W, b)))
        ag.backward(loss)
        results[name] = [y.numpy(), q.grad.numpy(), W.grad.numpy(), ag.ag_matmul(W, b).numpy()]
said["right"] = all(np.allclose(g, w, rtol=1e-4, atol=1e-4) for g, w in zip(*results.values()))
said["launched"] = sorted({file.partition(".")[0] for file, _ in device._kernels._algorithms})
"""


@pytest.mark.parametrize(("limits", "kinds"), [
    (SMALLEST, ["M", "M1", "S"]), (SMALL, ["M", "M1", "S"]), (FEW, ["L2", "M", "M1", "S"]),
    ({}, ["L2", "M", "M1", "S"])], ids=["128", "256", "few operands", "unlimited"])
def test_what_does_not_fit_is_not_chosen(limited: Limited, limits: dict[str, int], kinds: list[str]) -> None:
    said = limited(CHOSEN, TYPE=DISCRETE, **limits)
    assert said["right"] and said["kinds"] == kinds
    assert all(most <= limit for most, limit in zip(said["most"], said["limits"], strict=True))
    assert said["heads"] == (limits != FEW)
    assert ("attention" in said["launched"]) == ("attention_grad" in said["launched"]) == (limits != FEW)
    assert said["held"] == [0, 0]  # of attention's operands and its gradient's, as nothing is known of such a card


@pytest.mark.skipif(kernel_state("attention") == "none", reason="the kernels are not compiled")
@pytest.mark.parametrize(("buffers", "fits"), [(9, False), (10, True)])
def test_attention_is_used_if_its_gradient_fits(buffers: int, fits: bool) -> None:
    limits = {"max_storage_buffers": buffers, "max_work_group_invocations": 1024, "max_shared_memory": 49152,
              "max_work_group_size": (1024, 1024, 64), "max_storage_buffer_range": 1 << 30, "api_version": 0,
              "driver_id": 0, "preserves_nan": True, "rounds_to_nearest": True, "keeps_denormals": True,
              "required_subgroup_sizes": (0, 0)}
    manager: Any = SimpleNamespace(get_device_properties=lambda: limits)
    target = Kernels(manager, DeviceInfo("vulkan:0", "A card", "Intel", "1", "discrete", 8 << 30)).target(3)
    assert (target.longest_sequence > 0) is fits and target.fuse_from == 1


REFUSED = """
with ag.ag_device(DEVICE):
    x = ag.ag_tensor(np.arange(6.0).reshape(2, 3))
    said["right"] = ag.ag_sum(ag.ag_relu(ag.ag_matmul(x, np.ones((3, 4))) + 1)).item()
    W = ag.ag_param(np.ones((2, 2)))
    optimizer = ag.optimizer_adam([W])

    def step():
        with ag.with_grad_tape():
            loss = ag.ag_sum(ag.ag_relu(ag.ag_matmul(W, np.ones((2, 2)))))
        optimizer.step(ag.backward(loss))

    said["error"] = error_of(step)
    fused = ag.ag_capture(lambda y: ag.ag_sum(ag.ag_relu(ag.ag_matmul(x, y) + 1) * 2))
    said["captured"] = [fused(np.ones((3, 4), np.float32)).item() for _ in range(3)]
"""


def test_a_kernel_that_does_not_fit_is_refused_by_name(limited: Limited) -> None:
    """Four storage buffers are all that Vulkan guarantees; adam_update has ten operands."""
    said = limited(REFUSED, BINDINGS=4)
    expect_reported("a kernel of more operands than a device can bind", said["error"], ag.KernelError, "adam_update",
                    "llvmpipe", "10 storage buffers", "has 4", "another device")
    assert said["right"] == 68.0 and said["captured"] == [136.0] * 3  # 4 * (0 + 1 + 2 + 3 + 4 + 5) + 8


FORCED = """
with ag.ag_device(DEVICE):
    said["error"] = error_of(lambda: ag.ag_matmul(np.ones((64, 64)), np.ones((64, 64))))
"""


def test_a_kind_of_tiles_that_is_forced_and_does_not_fit(limited: Limited) -> None:
    said = limited(FORCED, {"AG_MATMUL_TILE": "L"}, SHARED=16384)
    expect_reported("tiles that need more than the device has", said["error"], ag.KernelError, "matmul",
                    "16896 bytes of shared", "has 16384")


SIZED = """
import logging
logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
from ag.engine.device import backend_of
def products():
    device = backend_of(DEVICE)
    rng, wrong = np.random.default_rng(0), 0
    for rows, inner, cols in ((130, 36, 100), (512, 64, 512), (4, 64, 300), (300, 64, 4), (64, 64, 64)):
        a, b = rng.integers(-8, 9, (rows, inner)), rng.integers(-8, 9, (inner, cols))
        with ag.ag_device(DEVICE):
            wrong += not np.array_equal(ag.ag_matmul(a.astype(np.float32), b.astype(np.float32)).numpy(), a @ b)
    said["wrong"] = wrong
    tiles = device._kernels.tiles
    said["kinds"] = "fixed" if tiles.fixed else "".join(sorted(kind for kind, _ in tiles.rates)) + "V" * tiles.skinny
said["error"] = error_of(products)
"""


@pytest.mark.parametrize(("lost", "kinds"), [({}, "L2MM1SV"), ({"SIZES": 1}, "SV"), ({"SIZES": 0}, "fixed")],
                         ids=["none", "sizes", "sizes and threads"])
def test_kinds_of_tiles_that_come_out_wrong_are_not_used(limited: Limited, tmp_path: Path, lost: dict[str, int],
                                                         kinds: str) -> None:
    """A driver loses sizes, as MoltenVK did before 1.3."""
    for _ in range(2):  # the second time by what was kept
        said = limited(SIZED, {"XDG_CACHE_HOME": str(tmp_path)}, TYPE=DISCRETE, **lost)
        assert (said["error"], said["wrong"], said["kinds"]) == (None, 0, kinds)
    kept = json.loads(next((tmp_path / "ag").glob("*.json")).read_text("utf-8"))["choices"]
    right = [kind for kind, verdict in sorted(kept.items()) if verdict == "right"]
    assert "".join(kind.removeprefix("trial ") for kind in right) == kinds


def test_a_kind_that_is_forced_and_wrong(limited: Limited, tmp_path: Path) -> None:
    own = {"XDG_CACHE_HOME": str(tmp_path), "AG_MATMUL_TILE": "M"}
    said = limited(SIZED, own, TYPE=DISCRETE, SIZES=1)
    expect_reported("tiles that come out wrong", said["error"], ag.KernelError, "llvmpipe", "tiles of kind M",
                    "AG_MATMUL_TILE")


RANGE = {"RANGE": 128 << 20}
CARDS = {"128": SMALLEST | RANGE, "256": SMALL | RANGE, "64MiB": {"ALLOC": 64 << 20},
         "2GiB": {"ALLOC": 2 << 30, **RANGE}}


def run_table(layer: dict[str, str], which: str, files: list[str], **limits: object) -> str:
    names = {f"AG_LIMITS_{name}": str(value) for name, value in limits.items()}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "cards.plugin", "-p", "no:cacheprovider", "-m", "vulkan",
               "-k", which, *files]
    env = {**os.environ, **layer, **names, "PYTHONPATH": str(ROOT / "tests")}
    env.pop("AG_TEST_DEVICE", None)  # by which the tests would not be named lavapipe
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("card", [pytest.param("128", marks=pytest.mark.long), *[x for x in CARDS if x != "128"]])
def test_the_case_table(limits_layer: dict[str, str], lavapipe: str, card: str) -> None:
    files = [f"tests/table/test_cases_{part}.py" for part in ("forward", "gradient", "capture")]
    part = {**limits_layer, "AG_EVERY": f"{[*CARDS].index(card)}/{len(CARDS)}"}
    passed = re.search(r"(\d+) passed", run_table(part, "lavapipe", files, TYPE=DISCRETE, **CARDS[card]))
    assert passed and int(passed[1]) > 700


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("card", ["128", "256"])
def test_products_of_random_shapes(limits_layer: dict[str, str], lavapipe: str, card: str) -> None:
    files = ["tests/engine/kernels/test_random_products.py"]
    passed = re.search(r"(\d+) passed", run_table(limits_layer, "lavapipe", files, TYPE=DISCRETE, **CARDS[card]))
    assert passed and int(passed[1]) == 30
