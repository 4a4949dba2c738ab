"""Cache files: whatever is in the place of one, or of its folder, the device goes on and the log says so once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.fuzz import mutations

from ag.engine.backends.shader import autotune, cache_files
from ag.engine.backends.shader.autotune import Choices
from ag.engine.backends.shader.cache_files import CacheError, cache_folder, fault_of_folder, read_cache, write_cache
from ag.engine.backends.vulkan import pipelines
from ag.engine.backends.vulkan.pipelines import _HEADER, _MAGIC, KeptPipelines

FILE = "device.json"
POSIX = pytest.mark.skipif(os.name != "posix", reason="Windows has no owners and modes of files")
Damage = Callable[[Path], object]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_files._warn.cache_clear()
    return tmp_path / "ag" / FILE


def choices() -> Choices:
    return Choices(FILE, "device", "1", "hash")


def kept(given: list[bytes] | None = None, vendor: int = 1, device: int = 2,
         uuid: bytes = b"u" * 16) -> tuple[KeptPipelines, str]:
    """The pipelines of a driver that has compiled one, and the name of their file."""
    driver = SimpleNamespace(
        get_device_properties=lambda: {"vendor_id": vendor, "device_id": device, "pipeline_cache_uuid": uuid,
                                       "driver_version": 7},
        pipelines=lambda: 0, pipeline_cache=lambda: _HEADER.pack(32, 1, vendor, device, uuid) + b"compiled",
        add_pipeline_cache=([] if given is None else given).append)
    keeps = KeptPipelines(driver)  # type: ignore[arg-type]
    driver.pipelines = lambda: 1
    return keeps, keeps._name


def test_pipelines_that_are_kept_come_back_and_no_others(path: Path) -> None:
    keeps, name = kept()
    keeps._manager.pipelines = lambda: 0  # type: ignore[method-assign]
    keeps.save()
    assert not path.parent.exists()  # nothing was compiled
    keeps, _ = kept()
    keeps.save()
    given: list[bytes] = []
    kept(given)[0].load()
    assert given == [keeps._manager.pipeline_cache()]
    for other in ({"vendor": 9}, {"device": 9}, {"uuid": b"v" * 16}):
        given.clear()
        keeps, its_name = kept(given, **other)  # type: ignore[arg-type]
        path.with_name(its_name).write_bytes(path.with_name(name).read_bytes())  # as if it had its name
        keeps.load()
        assert given == []


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_a_driver_that_refuses(path: Path, error: type[Exception]) -> None:
    def refuse(*_data: bytes) -> bytes:
        raise error("no")

    keeps, _ = kept()
    keeps.save()
    driver: Any = keeps._manager
    driver.add_pipeline_cache = driver.pipeline_cache = refuse
    keeps.load()
    driver.pipelines = lambda: 2
    keeps.save()


def belong_to_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(path).st_uid + 1)
    monkeypatch.setattr(cache_files, "_ADMINISTRATOR", -1)


def test_a_file_is_private_and_comes_back(path: Path) -> None:
    assert read_cache(FILE, 9) is None and fault_of_folder() == ""
    write_cache(FILE, b"content")
    assert read_cache(FILE, 7) == b"content" and os.listdir(path.parent) == [FILE]
    if os.name == "posix":
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize(("damage", "message"), [
    (lambda path: path.write_bytes(b"content!"), "at most 7 bytes"),
    (lambda path: (path.unlink(), path.mkdir()), "" if os.name == "nt" else "no plain file"),
    pytest.param(lambda path: (path.unlink(), os.mkfifo(path)), "no plain file", marks=POSIX),
    pytest.param(lambda path: path.chmod(0o620), "may be written by other users", marks=POSIX),
    pytest.param(lambda path: path.chmod(0o602), "may be written by other users", marks=POSIX),
    (lambda path: (path.unlink(), path.parent.rmdir(), path.parent.write_bytes(b"")), "cannot be read"),
])
def test_what_is_not_our_file_is_refused(path: Path, damage: Damage, message: str) -> None:
    write_cache(FILE, b"content")
    damage(path)
    with pytest.raises(CacheError, match=message):
        read_cache(FILE, 7)


@POSIX
def test_files_and_folders_of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cache(FILE, b"content")
    belong_to_another(path, monkeypatch)
    for use in (lambda: read_cache(FILE, 7), lambda: write_cache(FILE, b"mine")):
        with pytest.raises(CacheError, match="belongs to another user"):
            use()
    assert "belongs to another user" in fault_of_folder() and path.read_bytes() == b"content"


def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))


def a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", __file__)


def no_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/without")
    monkeypatch.setattr(os, "getcwd", lambda: (_ for _ in ()).throw(FileNotFoundError("gone")))


@pytest.mark.parametrize("place", [no_home, a_file, no_working_directory])
def test_a_device_needs_no_cache(place: Callable[[pytest.MonkeyPatch], None], path: Path,
                                 monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    place(monkeypatch)
    for _ in range(2):
        found = choices()
        assert found.keep("a", "S", {"S"}) == found.get("a") == "S"
        keeps, _ = kept()
        keeps.load()
        keeps.save()
    assert len(caplog.messages) == len(set(caplog.messages)) > 0 and "XDG_CACHE_HOME" in fault_of_folder()
    if place is no_home:
        assert len(caplog.messages) == 1


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative of " + tmp_path.name)
    before = cache_folder()
    monkeypatch.chdir("/")
    assert cache_folder() == before == tmp_path / ("relative of " + tmp_path.name) / "ag"


def hostile(count: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found, given = choices(), list[bytes]()
    found.keep("a", "S", {"S"})
    keeps, name = kept(given)
    keeps.save()
    whole = [read_cache(file, 1 << 10) for file in (FILE, name)]
    data = keeps._manager.pipeline_cache()
    assert whole[1] == _MAGIC + sha256(data).digest() + data
    with monkeypatch.context() as patch:
        for content in mutations(whole[0], count // 2, seed):
            patch.setattr(autotune, "read_cache", lambda name, most, content=content: content)
            assert all(isinstance(text, str) for pair in choices()._choices.items() for text in pair)
        for content in mutations(whole[1], count - count // 2, seed):
            patch.setattr(pipelines, "read_cache", lambda name, most, content=content: content)
            keeps.load()
    assert {data, *given} == {data}
    (cache_folder() / FILE).write_bytes(b"[")
    assert choices().keep("a", "S", {"S"}) == choices().get("a") == "S"


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_damaged_contents(count: int, path: Path, monkeypatch: pytest.MonkeyPatch,
                          caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, "ag"):
        hostile(count, count, monkeypatch)
