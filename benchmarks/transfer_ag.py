"""Transfers between host and device, and what a submission costs."""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter
from typing import Any

from common import emit, limit_threads, repeated

from ag.engine.compile.pipeline import record

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--seconds", type=float, default=0.3)
parser.add_argument("--quick", action="store_true")
args = parser.parse_args()
limit_threads()

import numpy as np  # noqa: E402 - after the thread pools are limited

from ag.engine.device import backend_of  # noqa: E402
from ag.engine.dtype import F32  # noqa: E402
from ag.engine.kernels.elementwise import copy  # noqa: E402

backend: Any = backend_of(args.device)


def figure(what: str, seconds: list[float], nbytes: int) -> None:
    middle = statistics.median(seconds)
    emit(what=what, bytes=nbytes, us=1e6 * middle, gbytes=nbytes / middle / 1e9)


for words in [1, 1 << 10, *((1 << 16,) if args.quick else (1 << 18, 1 << 22, 1 << 25))]:
    values, buffer = np.ones(words, np.float32), backend.alloc((words,), F32)

    def upload(values: Any = values, buffer: Any = buffer) -> None:
        backend.upload(values, buffer)
        backend.synchronize()

    def download(buffer: Any = buffer) -> None:
        backend.download(buffer)

    figure("upload", repeated(upload, args.seconds), 4 * words)
    figure("download", repeated(download, args.seconds), 4 * words)

source, target = backend.alloc((1,), F32), backend.alloc((1,), F32)
with record(backend) as recording:
    backend.launch(copy, source, into=target)
program = recording.finished()


def launch_and_wait() -> None:
    backend.launch(copy, source, into=target)
    backend.synchronize()


def replay_and_wait() -> None:
    program.run()
    backend.synchronize()


def host_seconds_of_a_replay() -> float:
    """Until the call returns; the device may still be at work."""
    backend.synchronize()
    begin = perf_counter()
    program.run()
    return perf_counter() - begin


figure("launch and wait", repeated(launch_and_wait, args.seconds), 0)
figure("replay and wait", repeated(replay_and_wait, args.seconds), 0)
figure("replay, host only", [host_seconds_of_a_replay() for _ in range(20 if args.quick else 500)], 0)
