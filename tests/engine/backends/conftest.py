"""The layer of third_party/kp/fault, which makes a healthy device slow, get lost, or take no time."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.devices import built_layers


@pytest.fixture
def layer(tmp_path: Path, lavapipe: str) -> dict[str, str]:
    return built_layers(tmp_path, "VK_LAYER_KP_fault")
