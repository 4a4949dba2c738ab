"""Default devices: cards, each once, the best first; and names and versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest
from helpers.devices import expect_reported
from helpers.errors import expect_error
from limits.conftest import Limited

import ag
from ag.engine.backend import DeviceInfo
from ag.engine.backends.vulkan.devices import Listed, driver_version, find, preferred
from ag.engine.backends.vulkan.kp import Properties
from ag.errors import switched_on

KINDS = {"integrated": 1, "discrete": 2, "virtual": 3, "cpu": 4}
CHOSEN = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from ag.engine.device import cards, default_devices
drivers = {info.name: "lavapipe" if "llvmpipe" in info.description else "swiftshader"
           for info in ag.ag_vulkan_devices()}
called = lambda names: [drivers.get(name, name) for name in names]  # by driver, as the loader orders devices by kind
said["cards"], said["all"] = called(cards()), list(drivers.values())
ag.ag_device("auto")
(said["auto"],), said["gpu"] = called([ag.ag_default_device()]), error_of(lambda: ag.ag_device("gpu"))
said["default"], said["three"] = called(default_devices()), called(default_devices(3))
world = ag.DistributedWorld.init()
said["used"] = [list(world.devices), list(ag.DataParallel(ag.ag_linear(1, 1)).device_ids),
                list(ag.ModelParallel([ag.ag_linear(1, 1)]).devices)]
data = [np.ones((1, 1), np.float32)] * 4
said["used"] += [ag.dp_train(lambda: ag.ag_linear(1, 1), data, ag.ag_mse_loss, n_iter=1, verbose=False).devices,
                 ag.start(ag.ag_mse_loss, [(x, x) for x in data], lambda: ag.ag_linear(1, 1), cycles=1).devices]
said["used"] = [called(used) for used in said["used"]]
ag.ag_device("vulkan:llvmpipe")
(said["named"],) = called([ag.ag_default_device()])
"""


def test_software_is_used_by_name_only(limited: Limited, swiftshader: str) -> None:
    said = limited(CHOSEN)
    assert said["cards"] == [] and sorted(said["all"]) == ["lavapipe", "swiftshader"]
    assert said["auto"] == "cpu" and said["default"] == ["cpu"] and said["three"] == ["cpu", "cpu:1", "cpu:2"]
    assert all(set(used) == {"cpu"} for used in said["used"]) and len(said["used"]) == 5
    expect_reported("ag_device('gpu') without a card", said["gpu"], ag.DeviceError, "'gpu'", "no Vulkan device",
                    "a card")
    assert said["named"] == "lavapipe"
    (line,) = [line for line in said["out"].splitlines() if line.startswith("dp_train")][:1]
    assert "no Vulkan device was found but software (" in line and "run on the CPU" in line


@pytest.mark.parametrize("kind", ["discrete", "integrated", "virtual"])
def test_a_card_comes_before_software(limited: Limited, swiftshader: str, kind: str) -> None:
    for only, card in (("llvmpipe", "lavapipe"), ("SwiftShader", "swiftshader"))[: 2 if kind == "discrete" else 1]:
        said = limited(CHOSEN, ONLY=only, TYPE=KINDS[kind])
        assert said["cards"] == said["default"] == [card] and said["auto"] == card and said["gpu"] is None
        assert said["three"] == [card] * 3
        assert all(set(used) == {card} for used in said["used"]) and said["named"] == "lavapipe"


