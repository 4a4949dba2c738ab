"""The table of mutants fits the tree; `make mutants` sees that every mutant is killed by the tests it names."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

from mutant_table import FAMILIES, MUTANTS
from mutants import outcomes

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def test_each_text_occurs_once_in_its_file() -> None:
    counts = {f"{m.file}: {m.old}": (ROOT / m.file).read_text("utf-8").count(m.old) for m in MUTANTS}
    assert not {text: n for text, n in counts.items() if n != 1}
    assert not [m.name for m in MUTANTS if m.old in m.new and m.new in m.old]


@cache
def quick_tests(file: str) -> set[str]:
    """Names of the tests of a file that are not marked slow, as far as its text says."""
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    marks = [ast.unparse(x.value) for x in tree.body if isinstance(x, ast.Assign) and "pytestmark" in ast.unparse(x)]
    assert "mark.slow" not in " ".join(marks), f"all tests of {file} are slow"
    return {x.name for x in tree.body if isinstance(x, ast.FunctionDef)
            and "pytest.mark.slow" not in map(ast.unparse, x.decorator_list)}


def test_killers_are_quick_tests() -> None:
    """Parameters are looked at when the mutants are run."""
    for m in MUTANTS:
        assert m.killers, m.name
        for file, name in (killer.partition("[")[0].split("::") for killer in m.killers):
            assert name in quick_tests(file), f"{m.name}: {file} has no quick test {name}"


def test_every_family_has_mutants() -> None:
    sizes = Counter(m.family for m in MUTANTS)
    assert sizes.keys() == {*FAMILIES} and len(MUTANTS) >= 60
    assert max(Counter((m.family, m.name) for m in MUTANTS).values()) == 1


def test_what_pytest_reports(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text("""<testsuites><testsuite>
        <testcase classname="tests.ops.test_a" name="test_b[cpu]"><failure message="assert 1 == 2"/></testcase>
        <testcase classname="tests.ops.test_a" name="test_c"/>
        <testcase classname="tests.ops.test_a" name="test_d"><skipped message="no device"/></testcase>
        <testcase classname="" name="tests.ops.test_e"><error message="collection failure"/></testcase>
        </testsuite></testsuites>""")
    assert outcomes(report) == {"ops/test_a.py::test_b[cpu]": "assert 1 == 2", "ops/test_a.py::test_c": "passed",
                                "ops/test_a.py::test_d": "skipped", ".py::tests.ops.test_e": "error"}
