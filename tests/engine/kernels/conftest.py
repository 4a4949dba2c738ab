"""One `driver` per driver named in AG_TEST_ICDS (ICD files; by default lavapipe's), in the Vulkan loader's order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from helpers.harness import Driver

LAVAPIPE = os.pathsep.join(str(path) for path in Path("/usr/share/vulkan/icd.d").glob("lvp*.json"))
ICDS = os.environ.get("AG_TEST_ICDS") or LAVAPIPE
os.environ.setdefault("VK_ICD_FILENAMES", ICDS)  # no other device than those under test


@pytest.fixture(scope="session", params=range(len(ICDS.split(os.pathsep))) if ICDS else [], ids="vulkan:{}".format)
def driver(request: pytest.FixtureRequest) -> Driver:
    from helpers.harness import Driver

    return Driver(request.param)
