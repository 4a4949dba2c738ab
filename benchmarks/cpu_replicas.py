"""How much quicker two CPU devices train than one, without any environment variable.

`python benchmarks/cpu_replicas.py [ROUNDS]` trains a perceptron whose time goes to products of matrices, with
`dp_train` on one CPU device, on one whose products are made in one thread, and on two, in turn.  It prints the samples
per second of each, and the ratios of medians.  Where a device alone already keeps both cores busy with its
products, two of them gain little; compared with one thread they do 1.6 times as much on two cores that are idle.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import numpy as np
from threadpoolctl import threadpool_limits

import ag

WIDTH, BATCH, SAMPLES, STEPS = 256, 64, 16, 20


def samples_per_second(devices: list[str]) -> float:
    """Of the steps after the first two."""
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((WIDTH, BATCH), np.float32) for _ in range(SAMPLES)]
    ends: list[float] = []

    def model() -> ag.Layer:
        return ag.ag_sequential(*[ag.ag_linear(WIDTH, WIDTH, activation="relu") for _ in range(4)])

    ag.dp_train(model, data, ag.ag_mse_loss, devices=devices, n_iter=2 + STEPS, micro_batch=SAMPLES // len(devices),
                verbose=False, seed=1, callback=lambda _: ends.append(time.perf_counter()))
    return SAMPLES * STEPS / (ends[-1] - ends[1])


if __name__ == "__main__":
    found: list[tuple[float, float, float]] = []
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        default = samples_per_second(["cpu"])
        with threadpool_limits(1, "blas"):
            one_thread = samples_per_second(["cpu"])
        found.append((default, one_thread, samples_per_second(["cpu", "cpu:1"])))
    default, one_thread, two = map(median, zip(*found, strict=True))
    print(f"samples/s: 1 CPU device {default:.1f}, with products in one thread {one_thread:.1f}; "
          f"2 CPU devices {two:.1f}, "
          f"which is {two / default:.2f} and {two / one_thread:.2f} times as many")
