"""The logger of `ag`, and progress on streams of any kind: what cannot be written is dropped, and never ends a job."""

from __future__ import annotations

import logging  # takes time to load, so this file is loaded late
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

log = logging.getLogger("ag")
# Of streams: such as a pipe without reader, a closed stream, None, a window that is gone.
_BROKEN = (OSError, ValueError, AttributeError, TypeError, RuntimeError)


def aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """Return rows as the lines of a table; the first `left` columns begin at the left, the others end at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:{'<' if i < left else '>'}{width}}" for i, (cell, width) in enumerate(
        zip(row, widths, strict=True))).rstrip() for row in rows)


def _call_handlers(record: logging.LogRecord) -> None:
    """Escape what cannot be printed, as texts of files may, and lose the record where stderr takes nothing."""
    with suppress(TypeError, ValueError, KeyError):  # wrong arguments: the handlers report them
        if not (text := record.getMessage()).isprintable():
            record.msg = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
            record.args = ()
    try:
        logging.Logger.callHandlers(log, record)
    except _BROKEN:  # of a handler that cannot write, and reports that on stderr
        try:
            if sys.stderr is not None:
                sys.stderr.write("")
        except _BROKEN:
            return
        raise


setattr(log, "callHandlers", _call_handlers)  # noqa: B010 - of this logger alone


class Forgiving:
    """A text stream that drops what its stream, which it equals, cannot take, and escapes what that lacks."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, or as much as the stream takes; returns its length."""
        with suppress(*_BROKEN):
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                coding = self._stream.encoding or "ascii"
                self._stream.write(text.encode(coding, "backslashreplace").decode(coding))
        return len(text)

    def flush(self) -> None:
        with suppress(*_BROKEN):
            self._stream.flush()

    def isatty(self) -> bool:
        """Return whether it is a terminal; False where the stream cannot tell."""
        try:
            return bool(self._stream.isatty())
        except _BROKEN:
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._stream

    def __hash__(self) -> int:
        return id(self._stream)


def shows_bars() -> bool:
    """Return whether a progress bar can be shown: stderr is a terminal, or this is a notebook."""
    return Forgiving(sys.stderr).isatty() or "ipykernel" in sys.modules


def write_line(text: str) -> None:
    """Write a line to stdout and flush it, if stdout takes it."""
    print(text, file=Forgiving(sys.stdout), flush=True)
