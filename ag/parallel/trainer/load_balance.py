"""How the samples of a step are shared out to the replicas: by fixed weights, or by how fast each turns out to be.

A step takes as long as its slowest device, so with `balance="auto"` shares follow the measured time per sample.  That
is the host's time, from giving a device its samples to having their sums, and not the device's own: what the host needs
to launch and to fetch is part of the step, too, and grows with the samples.  The gradients do not depend on it: their
sums are made in one tree, whoever holds which sample (`ag.parallel.comm.tree_reduction`).
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
        """What each replica got in a step, and how long it took."""


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
        """Every replica gets a sample if there are enough: who has none is not measured again."""
        least = 1 if samples >= len(self._devices) else 0
        return [least + n for n in super().sizes(samples - least * len(self._devices))]

    def note(self, samples: Sequence[int], seconds: Sequence[float]) -> None:
        """The first step of a device does not count: it captures and compiles."""
        for device in dict.fromkeys(self._devices):
            mine = [i for i, name in enumerate(self._devices) if name == device]
            count = sum(samples[i] for i in mine)
            if count and device in self._warm:
                found = max(sum(seconds[i] for i in mine) / count, 1e-9)
                self._per_sample[device] = found + (1 - _NEW) * (self._per_sample.get(device, found) - found)
            if count:
                self._warm.add(device)
        if len(self._per_sample) == len(set(self._devices)):
            self.weights = [1.0 / (self._per_sample[d] * self._devices.count(d)) for d in self._devices]
