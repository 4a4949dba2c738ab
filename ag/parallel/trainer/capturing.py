"""Whether a job replays captured steps, for all its replicas; says so once where it cannot."""

from __future__ import annotations

import logging
from threading import Lock

from ag.errors import CaptureError

__all__ = ["PROGRAMS_KEPT", "Capturing", "log"]

PROGRAMS_KEPT = 32  # captured steps per replica; samples of yet other shapes run eagerly

log = logging.getLogger("ag")


class Capturing:
    """Whether the replicas of a job replay captured steps; "auto" goes on without at the first that cannot be."""

    def __init__(self, wanted: bool | str) -> None:
        self.on = bool(wanted)
        self._must = wanted is True
        self._out = False
        self._one = Lock()  # replicas ask from threads of their own, and it is said once

    def refused(self, error: CaptureError) -> None:
        """Go on without, and say why; or raise `error` if captured steps were asked for."""
        if self._must:
            raise error
        with self._one:
            on, self.on = self.on, False
        if on:
            log.warning("dp_train: steps run uncaptured, which is slower: %s", error)

    def ran_out(self) -> None:
        """Say once that samples come in too many kinds to keep a captured step for each."""
        with self._one:
            out, self._out = self._out, True
        if not out:
            log.warning("dp_train: the samples have more than %d different shapes or numbers in them; from the next "
                        "on they run uncaptured, which is slower. Give numbers that differ as arrays.", PROGRAMS_KEPT)
