"""Compare every entry of entries.py with golden.json: to the bit on a machine that the file knows.

On any other machine the entries must agree with sketches.json within rounding, and where all recorded machines agree
to the bit, to the bit.  ``python tests/golden/record.py`` adds a machine.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from golden.entries import ENTRIES, FILE, SKETCHES, fingerprint, kind, machine_of, measured
from golden.hashing import Found

from ag.engine.backends.cpu.library import LEVELS, library

pytestmark = pytest.mark.usefixtures("little_to_collect")  # as `measured` does before each entry

HEAVY = {"W3 eager", "W3 recomputed", "W3 recomputed costs"}  # on lavapipe; seconds on SwiftShader
LOSSES_WITHIN = 1e-5  # relative; recorded machines differ by up to 8e-7
# A sketch may differ from the recorded one by this many times as much as the recorded machines do, and by rounding at
# least: W3's state differs by 2e-3 as Adam divides rounding errors by their own size, most results by less than 1e-6.
SPREADS, ROUNDING = 8, 2e-5
HALF_ROUNDING = 2e-4  # an element of 16 bits may be rounded to its neighbour


@cache
def golden() -> dict[str, Any]:
    return json.loads(FILE.read_text("utf-8"))


@cache
def sketches() -> dict[str, Any]:
    return json.loads(SKETCHES.read_text("utf-8"))


@cache
def recorded(device: str) -> dict[str, Any] | None:
    """Return the device's entries; None where golden.json does not know the machine."""
    name, known = fingerprint(device), golden()
    if name in known:
        return known[name]
    before = [other for other in known if other.startswith(f"{machine_of(device)};")]
    if before:
        pytest.fail(f"{before[0]!r} is now {name!r}: matmul, exp, softmax or sum gives other bits on the same device")
    return None


def assert_near(name: str, device: str, got: Found) -> None:
    """Compare an entry with the nearest machines that golden.json knows, as far as these agree."""
    mine = kind(machine_of(device))
    known = {other: entries[name] for other, entries in golden().items() if name in entries}
    alike = [found for other, found in known.items() if kind(other) == mine]
    if name.endswith("costs"):
        if not alike:
            pytest.skip("no device of this kind is recorded, so what its programs cost is unknown")
        assert got == alike[0]
        return
    everywhere = [*known.values()]
    if all(found == everywhere[0] for found in everywhere):
        assert got == everywhere[0]
        return
    assert got.keys() == everywhere[0].keys()
    for key, value in got.items():
        if key == "losses":
            for loss, near in zip(value, (alike or everywhere)[0][key], strict=True):
                want, have = float.fromhex(near), float.fromhex(loss)
                assert math.isclose(have, want, rel_tol=LOSSES_WITHIN) or (math.isnan(want) and math.isnan(have)), key
        else:
            spread, *want = sketches()[name][key]
            differs = max(abs(a - b) for a, b in zip(value.sketch, want, strict=True))
            rounding = HALF_ROUNDING if "f16" in key else ROUNDING
            assert differs <= max(rounding, SPREADS * spread), f"{key}: {value.sketch} instead of {want}"


def marked(name: str) -> Any:
    """The quick leg leaves out what takes seconds; on drivers W2 to W4, most replicas, and twins of captured ones."""
    if name in HEAVY:
        return pytest.param(name, marks=[pytest.mark.slow, pytest.mark.not_on("swiftshader")])
    if name in ("W3 costs", "W4 costs"):
        return pytest.param(name, marks=[pytest.mark.slow_on("lavapipe"), pytest.mark.not_on("swiftshader")])
    slow = name.startswith(("W2", "W3", "W4", "dp_train 1", "dp_train 4")) or name.endswith(" on 1")
    if slow or f"{name.removesuffix(' eager')} captured" in ENTRIES:
        return pytest.param(name, marks=pytest.mark.slow_on("lavapipe", "swiftshader"))
    return pytest.param(name, marks=() if name.endswith("captured") else pytest.mark.slow_on("swiftshader"))


@pytest.mark.parametrize("name", list(map(marked, ENTRIES)))
def test_bits_are_the_same(device: str, name: str) -> None:
    entries, got = recorded(device), measured(name, device)
    if entries is None or name not in entries:  # entries whose results were mended since are not there
        assert_near(name, device, got)
        return
    want = entries[name]
    if os.environ.get("AG_BARRIER_ALL") == "1":
        want, got = ({k: v for k, v in found.items() if k != "barriers"} for found in (want, got))
    assert got == want


def levels() -> list[str]:
    """List the other values of `AG_CPU` that this processor and the build allow."""
    kernels = library()
    if kernels is None:
        return []  # numpy, which this process computes with
    best = list(LEVELS.values()).index(kernels.level)
    return ["numpy", *list(LEVELS)[:best]]


@pytest.mark.slow
@pytest.mark.parametrize("level", levels())
def test_another_level(level: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cpu", __file__],
                          env={**os.environ, "AG_CPU": level}, capture_output=True, text=True, check=False,
                          cwd=Path(__file__).parents[2])
    summary = done.stdout.splitlines()[-1]
    assert done.returncode == 0 and "skipped" not in summary, done.stdout[-4000:]


@pytest.mark.parametrize("name", ["ag_matmul", "sgd momentum eager"])
def test_a_wrong_result_is_not_near(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got = measured(name, "cpu")
    assert_near(name, "cpu", got)
    for key, value in got.items():
        wrong = [float.fromhex(value[0]) * (1 + 1e-4), *map(float.fromhex, value[1:])] if key == "losses" else value
        if key == "losses":
            changed: Any = [loss.hex() for loss in wrong]
        else:
            changed = type(value)(value)
            changed.sketch = [x + 1e-3 for x in value.sketch]
        with pytest.raises(AssertionError):
            assert_near(name, "cpu", {**got, key: changed})


def test_no_entry_is_left_over() -> None:
    for name, entries in golden().items():
        assert entries.keys() <= ENTRIES.keys(), name
    assert sketches().keys() == {name for name in ENTRIES if not name.endswith("costs")} - {"saved files"}
