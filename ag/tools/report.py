"""Report on the devices of a machine: selftest, doctor and a short benchmark, without names of people and places."""

from __future__ import annotations

import getpass
import os
import platform
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ag import nn, ops, optim
from ag.autograd.create import ag_tensor
from ag.autograd.tape import backward, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.capture.step import ag_capture
from ag.engine.device import ag_device, ag_synchronize
from ag.engine.primitive import Array
from ag.engine.registry import list_devices
from ag.errors import AgError
from ag.tools.doctor import doctor
from ag.tools.selftest import Outcome, selftest
from ag.version import __version__

SCHEMA = 1  # of the file; raise it when a field goes or gets another meaning
_SECONDS = 0.5  # of a measurement, unless one call takes longer
_SIDES, _QUICK = (256, 1024, 4096), 2e-3  # of matrices: larger ones only if a product takes fewer seconds
_COPIED = 1 << 24  # numbers
# Absolute paths, but for those of the system's own folders.
_PATH = re.compile(r"(?<![\w.~])(?:~|/|[A-Za-z]:\\)(?!(?:dev|etc|proc|sys|usr)/)[^\s,;:'\")]{2,}")


def report(say: Callable[[Outcome], Outcome]) -> Any:
    """Examine all devices, measure those that compute right, and return what `json.dumps` takes."""
    names = [info.name for info in list_devices()]
    checks = [say(outcome)._asdict() for outcome in selftest(names)]
    speed, wrong = {}, {check["device"] for check in checks if check["fault"]}
    for name in names:
        with suppress(AgError):  # such as of a device with little memory
            if name not in wrong:
                speed[name] = _speed(name)
    return without_names({"schema": SCHEMA, "ag": __version__, "system": f"{sys.platform} {platform.machine()}",
                          "selftest": checks, "doctor": doctor().as_dict(), "speed": speed})


def without_names(found: Any) -> Any:
    """Replace the user, the host and paths in all texts, and leave out numbers of single devices and of kernels."""
    if isinstance(found, dict):
        return {key: without_names(value) for key, value in found.items() if key not in ("uuid", sys.platform)}
    if isinstance(found, (list, tuple)):
        return [without_names(value) for value in found]
    if not isinstance(found, str):
        return found
    for place in sorted({str(Path.home()), os.getcwd(), sys.prefix} - {"/", "/usr"}, key=len)[::-1]:
        found = found.replace(place, "~")  # it may have blanks in it
    found = _PATH.sub("<path>", found)
    names = {platform.node(), platform.node().partition(".")[0]}
    with suppress(OSError, KeyError, ImportError):  # a user without a name
        names.add(getpass.getuser())
    for name in sorted(names - {"", "root", "localhost"}, key=len)[::-1]:
        found = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "<name>", found)
    return found


def _speed(name: str) -> dict[str, float]:
    """Measure a device; the unit of a number is in its key."""
    rng = np.random.default_rng(0)
    with ag_device(name):
        for side in _SIDES:
            a = ag_tensor(rng.standard_normal((side, side), np.float32))
            product = _seconds(name, partial(ops.ag_matmul, a, a))
            if product > _QUICK:
                break
        x, rows, images = (ag_tensor(rng.standard_normal(shape, np.float32)) for shape in (
            (_COPIED, 1), (784, 128), (3, 32, 32, 32)))
        perceptron = nn.Sequential(nn.Linear(784, 256, activation="relu"), nn.Linear(256, 10))
        network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, activation="relu"), nn.MaxPool(2), nn.Flatten(),
                                nn.Linear(4096, 10))
        return {"matmul_side": side, "matmul_gflops": 2e-9 * side**3 / product,
                "copy_gb_per_s": 8e-9 * _COPIED / _seconds(name, lambda: ops.ag_scale(x, 2.0)),
                "perceptron_step_us": 1e6 * _seconds(name, _step(perceptron, rows)),
                "convolution_step_us": 1e6 * _seconds(name, _step(network, images))}


def _step(model: nn.Layer, x: Tensor) -> Callable[[], object]:
    optimizer, labels = optim.Adam(model.parameters()), np.arange(x.shape[-1]) % 10

    def step(x: Tensor, labels: Array) -> None:
        with with_grad_tape():
            loss = ops.ag_softmax_cross_entropy_loss(model(x), labels)
        optimizer.step(backward(loss))
        optimizer.zero_grad()

    return partial(ag_capture(step), x, labels)


def _seconds(name: str, call: Callable[[], object]) -> float:
    """Return the least mean time of a call in up to three runs, after three calls."""
    means: list[float] = []
    calls, end = 3, perf_counter() + _SECONDS
    while len(means) < 2 or (len(means) < 4 and perf_counter() < end):
        begin = perf_counter()
        for _ in range(calls):
            call()
        ag_synchronize(name)
        means.append((perf_counter() - begin) / calls)
        calls = max(1, int(_SECONDS / 4 / means[-1]))
    return min(means[1:])
