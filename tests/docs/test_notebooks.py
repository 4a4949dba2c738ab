"""The notebooks of docs/notebooks run from top to bottom, and hold the results that the site shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.pages import ROOT

BOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def test_there_are_four() -> None:
    assert [path.stem for path in BOOKS] == ["devices", "digits", "generation", "tensors"]


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_results_are_in_the_notebook(path: Path) -> None:
    numbers = [cell["execution_count"] for cell in cells(path)]
    assert numbers == list(range(1, len(numbers) + 1)), f"run `python tools/notebooks.py`: {path.name} has changed"
    results = [output for cell in cells(path) for output in cell["outputs"]]
    assert any("image/png" in result.get("data", {}) for result in results)
    assert not [result for result in results if result["output_type"] == "error" or result.get("name") == "stderr"]
    assert path.stat().st_size < 200_000


@pytest.mark.slow
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    done = subprocess.run([sys.executable, "tools/notebooks.py", str(path)], cwd=ROOT, stdout=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.STDOUT, text=True,
                          timeout=900, check=False)
    assert done.returncode == 0, done.stdout
