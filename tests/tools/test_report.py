"""`python -m ag report`: one file with all that is known of the devices, and no name of a person or a place."""

from __future__ import annotations

import getpass
import json
import platform
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from helpers.pages import ROOT
from reports import REPORTS, page

from ag.__main__ import main
from ag.engine.device import backend_of
from ag.tools import selftest
from ag.tools.selftest import SCHEMA, without_names

DOCTOR, REPORT = import_module("ag.tools.doctor"), import_module("ag.tools.selftest")


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a device of the CPU alone, which is measured briefly."""
    infos = [backend_of("cpu").info._replace(uuid="0123456789abcdef")]
    for place in (DOCTOR, REPORT):
        monkeypatch.setattr(place, "list_devices", lambda accelerators_only=False: [] if accelerators_only else infos)
    for name, found in (("drivers", []), ("mpi_report", ("", []))):
        monkeypatch.setattr(DOCTOR, name, lambda found=found: found)
    monkeypatch.setattr(selftest, "CHECKS", {"softmax": selftest.CHECKS["softmax"]})
    for name, value in (("_SECONDS", 0.01), ("_SIDES", (16,)), ("_COPIED", 1024)):
        monkeypatch.setattr(REPORT, name, value)


@pytest.mark.usefixtures("brief")
def test_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DOCTOR, "missing_devices", lambda: [f"{Path.home()}/x is not there, {platform.node()}"])
    file = tmp_path / "report.json"
    assert main(["report", str(file)]) == 0
    assert "ok     cpu       softmax" in capsys.readouterr().out
    text = file.read_text("utf-8")
    found = json.loads(text)
    assert found["schema"] == SCHEMA and found["doctor"]["healthy"] is True
    assert {check["check"] for check in found["selftest"]} == {"opening", "softmax", "dp_train"}
    assert all(value > 0 for value in found["speed"]["cpu"].values()) and len(found["speed"]["cpu"]) == 5
    for private in (str(Path.home()), str(ROOT), str(tmp_path), platform.node(), platform.release(), "0123456789abcdef",
                    getpass.getuser() if getpass.getuser() != "root" else "/root"):
        assert private not in text


@pytest.mark.usefixtures("brief")
def test_a_device_that_computes_wrong_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_ROUNDING", -1.0)
    assert main(["report", str(tmp_path / "report.json")]) == 0
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["speed"] == {}


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("file, why", [("nowhere/report.json", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_written(file: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / file)]) == 1
    said = capsys.readouterr()
    assert f"cannot be written: {why}." in said.err and "opening" not in said.out


@pytest.mark.parametrize("text, kept", [
    ("a cache in /home/Zoe/x.json, and ~zoe/y", "a cache in <path>, and <path>"),
    ("VK_ICD_FILENAMES=/opt/me/a.json:/usr/share/b.json", "VK_ICD_FILENAMES=<path>:/usr/share/b.json"),
    (r"C:\Users\Zoe\ag (its cache)", "<path> (its cache)"),
    ("up 4.4 GB/s and/or 3 / 4", "up 4.4 GB/s and/or 3 / 4"),
    ("/dev/dri/renderD128 belongs to zoe: sudo usermod -aG render zoe", "/dev/dri/renderD128 belongs to <name>: sudo "
                                                                       "usermod -aG render <name>"),
    ("zoes-box.local and zoes-box, not zoes-boxes", "<name> and <name>, not zoes-boxes"),
])
def test_names_and_paths_are_left_out(text: str, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "zoe")
    monkeypatch.setattr(platform, "node", lambda: "zoes-box.local")
    found: Any = without_names({"a": [(text,)], "uuid": "1", "n": 2.5, "b": None})
    assert found == {"a": [[kept]], "n": 2.5, "b": None}


def test_a_home_with_a_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/Users/Zoe Smith"))
    assert without_names("in /Users/Zoe Smith/Library/ag.") == "in <path>"


def test_the_page_shows_all_reports() -> None:
    shown = (ROOT / "docs" / "about" / "reports.md").read_text("utf-8")
    assert shown == page(), "run `python tools/reports.py`"
    files = sorted(REPORTS.glob("*.json"))
    assert files
    for path in files:
        found = json.loads(path.read_text("utf-8"))
        assert found == without_names(found) and not re.search(r"/(home|root|Users|tmp)\b", path.read_text("utf-8"))
        assert all(f"| {x['info']['description']} |" in shown for x in found["doctor"]["devices"])
