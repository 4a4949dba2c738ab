"""`ag.doctor()` and graphics cards that cannot be used, with faked nodes, groups and devices."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import ag
from ag.engine.backend import DeviceInfo
from ag.tools.doctor import card_nodes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the nodes are Linux's")
DOCTOR = import_module("ag.tools.doctor")


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like /dev with one card, whose node belongs to a group `render` that the user is not in."""
    (tmp_path / "dri").mkdir()
    node = tmp_path / "dri" / "renderD128"
    node.touch()
    node.chmod(0o660)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "getgroups", list)
    monkeypatch.setattr("grp.getgrgid", lambda number: SimpleNamespace(gr_name="render"))
    monkeypatch.setattr("grp.getgrnam", lambda name: SimpleNamespace(gr_mem=["somebody"]))
    monkeypatch.setattr("pwd.getpwuid", lambda number: SimpleNamespace(pw_name="ada"))
    return tmp_path


def said(dev: Path) -> str:
    (sentence,) = card_nodes(dev)
    return sentence.replace(str(dev), "/dev")


def test_no_card(tmp_path: Path) -> None:
    assert said(tmp_path).startswith("There is no /dev/dri/renderD*: ") and "--device /dev/dri" in said(tmp_path)


def test_a_card_of_another_group(dev: Path) -> None:
    assert said(dev) == ("/dev/dri/renderD128 is there and you may not use it, as you are not in group render: "
                         "sudo usermod -aG render ada, and log in again.")


def test_a_member_who_has_not_logged_in_again(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grp.getgrnam", lambda name: SimpleNamespace(gr_mem=["ada"]))
    assert "as a member of group render, after you have logged in again" in said(dev)


def test_a_card_of_its_owner_alone(dev: Path) -> None:
    (dev / "dri" / "renderD128").chmod(0o600)
    assert "nor may its group render; an administrator must allow it" in said(dev)


def test_a_group_without_a_name(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unnamed(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("grp.getgrgid", unnamed)
    assert f"--group-add {os.stat(dev / 'dri' / 'renderD128').st_gid}" in said(dev)


def test_a_card_without_a_driver(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK | os.W_OK)
    assert "is there and you may use it; if no device of the table is that card, install" in said(dev)


def test_the_nodes_of_nvidia(dev: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (dev / name).touch()
    names = [line.partition(" is")[0].rpartition("/")[2] for line in card_nodes(dev)]
    assert names == ["renderD128", "nvidia0", "nvidia1"]


def a_device(kind: str) -> DeviceInfo:
    return DeviceInfo("toy:0", "a device", "nobody", "1", kind, 1 << 30, ())


def report(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> list[str]:
    """Return what is missing on a machine with accelerators of these kinds."""
    found = [a_device(kind) for kind in kinds]
    cpu = [info for info in DOCTOR.list_devices() if info.name == "cpu"]
    monkeypatch.setattr(DOCTOR, "list_devices", lambda accelerators_only=False: found if accelerators_only else cpu)
    monkeypatch.setattr(DOCTOR, "missing_devices", list)
    monkeypatch.setattr(DOCTOR, "drivers", list)
    monkeypatch.setattr(DOCTOR, "mpi_report", lambda: ("", []))
    monkeypatch.setattr(DOCTOR, "card_nodes", lambda: ["the node"])
    return ag.doctor().missing


def test_only_software(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = report(monkeypatch, "cpu", "cpu")
    assert "devices (toy:0, toy:0) are software" in first and "No graphics card was found" in first
    assert second == "the node"


def test_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = report(monkeypatch)
    assert missing[0] == "the node" and not any("are software" in line for line in missing)


@pytest.mark.parametrize("kind", ["discrete", "integrated", "virtual"])
def test_a_card(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    missing = report(monkeypatch, "cpu", kind)
    assert "the node" not in missing and not any("are software" in line for line in missing)


def test_threads_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("list_devices", "drivers", "missing_devices"):
        monkeypatch.setattr(DOCTOR, name, lambda **_: [])
    monkeypatch.setattr(DOCTOR, "mpi_report", lambda: ("", []))
    threads = {name: number for name, number in ag.doctor().system.items() if name.startswith("BLAS threads (")}
    assert threads and all(int(number) >= 1 for number in threads.values())
