"""Load balance: how many samples of a step each replica gets, by fixed weights or by measured speed.

A step takes as long as its slowest device, so with ``balance="auto"`` shares follow the measured time per sample:

    step   shares   seconds per sample        next weights
      0     5 : 5   -                         1 : 1          not measured: the first step captures and compiles
      1     5 : 5   0.1 : 0.3                 10 : 3.3
      2     7 : 3   0.1 : 0.3                 10 : 3.3       0.7 s and 0.9 s; before, 0.5 s and 1.5 s

That is the host's time, from giving a device its samples to having their sums, and not the device's own: launching and
fetching are part of the step, too, and grow with the samples.  Gradients do not depend on the shares: they are summed
in one tree (`ag.parallel.comm.tree_reduction`).  Knows numbers and names of devices; no replica.  The trainer asks it
before every step and tells it the times after.
"""

from __future__ import annotations

from collections.abc import Sequence

from ag.parallel.comm.tree_reduction import shard_sizes

__all__ = ["AutoBalance", "Balance"]

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
