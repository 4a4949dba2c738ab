"""The table of docs/architecture.md says how many files a call enters; no change makes it more in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ag.native import code

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
import journeys  # noqa: E402 - it lies in tools


@pytest.mark.skipif(code is None, reason="no compiler was here, so other files are entered")
def test_the_table(lavapipe: str) -> None:
    for column, device in enumerate(("cpu", lavapipe)):
        said = subprocess.run([sys.executable, ROOT / "tools" / "journeys.py", device], capture_output=True, text=True,
                              check=True).stdout.splitlines()
        found = {name: int(count) for name, count in (line.split(": ")[1:] for line in said)}
        documented = {name: columns[column] for name, columns in journeys.documented().items()}
        assert found.keys() == {*journeys.JOURNEYS}
        assert all(0 <= documented[name] - count <= 1 for name, count in found.items()), (found, documented)
