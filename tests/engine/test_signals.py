"""Ctrl-C in the middle of a training: the devices work afterwards, and tensors can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "signals.py"


def send(count: int, device: str, mode: str) -> str:
    done = subprocess.run([sys.executable, str(SCRIPT), str(count), device, mode], capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Exception ignored" not in done.stderr and "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "captured", "dp_train"])
def test_many_interrupts(device: str, mode: str) -> None:
    assert send(100, device, mode) == "100 interrupts, and every device works\n"
