"""The layer of third_party/kp/fault, which makes a healthy device slow, get lost, or take no time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

FAULT = Path(__file__).parents[3] / "third_party" / "kp" / "fault"


@pytest.fixture
def layer(tmp_path: Path, lavapipe: str) -> dict[str, str]:
    """Environment that loads the layer, built here."""
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libkpfault.so", FAULT / "fault.c"], check=True)
    (tmp_path / "VkLayer_kpfault.json").write_text((FAULT / "VkLayer_kpfault.json").read_text())
    return {"VK_LAYER_PATH": str(tmp_path), "VK_INSTANCE_LAYERS": "VK_LAYER_KP_fault"}
