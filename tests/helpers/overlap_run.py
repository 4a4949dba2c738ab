"""Steps of `dp_train` by the devices' timestamps, for parallel/trainer/test_device_time.py.

As a program it compares two devices that have a core each with either of them alone, and prints what it finds as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from time import perf_counter, perf_counter_ns, process_time
from typing import NamedTuple

import numpy as np

import ag

RNG = np.random.default_rng(5)
WIDTH = 64


class Work(NamedTuple):
    """A device's work in a step, in milliseconds: begin of its first command, end of its last one, time at work."""

    begin: float
    end: float
    busy: float


def work(devices: list[str], shares: list[int], steps: int = 5) -> list[list[Work]]:
    """Per step, what each device did."""
    count = sum(shares)
    data = [RNG.standard_normal((WIDTH, 32)).astype(np.float32) for _ in range(count)]
    ends: list[int] = []
    with ag.profile() as seen:
        ag.dp_train(lambda: ag.ag_sequential(ag.ag_linear(WIDTH, WIDTH, activation="tanh"), ag.ag_linear(WIDTH, WIDTH)),
                    data, ag.ag_mse_loss, devices=devices, accumulate=count // len(devices), balance=shares,
                    n_iter=steps + 2, verbose=False, callback=lambda step: ends.append(perf_counter_ns()))
    found = []
    for begin, end in pairwise(ends[1:]):
        of = [[e for e in seen.events if e.device == d and e.kernel != "transfer" and begin <= e.begin < end]
              for d in devices]
        found.append([Work((min(e.begin for e in events) - begin) / 1e6, (max(e.end for e in events) - begin) / 1e6,
                           sum(e.end - e.begin for e in events) / 1e6) for events in of])
    return found


def length(step: list[Work]) -> float:
    """Milliseconds from the first command of all devices to the last."""
    return max(w.end for w in step) - min(w.begin for w in step)


def _median_length(devices: list[str], shares: list[int]) -> float:
    return float(np.median([length(step) for step in work(devices, shares)]))


def _others() -> float:
    """Processor seconds that other programs have taken, of all processors, since some time."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - process_time()


def main(devices: list[str], seconds: float) -> None:
    """Print what attempts find, for some seconds or until a fair one keeps the promise.

    An attempt is fair if other programs left two cores, and one device after the other would have been too slow.
    Shares approach those of equally long work.
    """
    shares, end = [8, 2], perf_counter() + seconds
    while perf_counter() < end:
        others, begin = _others(), perf_counter()
        alone = [_median_length([d], [n]) for d, n in zip(devices, shares, strict=True)]
        together = _median_length(devices, shares)
        others = (_others() - others) / (perf_counter() - begin)
        fair = others < (os.cpu_count() or 1) - 1.9 and sum(alone) > 1.5 * max(alone)
        kept = together <= 1.3 * max(alone)
        print(json.dumps({"shares": shares, "alone": alone, "together": together, "others": others, "fair": fair,
                          "kept": kept}), flush=True)
        if fair and kept:
            break
        ratio = alone[1] / shares[1] / (alone[0] / shares[0])
        shares = [min(32, max(2, 2 * round(ratio))), 2]


if __name__ == "__main__":
    main(sys.argv[1:3], float(sys.argv[3]))
