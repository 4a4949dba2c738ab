"""Steps of W1 to W4 whose submissions do nothing, under the layer that host_time.py has loaded: the host's time.

It is that of the thread which makes the steps, so that nothing counts that others do on the same cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from itertools import pairwise
from time import thread_time
from typing import Any

from common import emit, limit_threads, repeated

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="vulkan:0")
parser.add_argument("--seconds", type=float, default=0.5)
args = parser.parse_args()
limit_threads()

import ag  # noqa: E402, I001 - after the thread pools are limited, and before numpy

import numpy as np  # noqa: E402

from ag.engine.device import backend_of  # noqa: E402
from curves.models import numbers, training  # noqa: E402
from curves.workloads import SMALL_BATCH  # noqa: E402

Training = tuple[Callable[..., ag.Tensor], Any, Any]
MLPS = {"W1": ((4, 32, 3), 32), "W2": ((784, 512, 256, 10), 128)}
CURVES = {"W3": "gpt", "W4": "resnet8"}


def mlp(sizes: tuple[int, ...], batch: int) -> Training:
    """A step with Adam, and a resident batch."""
    net = ag.ag_sequential(*(ag.ag_linear(a, b, activation="relu") for a, b in pairwise(sizes[:-1])),
                           ag.ag_linear(*sizes[-2:]))
    optimizer = ag.optimizer_adam(net)

    def step(x: ag.Tensor, labels: Any) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(net(x), labels)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    rng = np.random.default_rng(0)
    return step, ag.ag_tensor(rng.standard_normal((sizes[0], batch))), rng.integers(0, sizes[-1], batch)


def curve(name: str) -> Training:
    weights, batches = numbers(name, SMALL_BATCH[name])
    return training(name, weights), *batches[0]


def launched(backend: Any, work: Callable[[], Any]) -> int:
    """How many launches that makes; a profile would want the device to count."""
    recorder = backend.recorder
    seen, record = [], recorder.record
    recorder.record = lambda command: seen.append(command.kernel) or record(command)
    try:
        work()
    finally:
        del recorder.record
    return sum(kernel not in ("transfer", "") for kernel in seen)


def measure(name: str) -> None:
    """One line: microseconds of the host, submissions and launches of a step."""
    backend: Any = backend_of(args.device)
    recorder = backend.recorder
    step, x, y = mlp(*MLPS[name]) if name in MLPS else curve(CURVES[name])
    captured = ag.ag_capture(step)
    for _ in range(4):  # recorded, compared, and both sequences built
        captured(x, y)
    before, made = recorder.submits, 20
    for _ in range(made):
        captured(x, y)
    submits = (recorder.submits - before) / made
    alone = repeated(lambda: captured(x, y), args.seconds, 200, clock=thread_time)
    read = repeated(lambda: captured(x, y).item(), args.seconds, 20, clock=thread_time)
    step(x, y)
    launches = launched(backend, lambda: step(x, y))
    for _ in range(8):  # after which no launch is new, and memory comes again
        step(x, y)
    eager = repeated(lambda: step(x, y), args.seconds, 60, clock=thread_time)
    us = {what: 1e6 * statistics.median(times) for what, times in
          (("captured_us", alone), ("captured_read_us", read), ("eager_us", eager))}
    least = {"captured_least_us": 1e6 * min(alone), "launch_least_us": 1e6 * min(eager) / launches}
    emit(workload=name, **us, submits=submits, launches=launches, launch_us=us["eager_us"] / launches, **least)


with ag.ag_device(args.device):
    os.environ["KPFAULT_NULL"] = "1"  # from here on, nothing runs, and values mean nothing
    for workload in (*MLPS, *CURVES):
        measure(workload)
