"""The summary of the legs: what passed, what passed only again, what was slow, and that nothing fails for its time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import summary

REPORT = """<testsuites><testsuite>
    <testcase classname="tests.ops.test_a" name="test_b[cpu]" time="9.5">
        <properties><property name="processor_s" value="8.0"/></properties></testcase>
    <testcase classname="tests.test_c" name="test_d" time="0.5"><failure message="assert 1 == 2"/></testcase>
    <testcase classname="tests.test_c" name="test_d" time="0.1"><error message="the teardown's"/></testcase>
    <testcase classname="tests.test_c" name="test_e" time="0.1"><skipped message="no device"/></testcase>
    </testsuite></testsuites>"""
AGAIN = '<testsuite><testcase classname="tests.test_c" name="test_d" time="0.4"/></testsuite>'


def summed(folder: Path, *legs: str) -> int:
    return summary.main(folder, 75, legs)


def test_a_leg_that_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "quick.xml").write_text(REPORT)
    assert summed(tmp_path, "quick=1=60=1.50 (all of it)", "sync=77=0=1.00") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "quick      1:00 min  failed: 1 passed, 1 failed, 1 skipped; slowness 1.50 (all of it)"
    assert lines[1].strip() == "9.5 s (8.0 of processor)  ops/test_a.py::test_b[cpu]"
    assert lines[-2:] == ["sync       0:00 min  not run, see above for what is missing; slowness 1.00",
                          "1 passed, 1 failed in 1:15 min"]


def test_what_passed_again_has_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "quick.xml").write_text(REPORT)
    (tmp_path / "quick.again.xml").write_text(AGAIN)
    assert summed(tmp_path, "quick=0=60=1.00") == 0
    assert "2 passed, 0 failed, 1 skipped; passed only when run again: test_c.py::test_d;" in capsys.readouterr().out


def test_a_leg_without_tests_fails_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summed(tmp_path, "lint=1=5=1.00") == 1
    assert capsys.readouterr().out.endswith("0 passed, 1 failed in 1:15 min\n")


def test_a_slow_folder_is_named_and_fails_nothing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "quick.xml").write_text(REPORT.replace("failure", "skipped").replace("error", "skipped"))
    monkeypatch.setattr(summary, "TIMES", tmp_path / "old.json")
    for ops, named in ((1.0, True), (2.5, False)):  # at a factor of 2 and with 3 seconds of noise
        summary.TIMES.write_text(json.dumps({"quick": {"ops": ops}, "slow": {"io": 7.0}}))
        assert summed(tmp_path, "quick=0=60=2.00 (all of it)") == 0
        assert ("longer than in tests/times.json: ops 8 s, not 2" in capsys.readouterr().out) == named
    assert json.loads((tmp_path / "times.json").read_text()) == {"quick": {".": 0.0, "ops": 4.0}, "slow": {"io": 7.0}}
