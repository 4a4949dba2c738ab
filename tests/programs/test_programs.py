"""Well-known training programs, ported without a workaround: their losses are PyTorch's, captured and eager.

A program is a file here, and one of the same name in `in_pytorch`.  Both begin with the same numbers (`drawn.py`), and
return a step and its batches.  `python tests/programs/make_curves.py NAME` runs PyTorch's and stores the losses.
"""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from programs.drawn import Draw

import ag

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in (HERE / "in_pytorch").glob("*.py"))
EAGER = {"moe"}  # whose step cannot be captured: it says why


def losses(name: str, captured: bool) -> list[float]:
    step, batches = import_module(f"programs.{name}").program(Draw())
    run = ag.ag_capture(step) if captured else step
    return [float(run(*batch)) for batch in batches]


def test_the_page_has_every_program() -> None:
    page = (HERE.parents[1] / "docs" / "programs.md").read_text("utf-8")
    rows = {int(row[1]): row[2] for row in re.finditer(r"^\| (\d+) \| (.+) \|$", page, re.M)}
    assert [*rows] == [*range(1, 61)]
    for name in NAMES:
        number = re.match(r'"""Program (\d+),', (HERE / f"{name}.py").read_text("utf-8"))
        assert number and f"`tests/programs/{name}.py`" in rows[int(number[1])], f"docs/programs.md: {name} is missing"
    assert sorted(re.findall(r"/(\w+)\.py`", "".join(rows.values()))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_pytorchs(name: str) -> None:
    curve = json.loads((HERE / "curves" / f"{name}.json").read_text("utf-8"))
    assert len(curve) >= 5 and abs(curve[-1] - curve[0]) > 1e-4 * abs(curve[0])
    np.testing.assert_allclose(losses(name, name not in EAGER), curve, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_on_a_software_driver(vulkan: str, name: str) -> None:
    if NAMES.index(name) % 4 != int(vulkan[-1]):
        pytest.skip("each driver runs every fourth program, as the kernels have tests of their own on both")
    curve = json.loads((HERE / "curves" / f"{name}.json").read_text("utf-8"))
    with ag.ag_device(vulkan):
        np.testing.assert_allclose(losses(name, name not in EAGER), curve, rtol=5e-5)
