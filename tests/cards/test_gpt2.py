"""A step of GPT-2, of whose blocks one must do here: `gpt2.py` says how to make the whole one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.vulkan
def test_a_step_with_the_vocabulary_of_gpt2_survives_a_watchdog(lavapipe: str) -> None:
    done = subprocess.run([sys.executable, Path(__file__).with_name("gpt2.py"), "--device", lavapipe, "--blocks", "1",
                           "--tokens", "96"], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["parameters"] == 45_758_208 and abs(said["loss"] - said["loss of a guess"]) < 1
    assert said["largest segment"] > 128 << 20 and said["by address"] > 10
    assert said["submissions"] >= 16
