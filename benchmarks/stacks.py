"""Stacks in `dp_train`: time of a step with 32 samples passed at once, against 32 passes of one sample each.

Run it as `python benchmarks/stacks.py --device cpu`, or with a Vulkan device. The model is the iris MLP, 4-32-3.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import ag

BATCH = 32
WARM = 20  # steps, in which programs are recorded, compared and compiled


class Clock:
    """A learning rate schedule that notes the time of every step, and leaves the rate as it is."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def step(self) -> None:
        self.times.append(time.perf_counter())


def seconds(device: str, stack: int, steps: int, capture: bool | str) -> float:
    """The time of one step: the least of many, which other programs disturb least."""
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(4, 1)).astype(np.float32), "label": np.array([i % 3])} for i in range(160)]
    clock = Clock()
    ag.dp_train(lambda: ag.ag_sequential(ag.ag_linear(4, 32, activation="relu"), ag.ag_linear(32, 3)), data,
                ag.ag_softmax_cross_entropy_loss, lambda m, s: m(ag.ag_tensor(s["x"])), lambda s: s["label"],
                devices=[device], batch=BATCH, stack=stack, n_iter=WARM + steps, seed=1, capture=capture,
                scheduler=lambda optimizer: clock, verbose=False)
    return float(np.min(np.diff(clock.times[WARM - 1 :])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for capture in ("auto", False):
        best = {stack: min(seconds(options.device, stack, options.steps, capture) for _ in range(options.repeats))
                for stack in (1, BATCH)}
        print(f"{options.device}, {'captured' if capture else 'eager'}: {BATCH} samples one by one "
              f"{best[1] * 1e3:.3f} ms, in one stack {best[BATCH] * 1e3:.3f} ms, "
              f"{best[1] / best[BATCH]:.1f} times as fast")


if __name__ == "__main__":
    main()
