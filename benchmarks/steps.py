"""The workloads of the step benchmarks: data and initial weights from a fixed seed, and how a step is timed.

W1 to W2 are multi-layer perceptrons, made here; W3 and W4 are the GPT and the ResNet-8 of tests/curves, whose losses
the tests compare with PyTorch's.  `loss_last` is the loss of step `checked` from the shared initial weights: equal
values mean that equal work was done.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from common import THREADS, emit, limit_threads, seconds_of

SEED = 20240711
BLOCKS = 7  # of steps, per figure


@dataclass(frozen=True)
class Workload:
    """A training: of a perceptron of these sizes, or the one of this name in tests/curves."""

    title: str
    checked: int  # steps until the compared loss
    sizes: tuple[int, ...] = ()
    batch: int = 0
    batches: int = 8
    curve: str = ""
    lr: float = 1e-3


WORKLOADS = {
    "W1": Workload("iris MLP 4-32-3, batch 32, Adam", 200, (4, 32, 3), 32, 16),
    "W1b": Workload("iris MLP 4-32-3, batch 1, Adam (what dp_train does)", 200, (4, 32, 3), 1, 64),
    "W2": Workload("MNIST MLP 784-512-256-10, batch 128, Adam", 20, (784, 512, 256, 10), 128, 16),
    "W3": Workload("GPT of 4 layers, d 128, 4 heads, T 64, batch 16, AdamW", 20, curve="gpt"),
    "W4": Workload("ResNet-8 on 32x32x3, batch 32, SGD with momentum", 20, curve="resnet8"),
}


def arguments(*variants: str) -> argparse.Namespace:
    """The command line of a peer; also limits the thread pools, so it must come before numpy is imported."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=list(WORKLOADS), default="W1")
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="few steps until the compared loss, small batches")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32", help="of weights, activations and gradients")
    args = parser.parse_args()
    limit_threads(1 if args.quick else THREADS)
    return args


def checked(args: argparse.Namespace) -> int:
    """Number of steps until the compared loss."""
    steps = WORKLOADS[args.workload].checked
    return min(steps, 3) if args.quick else steps


def curve_data(args: argparse.Namespace) -> tuple[dict[str, Any], list[tuple[Any, Any]]]:
    """Initial weights and batches of W3 or W4, samples first, as PyTorch has them."""
    from curves.workloads import BATCH, SMALL_BATCH, workload

    name = WORKLOADS[args.workload].curve
    return workload(name, (SMALL_BATCH if args.quick else BATCH)[name])


def data(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """Batches of samples [batches, batch, features], labels [batches, batch], and initial weights of a perceptron."""
    import numpy as np

    w = WORKLOADS[name]
    rng = np.random.default_rng(SEED)
    spread, noise = (1.5, 0.6) if w.sizes[0] < 100 else (0.06, 0.5)
    centers = rng.standard_normal((w.sizes[-1], w.sizes[0])) * spread
    labels = rng.integers(0, w.sizes[-1], (w.batches, w.batch))
    samples = (centers[labels] + rng.standard_normal((w.batches, w.batch, w.sizes[0])) * noise).astype(np.float32)
    weights = {}
    for i, (fan_in, fan_out) in enumerate(pairwise(w.sizes), 1):
        limit = (6 / (fan_in + fan_out)) ** 0.5
        weights[f"W{i}"] = rng.uniform(-limit, limit, (fan_out, fan_in)).astype(np.float32)
        weights[f"b{i}"] = np.zeros(fan_out, np.float32)
    return samples, labels, weights


def measure(args: argparse.Namespace, step: Callable[[int], Any], value: Callable[[Any], float]) -> None:
    """Make `checked` steps, then time blocks of steps and report them; `value` waits for a step and reads its loss."""
    loss_first = value(step(0))
    for i in range(1, checked(args)):
        last = step(i)
    loss_last = value(last)
    count, block = 1, args.seconds / BLOCKS

    def steps() -> None:
        nonlocal i
        for _ in range(count):
            i += 1
            last = step(i)
        value(last)  # waits for the device

    while seconds_of(steps) < block / 2:
        count *= 2
    report(args, [seconds_of(steps) / count for _ in range(2 if args.quick else BLOCKS)], loss_first, loss_last)


def report(args: argparse.Namespace, seconds: list[float], loss_first: float, loss_last: float) -> None:
    """Print the figures of a peer, given how long a step took in each block."""
    emit(workload=args.workload, us_per_step=1e6 * statistics.median(seconds), us_best=1e6 * min(seconds),
         us_worst=1e6 * max(seconds), loss_first=loss_first, loss_last=loss_last)
