"""Measure how slow this machine is now, as a factor by which limits and expected times of tests are scaled.

`python tests/helpers/probe.py` prints the factor and the two measurements that it is the larger of.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's library reads it when it is loaded

from time import perf_counter, thread_time

import numpy as np

ADDITIONS_S = 0.05  # a million additions in Python at a factor of 1
PRODUCT_S = 0.03  # a 1024^3 float32 product on one core at a factor of 1


def slowness() -> float:
    """Measure the factor of Python alone; at least 1."""
    started, total = thread_time(), 0
    for i in range(1_000_000):
        total += i
    return max(1.0, (thread_time() - started) / ADDITIONS_S)


def patience(seconds: float) -> float:
    """Scale seconds of the wall clock by how slow this machine is, as others keep it busy."""
    begin, total = perf_counter(), 0
    for i in range(1_000_000):
        total += i
    return seconds * max(1.0, (perf_counter() - begin) / ADDITIONS_S)


def product_slowness() -> float:
    """Measure the factor of the best of three 1024^3 float32 products; at least 1."""
    x, took = np.ones((1024, 1024), np.float32), []
    for _ in range(3):
        started = thread_time()
        x @ x
        took.append(thread_time() - started)
    return max(1.0, min(took) / PRODUCT_S)


def main() -> None:
    """Print the factor and its two measurements."""
    python, product = min(slowness() for _ in range(3)), product_slowness()
    print(f"{max(python, product):.2f} (Python {python:.2f}, a 1024^3 product {product:.2f})")


if __name__ == "__main__":
    main()