def test_listing_opens_no_device(limited: Limited, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    limited("ag.ag_vulkan_devices()\nag.ag_device('auto')", DEVICES=opened)
    assert not opened.exists()
    limited("ag.ag_device('auto')\nassert ag.ag_default_device() != 'cpu'", ONLY="llvmpipe", TYPE=2, DEVICES=opened)
    assert opened.stat().st_size == 1


QUEUE = """
x = ag.ag_tensor([1.0, 2.0], DEVICE)
said["right"] = (x + x).numpy().tolist()
backend = ag.engine.device.backend_of(DEVICE)
(said["queue"],) = [found.found for found in backend.examine() if found.subject == "queue"]
said["bits"], said["timed"] = backend._manager.get_device_properties()["timestamp_valid_bits"], backend.timestamps
"""


@pytest.mark.vulkan
@pytest.mark.parametrize(("families", "used"), [
    ([(7, 64)], "0, which draws, too"),
    ([(7, 64), (6, 64)], "1, which only computes"),  # as AMD's are
    ([(7, 64), (4, 64), (6, 32)], "2, which only computes; uploads in family 1"),  # as NVIDIA's
    ([(4, 64), (7, 64), (1, 64)], "1, which draws, too; uploads in family 0"),
    ([(7, 64), (12, 0), (36, 0)], "0, which draws, too; uploads in family 1"),  # not in what makes films, too
    ([(6, 64), (7, 64), (6, 64)], "0, which only computes"),
    ([(7, 64), (6, 0)], "0, which draws, too"),  # or no time could be told
    ([(7, 0), (6, 0)], "1, which only computes"),
])
def test_a_queue_that_does_not_draw(limited: Limited, tmp_path: Path, families: list[tuple[int, int]],
                                    used: str) -> None:
    text = ",".join(f"{flags}:{bits}" for flags, bits in families)
    said = limited(QUEUE, QUEUES=text, FAMILIES=tmp_path / "families")
    assert said["right"] == [[2.0], [4.0]] and said["queue"] == f"family {used}"
    bits = families[int(used[0])][1]
    assert said["bits"] == bits and said["timed"] == (bits > 0)
    assert {*(tmp_path / "families").read_text()} == {used[0], used[-1] if "uploads" in used else used[0]}


def test_no_queue_that_computes(limited: Limited) -> None:
    said = limited("said['error'] = error_of(lambda: ag.ag_tensor([1.0], DEVICE))", QUEUES="1:64,4:64")
    expect_reported("a device that cannot compute", said["error"], ag.DeviceError, "Compute queue is not supported")


def card(number: int, description: str, kind: str, uuid: str = "", driver_id: int = 0) -> Listed:
    return Listed(number, DeviceInfo(f"vulkan:{number}", description, "", "", kind, 0, (), uuid), driver_id)


NVK, NVIDIA, DOZEN, LAVAPIPE = 24, 4, 23, 13
MACHINE = [card(0, "llvmpipe (LLVM 15)", "cpu", "ab" * 16, LAVAPIPE),
           card(1, "Microsoft Direct3D12 (NVIDIA GeForce RTX 4090)", "discrete", "4090" * 8, DOZEN),
           card(2, "Intel Arc A770", "discrete", "a770" * 8, 6), card(3, "AMD Radeon 780M", "integrated", "", 3),
           card(4, "NVIDIA GeForce RTX 4090 (NVK)", "discrete", "4090" * 8, NVK),
           card(5, "NVIDIA GeForce RTX 4090", "discrete", "4090" * 8, NVIDIA),
           card(6, "NVIDIA GeForce RTX 3060", "discrete", "3060" * 8, NVIDIA)]


def names(found: list[DeviceInfo]) -> list[str]:
    return [info.name for info in found]


def test_the_order_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AG_SOFTWARE", raising=False)
    monkeypatch.delenv("AG_VULKAN_DEVICES", raising=False)
    assert names(preferred(MACHINE)) == ["vulkan:2", "vulkan:5", "vulkan:6", "vulkan:3"]
    assert names(preferred(MACHINE[:5])) == ["vulkan:2", "vulkan:4", "vulkan:3"]  # NVK before Dozen
    monkeypatch.setenv("AG_SOFTWARE", "1")
    assert names(preferred(MACHINE)) == ["vulkan:2", "vulkan:5", "vulkan:6", "vulkan:3", "vulkan:0"]
    monkeypatch.setenv("AG_VULKAN_DEVICES", "vulkan:6, llvm,RTX 4090,6")
    assert names(preferred(MACHINE)) == ["vulkan:6", "vulkan:0", "vulkan:5"]


def test_a_switch_of_the_environment_is_1_or_0(monkeypatch: pytest.MonkeyPatch) -> None:
    documented = (Path(__file__).parents[2] / "docs" / "internals.md").read_text("utf-8")
    switches = {variable: usual == "0" for variable, usual in re.findall(r"`(AG_\w+)=([01])`", documented)}
    assert len(switches) == 6
    for variable, default in switches.items():
        for text, on in (("", default), ("1", True), ("0", False)):
            monkeypatch.setenv(variable, text)
            assert switched_on(variable, default) is on
        monkeypatch.setenv(variable, "true")
        with expect_error("a switch that is neither", ag.DeviceError, f"{variable} is 'true'", "1 or 0"):
            switched_on(variable, default)
    early = Path(ag.native.__file__)  # read at import, where nothing is refused; opening a device does
    files = (path for path in Path(ag.__file__).parent.rglob("*.py") if path != early)
    read = "".join(path.read_text("utf-8") for path in files)
    assert not re.findall(r'environ(?:\.get\(|\[)"(?:' + "|".join(switches) + ")", read)  # beside `switched_on`
    monkeypatch.delenv("AG_VULKAN_DEVICES", raising=False)
    with pytest.raises(ag.DeviceError, match="AG_SOFTWARE is 'true'"):
        preferred(MACHINE)


def test_the_environment_names_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AG_VULKAN_DEVICES", "0,7")
    with expect_error("AG_VULKAN_DEVICES names what is not there", ag.DeviceError, "AG_VULKAN_DEVICES", "vulkan:7",
                      "no device is called so", "llvmpipe"):
        preferred(MACHINE)


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("4", 4), ("arc", 2), ("A770a770", 2), ("RTX 4090", 5),
                                              ("nvk", 4), ("3060-3060", 6), ("llvmpipe", 0), ("Microsoft", 1)])
