"""Register a toy backend, which `ag` has never heard of: it is listed, runs ops and captured steps, and trains.
No module outside a backend's own folder names that backend."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ag
from ag.engine import device
from ag.engine.backend import DeviceInfo
from ag.engine.backends.cpu.backend import NumpyBackend
from ag.engine.device import default_devices
from ag.engine.registry import Family, _families, list_devices, register_backend
from ag.errors import DeviceError

AG = Path(ag.__file__).parent
# Which have ggmlR's names, and say what a device is called.
FACADES = {"__init__.py", "names/__init__.py", "names/elsewhere.py", "tools/device_table.py"}


def toys() -> list[DeviceInfo]:
    return [DeviceInfo(f"toy:{i}", "abacus", "nursery", "1", "discrete", 1 << 20) for i in range(2)]


class ToyBackend(NumpyBackend):
    """Two devices with numpy underneath."""

    def __init__(self, index: int = 0) -> None:
        if index >= len(toys()):
            raise DeviceError(f"toy:{index}: there are {len(toys())} toys.")
        super().__init__(index)
        self.name, self.info = f"toy:{index}", toys()[index]


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toys are the best accelerators; afterwards nothing of them is left."""
    monkeypatch.setattr(device, "_backends", dict(device._backends))
    register_backend(Family("toy", "Toy", toys, ToyBackend, priority=9))
    yield
    del _families["toy"]


def test_it_is_listed_and_preferred() -> None:
    names = [info.name for info in list_devices()]
    assert names[:3] == ["cpu", "toy:0", "toy:1"]
    with ag.ag_device("gpu"):
        assert ag.ag_default_device() == "toy:0"
        assert default_devices()[:2] == ["toy:0", "toy:1"]
        assert default_devices(5)[:2] == ["toy:0", "toy:1"] and len(default_devices(5)) == 5
    with ag.ag_device("toy:1"):
        assert default_devices() == ["toy:1"] and default_devices(2) == ["toy:1"] * 2
    assert not any(info.name.startswith("toy") for info in ag.ag_vulkan_devices())


@pytest.mark.slow
def test_the_doctor_examines_it() -> None:
    assert [d.info.name for d in ag.doctor().devices][:3] == ["cpu", "toy:0", "toy:1"]


def test_messages_know_its_name() -> None:
    with pytest.raises(ag.DeviceError, match="unknown device 'tpu:0'; use 'cpu', 'cpu:1', 'toy:0', "):
        ag.ag_device("tpu:0")
    with pytest.raises(ag.DeviceError, match="there are 2 toys"):
        ag.ag_device("toy:2")


def step_of(name: str) -> tuple[list[float], list[bytes]]:
    """Losses and weights of a small training, eager and then captured."""
    with ag.ag_device(name):
        ag.ag_seed(3)
        model = ag.ag_sequential(ag.ag_linear(4, 9, activation="tanh"), ag.ag_dropout(0.2), ag.ag_linear(9, 3))
        optimizer = ag.optimizer_adam(model, lr=0.02)
        rng = np.random.default_rng(1)

        def step(x: ag.Tensor, labels: ag.Tensor) -> ag.Tensor:
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(model(x), labels)
            optimizer.step(ag.backward(loss))
            return loss

        captured, losses = ag.ag_capture(step), []
        for i in range(8):
            x, labels = rng.standard_normal((4, 16)), rng.integers(0, 3, 16)
            losses.append((step if i < 4 else captured)(ag.ag_tensor(x), labels).item())
        return losses, [value.tobytes() for value in model.state_dict().values()]


def test_it_computes_what_numpy_computes() -> None:
    losses, weights = step_of("toy:0")
    expected, values = step_of("cpu")
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for mine, theirs in zip(weights, values, strict=True):
        np.testing.assert_allclose(np.frombuffer(mine, np.float32), np.frombuffer(theirs, np.float32), rtol=1e-3,
                                   atol=1e-5)


def test_it_trains_in_parallel() -> None:
    rng = np.random.default_rng(2)
    data = [(rng.standard_normal((3, 1)), rng.standard_normal((2, 1))) for _ in range(12)]

    def trained(devices: list[str]) -> list[bytes]:
        done = ag.dp_train(lambda: ag.ag_linear(3, 2), data, ag.ag_mse_loss, lambda model, sample: model(sample[0]),
                           lambda sample: ag.ag_tensor(sample[1]), n_iter=6, micro_batch=2, devices=devices, seed=5,
                           verbose=0)
        assert done.devices == devices
        return [np.asarray(value).tobytes() for value in done.params.values()]

    assert trained(["toy:0", "toy:1"]) == trained(["cpu", "cpu:1"])


def test_a_number_is_that_of_an_accelerator() -> None:
    assert ag.DataParallel(ag.ag_linear(1, 1), [1, 0]).device_ids == ("toy:1", "toy:0")


def docstrings(tree: ast.AST) -> set[ast.AST]:
    """The nodes of all docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return {node.body[0].value for node in ast.walk(tree) if isinstance(node, documented) and node.body
            and isinstance(node.body[0], ast.Expr)}


def test_no_backend_is_named_outside_its_folder() -> None:
    named = re.compile(r"vulkan|\bkp\b", re.IGNORECASE)
    found = []
    for path in sorted(AG.rglob("*.py")):
        where = path.relative_to(AG).as_posix()
        if where in FACADES or where.startswith("engine/backends/vulkan/"):
            continue
        text = path.read_text("utf-8")
        if not named.search(text):
            continue
        tree = ast.parse(text)
        said = docstrings(tree)
        found += [f"{where}:{node.lineno}: {node.value!r}" for node in ast.walk(tree)
                  if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in said
                  and named.search(node.value)]
    assert not found, "\n".join(found)
