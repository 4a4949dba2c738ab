"""Results are to the bit what they were: every entry of entries.py gives what golden.json has for this machine.

Knows nothing inside `ag`.  Bits belong to a processor, a driver and a build of numpy; on a machine that golden.json
does not know, tests are skipped, or fail if AG_GOLDEN=require is set.  ``python tests/golden/record.py`` adds a
machine.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

import pytest
from golden.entries import ENTRIES, FILE, fingerprint, machine_of, measured

pytestmark = pytest.mark.usefixtures("little_to_collect")  # as `measured` does before each entry

HEAVY = {"W3 eager", "W3 recomputed", "W3 recomputed costs"}  # seconds on SwiftShader
HOW = "run `python tests/golden/record.py` at a commit whose results you trust"


@cache
def golden() -> dict[str, Any]:
    return json.loads(FILE.read_text("utf-8"))


@cache
def recorded(device: str) -> dict[str, Any] | str:
    """The device's entries, or what is the matter."""
    name, known = fingerprint(device), golden()
    if name in known:
        return known[name]
    before = [other for other in known if other.startswith(f"{machine_of(device)};")]
    if before:
        pytest.fail(f"{before[0]!r} is now {name!r}: matmul, exp, softmax or sum gives other bits on the same device")
    return f"golden.json has nothing for {name!r}; {HOW}"


def marked(name: str) -> Any:
    """The quick leg leaves out what takes seconds: W3 and W4 on both drivers, on SwiftShader all but captured steps."""
    if name in HEAVY:
        return pytest.param(name, marks=pytest.mark.slow)
    if name.startswith(("W3", "W4")):
        return pytest.param(name, marks=pytest.mark.slow_on("lavapipe", "swiftshader"))
    return pytest.param(name, marks=() if name.endswith("captured") else pytest.mark.slow_on("swiftshader"))


@pytest.mark.parametrize("name", list(map(marked, ENTRIES)))
def test_bits_are_the_same(device: str, name: str) -> None:
    entries = recorded(device)
    if isinstance(entries, str):
        (pytest.fail if os.environ.get("AG_GOLDEN") == "require" else pytest.skip)(entries)
    assert name in entries, f"golden.json lacks this entry; {HOW}"
    want, got = entries[name], measured(name, device)
    if os.environ.get("AG_BARRIER_ALL") == "1":
        want, got = ({k: v for k, v in found.items() if k != "barriers"} for found in (want, got))
    assert got == want


def test_no_entry_is_left_over() -> None:
    for name, entries in golden().items():
        assert entries.keys() == ENTRIES.keys(), name
