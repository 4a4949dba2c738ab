"""dp_train: two devices work at the same time, as their own timestamps say."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest

import ag

RNG = np.random.default_rng(5)
DATA = [RNG.standard_normal((256, 64)).astype(np.float32) for _ in range(8)]


def make_model() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(256, 256, activation="tanh"), ag.ag_linear(256, 256))


def spans(devices: list[str], steps: int = 5) -> list[dict[str, tuple[int, int]]]:
    """Per step and device, when its first command began and its last one ended, in nanoseconds."""
    ends: list[int] = []
    with ag.profile() as seen:
        ag.dp_train(make_model, DATA, ag.ag_mse_loss, devices=devices, micro_batch=4, n_iter=steps + 2, verbose=False,
                    callback=lambda step: ends.append(perf_counter_ns()))
    found = []
    for begin, end in pairwise(ends[1:]):
        found.append({d: (min(e.begin for e in events), max(e.end for e in events)) for d in devices
                      if (events := [e for e in seen.events if e.device == d and e.kernel != "transfer"
                                     and begin <= e.begin < end])})
    return found


@pytest.mark.vulkan
def test_two_devices_work_at_the_same_time(lavapipe: str, swiftshader: str) -> None:
    """In every step both have begun before either has finished, and the step is shorter than one after the other.

    Two devices that have cores of their own need no more than 1.3 times what one needs; these two share the cores of
    the machine, so their work is slower together, and the bound is on the overlap of what they did.
    """
    shares: list[Any] = []
    for step in spans([lavapipe, swiftshader]):
        (a, b), (c, d) = step[lavapipe], step[swiftshader]
        assert max(a, c) < min(b, d), "one device worked after the other"
        shares.append((max(b, d) - min(a, c)) / max(b - a, d - c))
    assert float(np.median(shares)) <= 1.3
