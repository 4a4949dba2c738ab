"""How much quicker two CPU devices train than one, without any environment variable.

`python benchmarks/cpu_replicas.py [ROUNDS]` trains a perceptron whose time goes to products of matrices, with
`dp_train` on one CPU device, on one that computes in one thread, and on two, in turn.  It prints the samples per second
of each, and the ratios of medians.  A device alone already keeps all cores busy, so two of them gain little; compared
with one thread they do 1.6 times as much on two cores that are otherwise idle.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import numpy as np
from threadpoolctl import threadpool_limits

import ag
from ag.engine.cpu_threads import share_cores, threads

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
        share_cores(threads())
        with threadpool_limits(1, "blas"):  # without kernels in C
            single = samples_per_second(["cpu"])
        share_cores(1)
        found.append((default, single, samples_per_second(["cpu", "cpu:1"])))
    default, single, two = map(median, zip(*found, strict=True))
    print(f"samples/s: 1 CPU device {default:.1f}, in one thread {single:.1f}; 2 CPU devices "
          f"{two:.1f}, which is {two / default:.2f} and {two / single:.2f} times as many")
