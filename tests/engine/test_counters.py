"""Count what a replayed training step costs: launches, barriers, submissions, bytes moved, allocations.

The numbers are exact on any machine and do not depend on the batch.  COUNTS is what they are today: fewer launches and
barriers are an improvement, and then COUNTS is to be lowered; `python tests/engine/test_counters.py` prints them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from curves.models import numbers, training
from curves.workloads import SMALL_BATCH

import ag
from ag.engine.backend import Backend
from ag.engine.backends.cpu.native import NativeBackend
from ag.engine.backends.vulkan.transfers import Inputs
from ag.engine.buffer import Buffer
from ag.engine.device import backend_of

COUNTS = {  # workload: launches on the CPU and on Vulkan, and barriers inside the program
    "W1": (12, 8, 6),
    "W2": (18, 11, 8),
    "W3": (163, 135, 81),
    "W4": (122, 114, 73),
}
PIECES = {"W4": 6}  # more of both on a card: it makes products in pieces, to have work for all its units, and adds up
SUBMITS = 2  # the inputs and the program, the loss
Step = Callable[[np.ndarray, np.ndarray], ag.Tensor]
RNG = np.random.default_rng(12)


@dataclass
class Traffic:
    """The sizes of a backend's transfers and allocations, in bytes, in order."""

    uploads: list[int] = field(default_factory=list)
    downloads: list[int] = field(default_factory=list)
    allocations: list[int] = field(default_factory=list)


