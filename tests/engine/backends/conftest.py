"""The layer of third_party/kp/fault, which makes a healthy device slow, get lost, or take no time."""

from __future__ import annotations

import pytest
from helpers.devices import built_layers


@pytest.fixture(scope="session")
def layer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return built_layers(tmp_path_factory.mktemp("fault"), "VK_LAYER_KP_fault")
