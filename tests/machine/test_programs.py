"""Random programs: eager, captured and recomputed to the bit on every device, and alike on different devices.

``python tests/machine/test_programs.py --programs 1000 --device vulkan:0`` compares as many as one likes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]

import numpy as np
import pytest
from machine.programs import Program, run

WAYS = ("captured", "recomputed")


def differences(program: Program, device: str) -> list[str]:
    """The ways whose results are not those of the eager program, to the bit."""
    eager = run(program, device, "eager")
    wrong = []
    for way in WAYS:
        other = run(program, device, way)
        if [x.tobytes() for x in eager] != [x.tobytes() for x in other]:
            k = next((k for k, (a, b) in enumerate(zip(eager, other, strict=False)) if a.tobytes() != b.tobytes()), -1)
            wrong.append(f"{way}: result {k} is {other[k].ravel()[:4]} instead of {eager[k].ravel()[:4]}")
    return wrong


def strays(program: Program, device: str) -> list[str]:
    """How one step on a device differs from the CPU's."""
    near, far = (run(program, d, "eager", steps=1) for d in ("cpu", device))
    return [
        f"result {k}: {b.ravel()[:4]} instead of {a.ravel()[:4]}"
        for k, (a, b) in enumerate(zip(near, far, strict=True))
        if a.shape != b.shape or not np.allclose(a, b, rtol=1e-3, atol=1e-4)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_captured_programs(device: str, seed: int) -> None:
    program = Program.drawn(seed)
    assert not differences(program, device), program


@pytest.mark.parametrize("seed", range(100, 104))
def test_devices_agree(vulkan: str, seed: int) -> None:
    program = Program.drawn(seed, random=False)
    assert not strays(program, vulkan), program


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_many_captured_programs(device: str, seed: int) -> None:
    program = Program.drawn(seed)
    assert not differences(program, device), program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    wrong = 0
    for seed in range(given.seed, given.seed + given.programs):
        try:
            found = differences(Program.drawn(seed), given.device)
            if given.device != "cpu":
                found += strays(Program.drawn(seed, random=False), given.device)
        except Exception as error:  # noqa: BLE001  (any error of a program is a finding)
            found = [f"{type(error).__name__}: {error}"]
        wrong += bool(found)
        for what in found:
            print(f"{given.device} program {seed}: {what}", flush=True)
    print(f"{given.device}: {given.programs} programs, {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