@pytest.fixture(autouse=True)
def put_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small programs of the CPU copy what they are given in compiled code, where nobody could count it."""
    monkeypatch.setattr(NativeBackend, "compile_run", lambda *_: None)


@contextmanager
def counting(backend: Backend) -> Iterator[Traffic]:
    """Note transfers and allocations of a backend."""
    seen, arena = Traffic(), backend.arena
    upload, download, alloc, fill = backend.upload, backend.download, arena.alloc, Inputs.fill
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "upload", lambda array, into: (seen.uploads.append(into.nbytes), upload(array, into)))
        patch.setattr(backend, "download", lambda buffer: (seen.downloads.append(buffer.nbytes), download(buffer))[1])
        if hasattr(backend, "recorder"):
            patch.setattr(Inputs, "fill", lambda self, given, *rest: (seen.uploads.extend(
                value.nbytes for _, _, value in given if not isinstance(value, int)), fill(self, given, *rest))[1])
        else:
            put = backend.put  # type: ignore[attr-defined]
            patch.setattr(backend, "put", lambda given: (seen.uploads.extend(
                target.nbytes for target, value in given if not isinstance(value, Buffer)), put(given))[1])
        patch.setattr(arena, "alloc", lambda nbytes: (seen.allocations.append(nbytes), alloc(nbytes))[1])
        yield seen


# ---------------------------------------------------------------------------------------------- workloads


def mlp(sizes: tuple[int, ...], batch: int) -> tuple[Step, np.ndarray, np.ndarray]:
    """A step of a multi-layer perceptron with Adam, as in the benchmarks W1 and W2, and data for it."""
    hidden = [ag.ag_linear(a, b, activation="relu") for a, b in pairwise(sizes[:-1])]
    model = ag.ag_sequential(*hidden, ag.ag_linear(*sizes[-2:]))
    optimizer = ag.optimizer_adam(model)

    def step(x: np.ndarray, labels: np.ndarray) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(x)), labels)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    return step, RNG.standard_normal((sizes[0], batch)).astype(np.float32), RNG.integers(0, sizes[-1], batch)


def curve(name: str) -> tuple[Step, np.ndarray, np.ndarray]:
    """A step of W3 or W4."""
    weights, batches = numbers(name, SMALL_BATCH[name])
    return training(name, weights), *batches[0]


WORKLOADS: dict[str, Callable[[], tuple[Step, np.ndarray, np.ndarray]]] = {
    "W1": lambda: mlp((4, 32, 3), 32),
    "W2": lambda: mlp((784, 512, 256, 10), 16),
    "W3": lambda: curve("gpt"),
    "W4": lambda: curve("resnet8"),
}
UPDATE = {"W1": "adam_update", "W2": "adam_update", "W3": "adam_update", "W4": "sgd_update"}


def measured(name: str, device: str) -> dict[str, Any]:
    """Counters of one replayed step that uploads its batch and reads its loss."""
    backend: Any = backend_of(device)
    step, x, labels = WORKLOADS[name]()
    captured = ag.ag_capture(step)
    for _ in range(2):  # recorded, and compared
        captured(x, labels).item()
    program: Any = captured.program
    recorder = getattr(backend, "recorder", None)
    submits = recorder.submits if recorder is not None else 0
    with counting(backend) as seen:
        captured(x, labels).item()
    submits = recorder.submits - submits if recorder is not None else 0
    with ag.profile() as kernels:
        captured(x, labels).item()
    return {
        "launches": program.launches, "barriers": getattr(program, "barriers", 0), "submits": submits,
        "up": sum(seen.uploads), "down": sum(seen.downloads), "allocations": len(seen.allocations),
        "batch": 4 * (x.size + labels.size), "kernels": Counter(e.kernel for e in kernels.events),
    }


# ---------------------------------------------------------------------------------------------- a step


SLOW = dict.fromkeys(("W3", "W4"), pytest.mark.slow_on("lavapipe", "swiftshader"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in COUNTS])
def test_a_replayed_step(name: str, device: str) -> None:
    found = measured(name, device)
    on_cpu, on_vulkan, barriers = COUNTS[name]
    pieces = PIECES.get(name, 0) if backend_of(device).target.units > 1 else 0
    on_vulkan, barriers = on_vulkan + pieces, barriers + pieces
    assert found["launches"] <= (on_cpu if device == "cpu" else on_vulkan)
    if os.environ.get("AG_BARRIER_ALL") != "1":
        assert found["barriers"] <= barriers
    assert found["submits"] == (0 if device == "cpu" else SUBMITS)
    assert found["up"] == found["batch"] and found["down"] == 4  # the batch, and the loss
    assert found["allocations"] <= 1  # for the loss that the caller gets
    assert found["kernels"][UPDATE[name]] == 1  # whatever the number of parameters
    ran = sum(found["kernels"].values()) - found["kernels"]["transfer"]
    assert ran == found["launches"]


def kernels_of_a_step(dtype: str, max_norm: float | None) -> Counter[str]:
    """Count, by kernel, the launches of a captured AdamW step over 20 parameters."""
    params = {f"p{i}": ag.ag_param(RNG.standard_normal((3, 5)), dtype=dtype) for i in range(20)}
    optimizer = ag.optimizer_adamw(params)

    def step(x: ag.Tensor) -> None:
        with ag.with_grad_tape():
            loss = ag.ag_sum(ag.ag_concat([p * x for p in params.values()], 0))
        ag.backward(loss)
        if max_norm is not None:
            ag.clip_grad_norm(params, None, max_norm)
        optimizer.step()
        optimizer.zero_grad()

    captured, x = ag.ag_capture(step), ag.ag_tensor(np.ones((3, 5)), dtype=dtype)
    captured(x), captured(x)  # recorded, and compared
    with ag.profile() as seen:
        captured(x)
    return Counter(e.kernel for e in seen.events)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_clipping_and_skipping_are_in_the_update(device: str, dtype: str) -> None:
    """Clipping costs a launch that reads each gradient and three for the factor; none scales, copies or marks."""
    found = kernels_of_a_step(dtype, max_norm=0.5)
    assert found["adam_update"] == 1 and found["copy"] == 0
    assert found["nonfinite"] == found["scale_update"] == (dtype == "f16")
    found.subtract(kernels_of_a_step(dtype, max_norm=None))
    assert {kernel: n for kernel, n in found.items() if n} == {"square_sums": 20, "sum": 2, "clip_factor": 1}


# ---------------------------------------------------------------------------------------------- dp_train


@pytest.mark.vulkan
def test_transfers_of_dp_train(lavapipe: str) -> None:
    """Per step and replica one array of gradients down and one of weights up, whatever the number of parameters."""
    samples = [(np.ones((6, 1), np.float32), np.ones((6, 1), np.float32))] * 4

    def traffic(steps: int) -> Counter[str]:
        with counting(backend_of(lavapipe)) as seen:
            result = ag.dp_train(lambda: ag.ag_sequential(*(ag.ag_linear(6, 6) for _ in range(8))), samples,
                                 ag.ag_mse_loss, lambda m, s: m(ag.ag_tensor(s[0])), lambda s: s[1],
                                 devices=[lavapipe, "cpu"], n_iter=steps, verbose=False)
        params = sum(4 * p.size for p in result.params.values())
        assert params > 10 * 24  # and a sample is 24 bytes
        return Counter({"up": sum(n >= params for n in seen.uploads), "down": sum(n >= params for n in seen.downloads),
                        "samples": sum(n == 24 for n in seen.uploads), "all": len(seen.uploads + seen.downloads)})

    traffic(1)  # a device's first use uploads more
    few, many = traffic(2), traffic(5)
    many.subtract(few)
    assert many["down"] == many["up"] == 3
    assert many["all"] == many["down"] + many["up"] + many["samples"]


def main() -> None:
    for name in COUNTS:
        for device in ["cpu", *(info.name for info in ag.ag_vulkan_devices())]:
            with ag.ag_device(device):
                print(name, device, measured(name, device), flush=True)


if __name__ == "__main__":
    main()
