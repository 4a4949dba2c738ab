"""Lines and bars on streams that fail in every way that streams do."""

from __future__ import annotations

import io
import os
import sys
from types import SimpleNamespace

import pytest

from ag.log import Forgiving, shows_bars, write_line


class Full(io.StringIO):
    """A stream on a disk without room, in a terminal that is closed."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise BrokenPipeError

    def isatty(self) -> bool:
        raise ValueError("I/O operation on closed file")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


BROKEN = {"missing": None, "full": Full(), "closed": closed(), "without methods": SimpleNamespace()}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_written_is_dropped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, BROKEN[name])
    write_line("epoch 1")
    assert shows_bars() == ("ipykernel" in sys.modules)


@pytest.mark.parametrize(("encoding", "written"), [("ascii", b"caf\\xe9 \\u2588\n"), ("latin-1", b"caf\xe9 \\u2588\n")])
def test_characters_that_an_encoding_lacks_are_escaped(encoding: str, written: bytes,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding))
    write_line("café █")
    assert content.getvalue() == written


def test_a_reader_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError), os.fdopen(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        write_line("epoch 1")
        print("the pipe is broken indeed", file=stream, flush=True)


def test_it_equals_its_stream_and_is_a_terminal_where_that_is_one() -> None:
    stream = SimpleNamespace(isatty=lambda: True, encoding="utf-8")
    assert Forgiving(stream) == stream and stream == Forgiving(stream) and Forgiving(stream) != sys.stdout
    assert Forgiving(stream).isatty() and Forgiving(stream).encoding == "utf-8"
