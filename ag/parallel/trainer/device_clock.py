"""How long a device works for a replica, by its own timestamps, of which most steps have none.

Timestamps cost time: around every submission of small captured steps, up to a fifth.
"""

from __future__ import annotations

from ag.engine.backend import Meter

__all__ = ["METERED_EVERY", "DeviceClock"]

METERED_EVERY = 16


class DeviceClock:
    """Meters the first two steps of a replica and every 16th; a sample of another step counts as one of the last such.

    Two, as the first one records what later ones replay.

    Attributes
    ----------
    seconds : float
        How long the device has worked in all steps.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._meter = Meter()
        self._steps = 0
        self._per_sample = 0.0

    @property
    def meter(self) -> Meter | None:
        """What the work of the step at hand is to be measured with; None: that is not measured."""
        return self._meter if self._steps < 2 or self._steps % METERED_EVERY == 0 else None

    def note(self, samples: int) -> None:
        """End a step with so many samples, whose work was waited for; one without samples does not count."""
        if not samples:
            return
        if self.meter is not None:
            self._per_sample = self._meter.seconds / samples
            self._meter.seconds = 0.0
        self.seconds += samples * self._per_sample
        self._steps += 1
