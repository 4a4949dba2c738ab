"""Load balance: how many samples of a step each replica gets, by fixed weights or by measured speed.

A step takes as long as its slowest device, so with ``balance="auto"`` shares follow the measured time per sample:

    step   shares   seconds per sample        next weights
      0     5 : 5   -                         1 : 1          not measured: the first step captures and compiles
      1     5 : 5   0.1 : 0.3                 10 : 3.3
      2     7 : 3   0.1 : 0.3                 10 : 3.3       0.7 s and 0.9 s; before, 0.5 s and 1.5 s

That is the host's time, from giving a device its samples to having their sums, and not the device's own: launching and
fetching are part of the step, too, and grow with the samples.  Gradients do not depend on the shares: they are summed
in one tree (`ag.parallel.comm.tree_reduction`).  How long a device itself works is for the report; `DeviceClock`
estimates it.  Knows numbers and names of devices; no replica.  The trainer asks it before every step and tells it the
times after.
"""

from __future__ import annotations

from collections.abc import Sequence

from ag.engine.backend import Meter
from ag.parallel.comm.tree_reduction import shard_sizes

__all__ = ["AutoBalance", "Balance", "DeviceClock"]

METERED_EVERY = 16  # steps
_NEW = 0.5  # weight of the newest measurement


class Balance:
    """Fixed shares.

    Parameters
    ----------
    weights : sequence of float
        One per replica.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = weights

    def sizes(self, samples: int) -> list[int]:
        """How many of so many samples each replica gets."""
        return shard_sizes(samples, self.weights)

    def note(self, samples: Sequence[int], seconds: Sequence[float]) -> None:
        """Learn from a step: the samples of each replica, and how long it took."""

    def keep(self, replicas: Sequence[int]) -> None:
        """Only these replicas are left."""
        self.weights = [self.weights[i] for i in replicas]


class AutoBalance(Balance):
    """Shares in proportion to the measured speeds.

    Parameters
    ----------
    devices : list of str
        Device of every replica; those that share one share its speed.
    """

    def __init__(self, devices: list[str]) -> None:
        super().__init__([1.0] * len(devices))
        self._devices = devices
        self._per_sample: dict[str, float] = {}  # seconds
        self._warm: set[str] = set()

    def sizes(self, samples: int) -> list[int]:
        """Every replica gets a sample if there are enough: one without samples would not be measured again."""
        least = 1 if samples >= len(self._devices) else 0
        return [least + n for n in super().sizes(samples - least * len(self._devices))]

    def keep(self, replicas: Sequence[int]) -> None:
        super().keep(replicas)
        self._devices = [self._devices[i] for i in replicas]
        self._per_sample = {device: s for device, s in self._per_sample.items() if device in self._devices}

    def note(self, samples: Sequence[int], seconds: Sequence[float]) -> None:
        """The first step of a device does not count: it captures and compiles."""
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

    Timestamps cost up to 20 % of a small step, so only steps 0, 1 and every 16th are timed; other steps are charged the
    time per sample of the last timed one.  Step 0 is not typical: it also records.

    Attributes
    ----------
    seconds : float
        Estimated time of the device's work in all steps.
    """

    def __init__(self) -> None:
        self.seconds = self._per_sample = 0.0
        self._meter = Meter()
        self._steps = 0

    @property
    def meter(self) -> Meter | None:
        """The meter of the current step; None if it is not timed."""
        return self._meter if self._steps < 2 or self._steps % METERED_EVERY == 0 else None

    def note(self, samples: int) -> None:
        """End a step with so many samples, after its work is done; a step without samples does not count."""
        if not samples:
            return
        if self.meter is not None:
            self._per_sample = self._meter.seconds / samples
            self._meter.seconds = 0.0
        self.seconds += samples * self._per_sample
        self._steps += 1
