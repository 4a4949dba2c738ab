"""The logger of `ag` where stderr is closed or gone, and where a handler of the program fails."""

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


class Gone:
    """The stream of a window that is gone."""

    def write(self, text: str) -> int:
        raise RuntimeError(f"the window is gone: {text}")


@pytest.mark.parametrize("stderr", [None, closed(), Gone(), "no stream"])
def test_a_warning_is_lost_with_its_stream(stderr: object, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_cannot_be_printed_is_escaped(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("stopped (%s), %d%%", "\x1b[31m\ud800 é\n", 100)
    log.warning("plain %s", "text")
    assert caplog.messages == ["stopped (\\x1b[31m\\ud800 é\n), 100%", "plain text"]


def test_wrong_arguments_are_reported_as_by_any_logger(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "propagate", False)  # to pytest's handler, which raises
    handler = logging.StreamHandler(sys.stderr)
    log.addHandler(handler)
    try:
        log.warning("%d epochs", "three")
    finally:
        log.removeHandler(handler)
    assert "--- Logging error ---" in capsys.readouterr().err
