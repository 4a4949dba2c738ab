"""Random programs: eager, captured and recomputed to the bit on every device, alike on all devices and in PyTorch.

``python tests/machine/test_programs.py --programs 1000 --device vulkan:0`` compares as many as one likes, with PyTorch
where it is installed (the head of pytorch/test_op_db.py says how).
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]

import numpy as np
import pytest
from machine.programs import Array, Program, run

WAYS = ("captured", "recomputed")
NOISE = 1e-3  # smaller gradients are what rounding left
TORCH = importlib.util.find_spec("torch") is not None


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
    """List how one step on a device differs from the CPU's."""
    near, far = (run(program, d, "eager", steps=1) for d in ("cpu", device))
    return far_apart(near, far)


def foreign(program: Program) -> list[str]:
    """List how one step differs from PyTorch's: loss, gradients, and parameters whose gradient is no noise."""
    from machine.pytorch.programs import train_once

    ours, theirs = ([x for x in found if x.size] for found in (run(program, "cpu", "eager", steps=1),
                                                               train_once(program)))
    grads = ours[1 : 1 + len(ours) // 2]
    for found in (ours, theirs):  # optimizers that look at a gradient's sign make a step of noise
        for grad, param in zip(grads, found[1 + len(grads) :], strict=True):
            param[abs(grad) < NOISE] = 0
    return far_apart(theirs, ours)


def far_apart(expected: list[Array], found: list[Array]) -> list[str]:
    return [
        f"result {k}: {b.ravel()[:4]} instead of {a.ravel()[:4]}"
        for k, (a, b) in enumerate(zip(expected, found, strict=True))
        if a.shape != b.shape or not np.allclose(a, b, rtol=1e-3, atol=1e-4)
    ]


@pytest.mark.parametrize("seed", [
    pytest.param(seed, marks=pytest.mark.slow_on("lavapipe") if seed > 1 else ()) for seed in range(8)])
def test_captured_programs(device: str, seed: int) -> None:
    program = Program.drawn(seed)
    assert not differences(program, device), program


@pytest.mark.parametrize("seed", range(100, 104))
def test_devices_agree(vulkan: str, seed: int) -> None:
    program = Program.drawn(seed, random=False)
    assert not strays(program, vulkan), program


@pytest.mark.skipif(not TORCH, reason="PyTorch is not installed; the head of pytorch/test_op_db.py has the command")
@pytest.mark.parametrize("seed", range(200, 260))
def test_pytorch_agrees(seed: int) -> None:
    program = Program.drawn(seed, random=False)
    assert not foreign(program), program


@pytest.mark.slow
@pytest.mark.not_on("swiftshader")
@pytest.mark.parametrize("seed", range(1000, 1004))
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
            elif TORCH:
                found += foreign(Program.drawn(seed, random=False))
        except Exception as error:  # noqa: BLE001  (any error of a program is a finding)
            found = [f"{type(error).__name__}: {error}"]
        wrong += bool(found)
        for what in found:
            print(f"{given.device} program {seed}: {what}", flush=True)
    print(f"{given.device}: {given.programs} programs, {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
