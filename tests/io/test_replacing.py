"""Saving over a file: what stays of it, what may not be replaced, and trying a place before the work begins."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.io.safetensors_file import check_writable

ROOT = Path(__file__).resolve().parents[2]
MODEL = ag.ag_linear(2, 2)


@pytest.fixture
def umask() -> Iterator[None]:
    old = os.umask(0o027)
    yield
    os.umask(old)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o666, 0o660])
def test_a_saved_file_keeps_its_permissions(tmp_path: Path, permissions: int, umask: None) -> None:
    for k, save in enumerate((ag.ag_save_model, lambda model, path: ag.ag_save_checkpoint(path, model))):
        path = tmp_path / f"{k}"
        save(MODEL, path)
        assert mode(path) == 0o640  # as the umask says
        path.chmod(permissions)
        save(MODEL, path)
        assert mode(path) == permissions


@pytest.mark.parametrize("name", ["a" * 255, "ü" * 127], ids=["ascii", "two bytes each"])
def test_a_name_as_long_as_there_may_be(tmp_path: Path, name: str) -> None:
    check_writable(tmp_path / name, "test")
    ag.ag_save_model(MODEL, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    left = tmp_path / f".{name[:122 if name[0] == 'ü' else 245]}.01234567"
    left.touch()
    os.utime(left, (0, 0))
    ag.ag_save_model(MODEL, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_nobody_can_read_the_file_before_it_has_its_permissions(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "m", []
    ag.ag_save_model(MODEL, path)
    path.chmod(0o600)
    opened = os.open

    def watched(name: Any, *args: Any, **kwargs: Any) -> int:
        handle = opened(name, *args, **kwargs)
        seen.append(stat.S_IMODE(os.fstat(handle).st_mode))
        return handle

    with monkeypatch.context() as patch:
        patch.setattr("os.open", watched)
        ag.ag_save_model(MODEL, path)
    assert seen == [0o600]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_saved_file_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "m"
    ag.ag_save_model(MODEL, path)
    os.chown(path, 1234, 2345)
    path.chmod(0o660)
    ag.ag_save_model(MODEL, path)
    assert (path.stat().st_uid, path.stat().st_gid, mode(path)) == (1234, 2345, 0o660)


def test_a_saved_file_keeps_its_attributes(tmp_path: Path) -> None:
    path = tmp_path / "m"
    ag.ag_save_model(MODEL, path)
    try:
        os.setxattr(path, "user.note", b"of mine")
    except OSError:
        pytest.skip("the file system has no attributes")
    ag.ag_save_model(MODEL, path)
    assert os.getxattr(path, "user.note") == b"of mine"


def test_another_group_may_not_do_more_than_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    ag.ag_save_model(MODEL, path)
    path.chmod(0o664)
    real = os.fstat

    def of_another_group(handle: int) -> os.stat_result:
        return os.stat_result([v + (i == 5) for i, v in enumerate(real(handle))])

    with monkeypatch.context() as patch:
        patch.setattr("os.fstat", of_another_group)
        ag.ag_save_model(MODEL, path)
    assert mode(path) == 0o644


def test_a_symbolic_link_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link, second = tmp_path / "there" / "m", tmp_path / "latest", tmp_path / "second"
    link.symlink_to("there/m")
    second.symlink_to(link)
    for _ in range(2):  # a file that is not there yet, and one that is
        ag.ag_save_model(ag.ag_linear(2, 3), second)
        assert os.readlink(link) == "there/m" and os.readlink(second) == str(link)
        assert target.is_file() and not target.is_symlink() and ag.ag_load_model(link).W.shape == (3, 2)
    assert sorted(os.listdir(tmp_path)) == ["latest", "second", "there"] and os.listdir(target.parent) == ["m"]


def test_paths_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "a", str(tmp_path / "a"), os.fsencode(tmp_path / "a"), "a", b"a"):
        ag.ag_save_model(MODEL, path)
        assert np.array_equal(ag.ag_load_model(path).W.numpy(), MODEL.W.numpy())
        ag.ag_save_checkpoint(path, MODEL, step=3)
        assert ag.ag_load_checkpoint(path, MODEL).step == 3


def test_two_savers_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m"
    models = [ag.ag_linear(50, 50) for _ in range(4)]
    ag.ag_save_model(models[0], path)

    def save(model: ag.Layer) -> None:
        for _ in range(20):
            ag.ag_save_model(model, path)

    savers = [threading.Thread(target=save, args=(model,)) for model in models]
    for saver in savers:
        saver.start()
    known = {model.W.numpy().tobytes() for model in models}
    while any(saver.is_alive() for saver in savers):
        assert ag.ag_load_model(path).W.numpy().tobytes() in known
    assert os.listdir(tmp_path) == ["m"]


def wrong_places(folder: Path) -> dict[str, tuple[Any, int]]:
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    return {"folder": (folder / "folder", errno.EISDIR), "slash": (f"{folder}/new/", errno.EISDIR),
            "nowhere": (folder / "nowhere" / "m", errno.ENOENT), "empty": ("", errno.ENOENT),
            "loop": (folder / "loop", errno.ELOOP), "pipe": (folder / "pipe", errno.EINVAL),
            "device": ("/dev/null", errno.EINVAL), "long": (folder / ("m" * 300), errno.ENAMETOOLONG)}


@pytest.mark.parametrize("place", ["folder", "slash", "nowhere", "empty", "loop", "pipe", "device", "long"])
def test_a_place_for_no_file(tmp_path: Path, place: str) -> None:
    path, number = wrong_places(tmp_path)[place]
    before = sorted(os.listdir(tmp_path))
    for name, save in (("ag_save_model", lambda: ag.ag_save_model(MODEL, path)),
                       ("ag_save_checkpoint", lambda: ag.ag_save_checkpoint(path, MODEL))):
        with pytest.raises(OSError, match=f" {name}: ") as refused:
            save()
        assert refused.value.errno == number and refused.value.filename == str(path)
    with expect_error("a checkpoint that cannot be written", ag.CheckpointError, "dp_train", "cannot be written",
                      str(path) or "''", os.strerror(number) if number != errno.EINVAL else "Not a regular file"):
        check_writable(path, "dp_train")
    assert sorted(os.listdir(tmp_path)) == before and not Path("/dev/null").is_file()


@pytest.mark.parametrize("path", [3, True, None, ["m"], "a\0b"])
def test_no_path(path: Any) -> None:
    with expect_error("a checkpoint at something that is no path", ag.CheckpointError, "dp_train", repr(path)):
        check_writable(path, "dp_train")


READ_ONLY = """
import os, sys, ag
from ag.io.safetensors_file import check_writable
ag.ag_linear(2, 2)  # loads the device, for which somebody else may not be allowed to read Python's own files
os.setuid(12345)
refused = 0
for path in sys.argv[1:]:
    for save in (lambda: ag.ag_save_model(ag.ag_linear(2, 2), path), lambda: check_writable(path, "dp_train")):
        try:
            save()
        except (PermissionError, ag.CheckpointError) as error:
            refused += "Permission denied" in str(error) and path in str(error)
