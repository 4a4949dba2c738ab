"""The tree of the tests: its folders are those of `ag` and a few more, and no test imports a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
ROOMS = TESTS.parent / "ag"
# As tests/README.md lists them.
BESIDE = {"cards", "curves", "docs", "examples", "golden", "helpers", "kompute", "limits", "machine", "programs",
          "queues", "table"}
FILES = sorted(TESTS.rglob("*.py"))


def test_folders_are_those_of_the_package() -> None:
    folders = {path.parent.relative_to(TESTS) for path in FILES if path.name.startswith("test_")}
    strange = [str(folder) for folder in folders if not (ROOMS / folder).is_dir() and folder.parts[0] not in BESIDE]
    assert not strange, f"folders of tests without a folder of ag: {strange}"
    readme = (TESTS / "README.md").read_text("utf-8")
    assert all(f"`{name}/`" in readme for name in BESIDE)


def test_no_test_imports_a_test() -> None:
    for path in FILES:
        text = path.read_text("utf-8")
        if not re.search(r"^ *(from|import) .*\btest_", text, re.M):
            continue  # most of them, which takes a tenth of parsing
        for node in ast.walk(ast.parse(text)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [])
            tests = [m for m in modules if m.rpartition(".")[2].startswith("test_")]
            assert not tests or path.parent.name == "interop", f"{path.relative_to(TESTS)} imports {tests}"
