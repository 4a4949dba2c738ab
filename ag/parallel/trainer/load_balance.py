"""Load balance: how many samples of a step each replica gets, by fixed weights or by measured speed.

A step takes as long as its slowest device, so with ``balance="auto"`` shares follow the host's time per sample.  That
includes launches and transfers, which grow with the samples, too.  Gradients do not depend on the shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

from ag.engine.backend import Meter
from ag.parallel.comm.tree_reduction import shard_sizes

METERED_EVERY = 16  # steps
_NEW = 0.5  # weight of the newest measurement


class Balance:
    """Fixed shares."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = weights  # of each replica

    def sizes(self, samples: int) -> list[int]:
        """Return the number of samples of each replica."""
        return shard_sizes(samples, self.weights)

    def note(self, samples: Sequence[int], seconds: Sequence[float]) -> None:
        """Learn from a step: the samples of each replica, and its time."""

    def keep(self, replicas: Sequence[int]) -> None:
        """Go on with these replicas only."""
        self.weights = [self.weights[i] for i in replicas]


class AutoBalance(Balance):
    """Shares in proportion to the measured speeds; replicas on one device share its speed."""

    def __init__(self, devices: list[str]) -> None:
        super().__init__([1.0] * len(devices))
        self._devices = devices  # of each replica
        self._per_sample: dict[str, float] = {}  # seconds
        self._warm: set[str] = set()

    def sizes(self, samples: int) -> list[int]:
        """Give every replica a sample if there are enough: one without samples would not be measured again."""
        least = 1 if samples >= len(self._devices) else 0
        return [least + n for n in super().sizes(samples - least * len(self._devices))]

    def keep(self, replicas: Sequence[int]) -> None:
        super().keep(replicas)
        self._devices = [self._devices[i] for i in replicas]
        self._per_sample = {device: s for device, s in self._per_sample.items() if device in self._devices}

    def note(self, samples: Sequence[int], seconds: Sequence[float]) -> None:
        """Learn from a step; the first one of a device does not count: it captures and compiles."""
        for device in dict.fromkeys(self._devices):
            mine = [i for i, name in enumerate(self._devices) if name == device]
            count = sum(samples[i] for i in mine)
            if count and device in self._warm:
                measured = max(sum(seconds[i] for i in mine) / count, 1e-9)
                before = self._per_sample.get(device, measured)
                self._per_sample[device] = measured + (1 - _NEW) * (before - measured)
            if count:
                self._warm.add(device)
        if len(self._per_sample) == len(set(self._devices)):
            self.weights = [1.0 / (self._per_sample[d] * self._devices.count(d)) for d in self._devices]


class DeviceClock:
    """Estimates a replica's device time.

    Timestamps cost up to 20 % of a small step, so only steps 0, 1 and every 16th are timed.  Other steps are charged
    the time per sample of the last timed one.
    """

    def __init__(self) -> None:
        self.seconds = self._per_sample = 0.0  # of all steps; of the last timed one
        self._meter = Meter()
        self._steps = 0

    @property
    def meter(self) -> Meter | None:
        """Return the meter of the current step; None if it is not timed."""
        return self._meter if self._steps < 2 or self._steps % METERED_EVERY == 0 else None

    def note(self, samples: int) -> None:
        """End a step; one without samples does not count."""
        if not samples:
            return
        if self.meter is not None:
            self._per_sample = self._meter.seconds / samples
            self._meter.seconds = 0.0
        self.seconds += samples * self._per_sample
        self._steps += 1


def balance_of(balance: str | Sequence[float], names: list[str]) -> Balance:
    """Return the shares for `balance` of `dp_train`."""
    if isinstance(balance, str) and balance == "auto":
        return AutoBalance(names)
    if isinstance(balance, str) and balance == "equal":
        return Balance([1.0] * len(names))
    try:
        weights = [] if isinstance(balance, str) else [float(w) for w in balance]
    except (TypeError, ValueError):
        weights = []
    if len(weights) != len(names) or not all(isfinite(w) and w >= 0 for w in weights) or not 0 < sum(weights) < inf:
        raise ValueError(f"dp_train: balance is {balance!r}; use 'equal', 'auto', or {len(names)} weights, finite and "
                         f"none negative.")
    return Balance(weights)
