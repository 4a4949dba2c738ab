"""What commands cost, roughly, and how much of it may go into one submission.

A driver's watchdog ends a submission that runs for 2 to 10 seconds, and the device with it, so none should take longer
than about 100 ms.  Nobody knows how quick a device is before it has worked: `seconds_of` counts as if it were a slow
integrated one, and `Budget` lowers what it allows where submissions turn out to take longer.  How commands are cut
changes no bit of their results.  Knows no command and no kernel; `commands` and the backend count with it, and the
recorder asks it.
"""

from __future__ import annotations

import os
from math import inf

from ag.errors import DeviceError

__all__ = ["MOST_COMMANDS", "SECONDS_PER_BYTE", "Budget", "seconds_of"]

_MULTIPLY_ADDS = 50e9  # per second; what kernels reach on the processor graphics of a laptop, about a fifth of its peak
_BYTES = 10e9  # per second; a third of two channels of DDR4
SECONDS_PER_BYTE = 2 / _BYTES  # of a copy, which reads it and writes it
_SECONDS = 0.1  # of a submission
_QUICKER = {"discrete": 8}  # kinds of devices of which the slowest do so much more
_SLOWEST = 1 / 32  # of what is allowed at first: what is measured on a busy machine must not stop the device
MOST_COMMANDS = 256  # of a submission
_FIRST = 8
_VARIABLE = "AG_SUBMIT_MS"


def seconds_of(multiply_adds: float, nbytes: float) -> float:
    """What a slow device takes for so much."""
    return multiply_adds / _MULTIPLY_ADDS + nbytes / _BYTES


class Budget:
    """How much a submission may cost on one device.

    Parameters
    ----------
    kind : str
        Of the device, as in `DeviceInfo`.  One that is a processor has no watchdog, and is not measured.

    Attributes
    ----------
    seconds : float
        The most, as `seconds_of` counts.
    long : float
        Seconds that no submission should take.
    first : int
        Commands after which a device that has nothing to do is started.  A card then computes while the host records;
        a software device would take the host's cores.

    Raises
    ------
    DeviceError
        If the environment variable AG_SUBMIT_MS is no positive number.
    """

    def __init__(self, kind: str) -> None:
        self.seconds = _asked() or _SECONDS * _QUICKER.get(kind, 1)
        self._least = self.seconds * _SLOWEST
        self.long = 2 * _SECONDS if kind != "cpu" else inf
        self.first = _FIRST if kind != "cpu" else MOST_COMMANDS

    def note(self, cost: float, took: float) -> None:
        """Allow half as much from now on if a submission that cost much has taken long."""
        if took > self.long and cost > self.seconds / 4:
            self.seconds = max(self.seconds / 2, self._least)


def _asked() -> float:
    """Seconds from the environment; 0 if there is nothing."""
    text = os.environ.get(_VARIABLE, "")
    try:
        found = float(text or 0) / 1000
    except ValueError:
        found = -1.0
    if not found >= 0:
        raise DeviceError(f"{_VARIABLE} is {text!r}; it must be a number of milliseconds, such as 100, or not set.")
    return found
