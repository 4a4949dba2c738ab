"""The logger of `ag`.  Loaded late, as `logging` takes time to load."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("ag")


def _call_handlers(record: logging.LogRecord) -> None:
    """Lose the record where stderr takes nothing: a handler that cannot write raises when it reports that there."""
    try:
        logging.Logger.callHandlers(log, record)
    except (ValueError, AttributeError, TypeError, RuntimeError):
        if _stderr_takes_text():
            raise


def _stderr_takes_text() -> bool:
    try:
        if sys.stderr is not None:
            sys.stderr.write("")
    except (ValueError, AttributeError, TypeError, RuntimeError):  # closed, no stream, a window that is gone
        return False
    return True


setattr(log, "callHandlers", _call_handlers)  # noqa: B010 - of this logger alone
