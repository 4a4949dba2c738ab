"""docs/parity.md says what is there, and the blocks of the porting guides run and agree with PyTorch."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers.pages import ROOT, run

import ag

PARITY = (ROOT / "docs" / "parity.md").read_text("utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (same|right|not yet) \|(.*)\|$", PARITY, re.M)
PORTING = (ROOT / "docs" / "porting_from_ggmlr.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PORTING, re.M | re.S)
FROM_PYTORCH = (ROOT / "docs" / "porting_from_pytorch.md").read_text("utf-8")
PAIRS = re.findall(r"^```py torch\n(.*?)^```\n+```python\n(.*?)^```$", FROM_PYTORCH, re.M | re.S)


def test_every_row_of_the_table_is_read() -> None:
    lines = [line for line in PARITY.splitlines() if line.startswith("| `")]
    assert len(lines) == len(ROWS) == len({name for name, _, _ in ROWS}) > 40


def test_parity_tells_what_is_there() -> None:
    for name, state, difference in ROWS:
        assert (name in ag.__all__) is (state != "not yet"), f"docs/parity.md says {name} is {state}"
        assert state != "right" or difference.strip(), f"docs/parity.md does not say what is different about {name}"


def test_no_public_function_with_a_reference_to_ggmlr_is_missing() -> None:
    mirrored = {name for name in ag.__all__
                if f"ggmlR ``{name}``" in (getattr(getattr(ag, name), "__doc__", None) or "")}
    assert not mirrored - {name for name, _, _ in ROWS}


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_porting_block_runs(number: int) -> None:
    run(BLOCKS[number])


def test_every_pytorch_block_has_its_counterpart() -> None:
    assert len(PAIRS) == FROM_PYTORCH.count("```py torch") == FROM_PYTORCH.count("```python") >= 3


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_pytorch_pair(number: int) -> None:
    """This library's block runs; where PyTorch is installed, its block leaves the same result."""
    theirs, ours = PAIRS[number]
    run(ours)
    torch = pytest.importorskip("torch", reason="PyTorch is not installed, so only this library's block ran")
    results = []
    for code in (theirs, ours):
        names: dict[str, object] = {}
        exec(code, names)  # a block of our own documentation
        results.append(names["result"])
    theirs_result, our_result = results
    assert torch and theirs_result.keys() == our_result.keys()
    rtol = 1e-2 if "bfloat16" in theirs else 2e-5
    for name, value in our_result.items():
        np.testing.assert_allclose(value, theirs_result[name], rtol=rtol, atol=1e-6, err_msg=name)