print(refused)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="somebody else is needed, who may not write")
def test_a_file_or_folder_that_is_read_only_stays_as_it_was() -> None:
    if not all(p.stat().st_mode & 0o001 for p in [ROOT, *ROOT.parents]):
        pytest.skip(f"only its owner can read {ROOT}, and somebody else must import ag from there")
    with TemporaryDirectory() as place:  # pytest's are private
        top, folder = Path(place), Path(place) / "folder"
        folder.mkdir()
        files = [top / "m", folder / "m"]
        for file in files:
            ag.ag_save_model(MODEL, file)
        before = [file.read_bytes() for file in files]
        for p, permissions in ((top, 0o777), (files[0], 0o444), (folder, 0o555), (files[1], 0o666)):
            p.chmod(permissions)
        done = subprocess.run([sys.executable, "-c", READ_ONLY, *files], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
        assert done.stdout == "4\n", done.stdout + done.stderr
        assert [file.read_bytes() for file in files] == before
        assert sorted(os.listdir(top)) == ["folder", "m"] and os.listdir(folder) == ["m"]


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    ag.ag_save_model(MODEL, tmp_path / "m")
    monkeypatch.setattr("os.fsync", full)
    for path in (tmp_path / "m", tmp_path / "new"):
        with expect_error("a checkpoint on a full disk", ag.CheckpointError, "dp_train", "No space left"):
            check_writable(path, "dp_train")
    assert os.listdir(tmp_path) == ["m"]


def test_trying_leaves_everything_as_it_was(tmp_path: Path) -> None:
    path, new, link = tmp_path / "m", tmp_path / "new", tmp_path / "link"
    ag.ag_save_model(MODEL, path)
    link.symlink_to(path)
    before = path.stat(), path.read_bytes()
    for place in (path, new, link, os.fsencode(new)):
        check_writable(place, "dp_train")
    assert (path.stat(), path.read_bytes()) == before and sorted(os.listdir(tmp_path)) == ["link", "m"]