def test_a_device_by_name_or_uuid(text: str, number: int) -> None:
    assert find(text, MACHINE) == number


@pytest.mark.parametrize(("text", "message"), [
    ("NVIDIA", "several devices are called so: vulkan:5 (NVIDIA GeForce RTX 4090), vulkan:6"),
    ("9", "no device is called so"), ("Voodoo", "no device is called so: vulkan:0"), ("30", "no device is called so"),
])
def test_a_name_that_is_not_clear(text: str, message: str) -> None:
    with expect_error("a device by an unclear name", ag.DeviceError, f"vulkan:{text}: ", message):
        find(text, MACHINE)


@pytest.mark.vulkan
def test_names_of_devices(lavapipe: str, swiftshader: str) -> None:
    with ag.ag_device("vulkan:llvmpipe"):
        assert ag.ag_default_device() == lavapipe
        assert ag.ag_tensor([1.0], device="vulkan:SwiftShader").device == swiftshader
    with expect_error("a product that is not there", ag.DeviceError, "vulkan:Voodoo", "llvmpipe"):
        ag.ag_device("vulkan:Voodoo")
    with expect_error("a CPU by name", ag.DeviceError, "unknown device 'cpu:Intel'"):
        ag.ag_device("cpu:Intel")


NVIDIA, INTEL, AMD, OTHER = 0x10DE, 0x8086, 0x1002, 0x13B5


def packed(*parts: tuple[int, int]) -> int:
    """Numbers with so many bits each, the first on top."""
    word = 0
    for number, bits in parts:
        word = word << bits | number
    return word


OWN = packed((550, 10), (54, 8), (14, 8), (1, 6))  # as NVIDIA packs it
USUAL = packed((24, 10), (0, 10), (2, 12))  # as Vulkan does
WINDOWS = packed((101, 18), (5186, 14))  # as Intel does on Windows
EITHER, ELSEWHERE, ON_WINDOWS = (False, True), (False,), (True,)


@pytest.mark.parametrize(("driver", "vendor", "told", "word", "systems", "version"), [
    (4, NVIDIA, "550.54.14", OWN, EITHER, "550.54.14"),
    (4, NVIDIA, "", OWN, EITHER, "550.54.14"),
    (23, NVIDIA, "Mesa 24.0.2-devel (git-1f5e02a)", USUAL, EITHER, "24.0.2-devel"),
    (23, NVIDIA, "", USUAL, EITHER, "24.0.2"),  # of Mesa, which packs as Vulkan does
    (3, AMD, "Mesa 22.3.6 (LLVM 15.0.6)", USUAL, EITHER, "22.3.6"),
    (1, AMD, "23.11.1 (AMD proprietary shader compiler)", USUAL, EITHER, "23.11.1"),
    (2, AMD, "2023.Q3.3 (LLPC)", USUAL, EITHER, "2023.Q3.3"),
    (5, INTEL, "Intel driver", WINDOWS, EITHER, "101.5186"),
    (5, INTEL, "101.5186", WINDOWS, EITHER, "101.5186"),
    (6, INTEL, "Mesa 23.0.4-0ubuntu1~22.04.1", USUAL, EITHER, "23.0.4-0ubuntu1"),
    (14, 0x106B, "", 10205, EITHER, "1.2.5"),
    (9, OTHER, "v1.r32p1-01eac0.ee87", USUAL, EITHER, "24.0.2"),
    (8, 0x5143, "Compiler Version: EV031.36.08.16", USUAL, EITHER, "24.0.2"),
    (0, NVIDIA, "", OWN, EITHER, "550.54.14"),  # one before Vulkan 1.2 tells nothing
    (0, INTEL, "", WINDOWS, ON_WINDOWS, "101.5186"),
    (0, INTEL, "", USUAL, ELSEWHERE, "24.0.2"),
    (0, AMD, "", USUAL, ON_WINDOWS, "24.0.2"),
])
def test_the_version_of_a_driver(driver: int, vendor: int, told: str, word: int, systems: tuple[bool, ...],
                                 version: str) -> None:
    properties = cast(Properties, {"driver_id": driver, "vendor_id": vendor, "driver_info": told,
                                   "driver_version": word})
    assert [driver_version(properties, windows) for windows in systems] == [version] * len(systems)
