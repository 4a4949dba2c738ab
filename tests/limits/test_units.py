"""Count the units of a device by its driver, through the extension of its vendor, or by an estimate."""

from __future__ import annotations

import pytest
from cards.radv import installed
from helpers.devices import run_code
from limits.conftest import Limited

pytestmark = pytest.mark.slow

GIB = 1 << 30
INTEGRATED, DISCRETE, CPU = 1, 2, 4
NVIDIA, AMD, INTEL, ARM = 0x10DE, 0x1002, 0x8086, 0x13B5
UNITS = """
from ag.engine.device import backend_of
device = backend_of(DEVICE)
said["told"] = [device.info.units, device._manager.get_device_properties()["compute_units"]]
said["used"] = [device._kernels.tiles.units, device.target.units]
said["doctor"] = [line.found for line in device.examine() if line.subject == "compute units"]
x = np.ones((64, 2048), np.float32)
said["right"] = bool(np.all(ag.ag_matmul(ag.ag_tensor(x, DEVICE), ag.ag_tensor(x.T, DEVICE)).numpy() == 2048))
"""


@pytest.mark.parametrize(("limits", "told", "units"), [
    ({"TYPE": DISCRETE, "VENDOR": NVIDIA, "NVIDIA": 132, "HEAP": 80 * GIB}, True, 132),
    ({"TYPE": DISCRETE, "VENDOR": AMD, "AMD": "4:2:8", "AMD_ACTIVE": 60, "HEAP": 16 * GIB}, True, 60),
    ({"TYPE": DISCRETE, "VENDOR": AMD, "AMD": "4:2:8", "HEAP": 16 * GIB}, True, 64),
    ({"TYPE": INTEGRATED, "VENDOR": ARM, "ARM": "10:3ff"}, True, 10),
    ({"TYPE": INTEGRATED, "VENDOR": ARM, "ARM": "0:700007f"}, True, 10),
    ({"TYPE": DISCRETE, "VENDOR": INTEL, "HEAP": 7 * GIB}, False, 28),
    ({"TYPE": INTEGRATED}, False, 12),
    ({"TYPE": DISCRETE, "VENDOR": NVIDIA, "NVIDIA": 132, "WITHOUT": "VK_NV_shader_sm_builtins", "HEAP": 8 * GIB},
     False, 32),
    ({"TYPE": DISCRETE, "VENDOR": AMD, "AMD_ACTIVE": 60, "WITHOUT": "VK_AMD_shader_core_properties2",
      "HEAP": 6 * GIB}, False, 24),
    ({"TYPE": INTEGRATED, "ARM": "10:3ff", "WITHOUT": "VK_ARM_shader_core_builtins"}, False, 12),
    ({"TYPE": DISCRETE, "VENDOR": AMD, "AMD": "4:0:0", "AMD_ACTIVE": 0, "HEAP": 5 * GIB}, False, 20),
], ids=["H100", "AMD", "AMD, whole", "ARM", "ARM, mask", "none", "none, integrated", "not NVIDIA's", "not AMD's",
        "not ARM's", "zero"])
def test_the_driver_says_it_or_kind_and_memory(limited: Limited, limits: dict[str, object], told: bool,
                                               units: int) -> None:
    said = limited(UNITS, **limits)
    assert said["told"] == [units * told] * 2 and said["used"] == [units] * 2 and said["right"]
    assert said["doctor"] == [f"{units}, as the driver says" if told else
                              f"about {units}, an estimate by kind and memory, as the driver does not say"]


def test_a_processor_has_one(limited: Limited) -> None:
    said = limited(UNITS, TYPE=CPU, NVIDIA=132)
    assert said["told"] == [132] * 2 and said["used"] == [1, 1] and said["doctor"] == [] and said["right"]


ASKED = """
from ag.engine.backends.vulkan.devices import DRIVERS
from ag.engine.backends.shader.tiles import units_of
(found,) = DRIVERS.listed()
said["name"], said["units"], said["used"] = found.info.description, found.info.units, units_of(found.info)
"""


def test_amds_driver_is_asked() -> None:
    """RADV without a chip has both extensions; that of Mesa 22 to 25 tells of 4 engines and no unit in them."""
    if (mesa := installed()) is None:
        pytest.skip("there is no RADV here (Debian's package mesa-vulkan-drivers)")
    said = run_code(ASKED, **mesa.environment("radeon"), RADV_FORCE_FAMILY="navi21")
    assert "NAVI21" in said["name"] and 0 <= said["units"] <= 80
    assert said["used"] == said["units"] if said["units"] else said["used"] >= 12
