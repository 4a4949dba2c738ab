"""The logger of `ag`.  Loaded late, as `logging` takes time to load."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

log = logging.getLogger("ag")


def _printable(character: str) -> str:
    return character if character.isprintable() or character == "\n" else ascii(character)[1:-1]


def _call_handlers(record: logging.LogRecord) -> None:
    """Escape what cannot be printed, as texts of files may, and lose the record where stderr takes nothing.

    A handler that cannot write raises when it reports that there.
    """
    with suppress(TypeError, ValueError, KeyError):  # wrong arguments: the handlers report them
        if not (text := record.getMessage()).isprintable():
            record.msg, record.args = "".join(map(_printable, text)), ()
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
