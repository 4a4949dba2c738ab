"""The logger of `ag`.  Loaded late, as `logging` takes time to load."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("ag")


def _call_handlers(record: logging.LogRecord) -> None:
    """Lose the record where stderr is closed: a handler that cannot write raises when it reports that there."""
    try:
        logging.Logger.callHandlers(log, record)
    except ValueError:
        if not getattr(sys.stderr, "closed", False):
            raise


setattr(log, "callHandlers", _call_handlers)  # noqa: B010 - of this logger alone
