"""The logger of `ag` where stderr is closed, and where a handler of the program fails."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from ag.log import log


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stderr", [None, closed()])
def test_a_warning_is_lost_with_its_stream(stderr: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.StreamHandler(closed())
    monkeypatch.setattr(sys, "stderr", stderr)
    log.addHandler(handler)
    try:
        log.warning("a warning")
    finally:
        log.removeHandler(handler)
    assert logging.getLogger("ag") is log


def test_an_error_of_a_handler_is_raised() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ValueError("broken")

    handler = Broken()
    log.addHandler(handler)
    try:
        with pytest.raises(ValueError, match="broken"):
            log.warning("a warning")
    finally:
        log.removeHandler(handler)
