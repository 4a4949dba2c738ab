"""The workloads of the step benchmarks: data and initial weights from a fixed seed, and how a step is timed.

Every peer imports this and nothing of another peer, so it needs only numpy.  `loss_last` is the loss of step
`CHECKED` from the shared initial weights: equal values mean that equal work was done.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SEED = 20240711
CHECKED = {"W1": 200, "W1b": 200, "W2": 20}  # steps until the compared loss
THREADS = 2


@dataclass(frozen=True)
class Workload:
    """A multi-layer perceptron trained with Adam on batches of a fixed size."""

    title: str
    sizes: tuple[int, ...]
    batch: int
    batches: int
    lr: float = 1e-3


WORKLOADS = {
    "W1": Workload("iris MLP 4-32-3, batch 32, Adam", (4, 32, 3), 32, 16),
    "W1b": Workload("iris MLP 4-32-3, batch 1, Adam (what dp_train does)", (4, 32, 3), 1, 64),
    "W2": Workload("MNIST MLP 784-512-256-10, batch 128, Adam", (784, 512, 256, 10), 128, 16),
}


def arguments(*variants: str) -> argparse.Namespace:
    """The command line of a peer; also limits the thread pools, so it must come before numpy is imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(THREADS)
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=list(WORKLOADS), default="W1")
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=1.0)
    return parser.parse_args()


def data(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """Batches of samples [batches, batch, features], labels [batches, batch], and initial weights."""
    import numpy as np

    w = WORKLOADS[name]
    rng = np.random.default_rng(SEED)
    spread, noise = (1.5, 0.6) if w.sizes[0] < 100 else (0.06, 0.5)
    centers = rng.standard_normal((w.sizes[-1], w.sizes[0])) * spread
    labels = rng.integers(0, w.sizes[-1], (w.batches, w.batch))
    samples = (centers[labels] + rng.standard_normal((w.batches, w.batch, w.sizes[0])) * noise).astype(np.float32)
    weights = {}
    for i, (fan_in, fan_out) in enumerate(zip(w.sizes, w.sizes[1:], strict=False), 1):
        limit = (6 / (fan_in + fan_out)) ** 0.5
        weights[f"W{i}"] = rng.uniform(-limit, limit, (fan_out, fan_in)).astype(np.float32)
        weights[f"b{i}"] = np.zeros(fan_out, np.float32)
    return samples, labels, weights


def measure(args: argparse.Namespace, peer: str, step: Callable[[int], Any], value: Callable[[Any], float]) -> None:
    """Check `CHECKED` steps, then time blocks of steps and print the medians as a JSON line."""
    loss_first = value(step(0))
    for i in range(1, CHECKED[args.workload]):
        last = step(i)
    loss_last = value(last)
    i, count, block = CHECKED[args.workload], 1, args.seconds / 7
    while True:
        seconds = _block(step, value, i, count)
        i += count
        if seconds > block / 2:
            break
        count *= 2
    rates = []
    for _ in range(7):
        rates.append(count / _block(step, value, i, count))
        i += count
    report(args, peer, rates, loss_first, loss_last)


def report(args: argparse.Namespace, peer: str, rates: list[float], loss_first: float, loss_last: float) -> None:
    """Print one result as a JSON line."""
    print(json.dumps({
        "peer": peer, "workload": args.workload, "us_per_step": 1e6 / statistics.median(rates),
        "us_best": 1e6 / max(rates), "us_worst": 1e6 / min(rates), "loss_first": loss_first, "loss_last": loss_last,
    }))


def _block(step: Callable[[int], Any], value: Callable[[Any], float], first: int, count: int) -> float:
    begin = time.perf_counter()
    for i in range(first, first + count):
        last = step(i)
    value(last)  # waits for the device
    return time.perf_counter() - begin
