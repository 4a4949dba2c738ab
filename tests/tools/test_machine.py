"""Read what the operating system tells of a card, from faked files of Linux and a faked registry of Windows."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import pytest

from ag.engine.backends.vulkan import examination
from ag.engine.backends.vulkan.examination import lanes, watchdog

AMD = "module/amdgpu/parameters/lockup_timeout"
HEARTBEAT = "class/drm/card{}/engine/{}/heartbeat_interval_ms"
XE = "class/drm/card0/device/tile0/gt0/engines/{}/job_timeout_ms"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Write files of /sys, by their paths and contents."""
    monkeypatch.setattr(examination, "_PLATFORM", "linux")
    monkeypatch.setattr(examination, "_SYS", tmp_path)

    def write(content: dict[str, object]) -> None:
        for name, text in content.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{text}\n")

    return write


@pytest.mark.parametrize(("vendor", "draws", "content", "verdict", "said"), [
    ("AMD", True, {AMD: "2000"}, "ok", "amdgpu.lockup_timeout is 2000 ms"),
    ("AMD", True, {AMD: "500"}, "problem", "amdgpu.lockup_timeout is 500 ms"),
    ("AMD", False, {AMD: "500"}, "ok", "amdgpu.lockup_timeout is the driver's default"),  # it is of drawing only
    ("AMD", False, {AMD: "500,60000,500,500"}, "ok", "amdgpu.lockup_timeout is 60000 ms"),
    ("AMD", False, {AMD: "5000,-1"}, "ok", "amdgpu.lockup_timeout is without a limit"),
    ("AMD", True, {AMD: ""}, "ok", "amdgpu.lockup_timeout is the driver's default"),
    ("AMD", True, {AMD: "soon"}, "ok", "none that can be read"),
    ("Intel", True, {AMD: "500"}, "ok", "none that can be read"),
    ("Intel", True, {HEARTBEAT.format(0, "rcs0"): 2500, HEARTBEAT.format(1, "ccs0"): 100}, "problem",
     "i915's heartbeat_interval_ms is 100 ms"),
    ("Intel", True, {HEARTBEAT.format(0, "rcs0"): 0, HEARTBEAT.format(0, "vcs0"): 1}, "ok",
     "i915's heartbeat_interval_ms is without a limit"),
    ("Intel", True, {XE.format("ccs"): 5000, XE.format("rcs"): 6000, XE.format("bcs"): 1}, "ok",
     "xe's job_timeout_ms is 5000 ms"),
    ("NVIDIA", True, {AMD: "500"}, "ok", "none that can be read"),
])
def test_the_watchdog_of_linux(files: Any, vendor: str, draws: bool, content: dict[str, object], verdict: str,
                               said: str) -> None:
    files(content)
    found = watchdog(vendor, draws, 0.2)
    assert (found.verdict, found.found) == (verdict, f"{said}; submissions are kept below 200 ms")
    if verdict == "problem":
        assert found.remedy.startswith(f"set {said.partition(' is ')[0]} to 10000, or ")


class FakeRegistry(SimpleNamespace):
    """As `winreg`, with the numbers of one key."""

    HKEY_LOCAL_MACHINE = object()

    def __init__(self, numbers: dict[str, int]) -> None:
        super().__init__()
        self.numbers = numbers

    def __enter__(self) -> FakeRegistry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        pass

    def OpenKey(  # noqa: N802
            self, root: object, path: str) -> FakeRegistry:
        assert root is self.HKEY_LOCAL_MACHINE
        if path != r"SYSTEM\CurrentControlSet\Control\GraphicsDrivers":
            raise FileNotFoundError(path)
        return self

    def QueryValueEx(  # noqa: N802
            self, key: FakeRegistry, name: str) -> tuple[int, int]:
        if name not in key.numbers:
            raise FileNotFoundError(name)
        return key.numbers[name], 4


@pytest.mark.parametrize(("numbers", "verdict", "said"), [
    ({}, "ok", "TdrDelay is not set, hence 2 s"),
    ({"TdrDelay": 10, "TdrLevel": 3}, "ok", "TdrDelay is 10 s"),
    ({"TdrDelay": 0}, "problem", "TdrDelay is 0 s"),
    ({"TdrDelay": 0, "TdrLevel": 0}, "ok", "switched off (TdrLevel is 0)"),
])
def test_the_watchdog_of_windows(monkeypatch: pytest.MonkeyPatch, numbers: dict[str, int], verdict: str,
                                 said: str) -> None:
    monkeypatch.setattr(examination, "_PLATFORM", "win32")
    monkeypatch.setitem(sys.modules, "winreg", FakeRegistry(numbers))  # type: ignore[arg-type]
    found = watchdog("NVIDIA", True, 0.2)
    assert (found.verdict, found.found) == (verdict, f"{said}; submissions are kept below 200 ms")
    assert ("GraphicsDrivers\\TdrDelay to 10 and restart Windows" in found.remedy) == (verdict == "problem")
    assert watchdog("NVIDIA", True, 0.5).verdict == "ok" if numbers.get("TdrDelay") else True


def test_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_PLATFORM", "darwin")
    assert watchdog("Apple", True, 0.2).found == "none that can be read; submissions are kept below 200 ms"
    assert lanes(0x10DE, 0x2684) is None


def a_card(place: str, vendor: str, device: str, now: object, most: object) -> dict[str, object]:
    path = f"devices/pci0000:00/{place}"
    return {f"{path}/vendor": vendor, f"{path}/device": device, f"{path}/current_link_width": now,
            f"{path}/max_link_width": most}


def test_the_lanes_of_a_card(files: Any, tmp_path: Path) -> None:
    files({**a_card("0000:00:01.0", "0x8086", "0x1901", 8, 16),  # a bridge, by which a card is reached
           **a_card("0000:00:01.0/0000:01:00.0", "0x10de", "0x2684", 16, 16),
           **a_card("0000:00:02.0", "0x8086", "0x1901", 16, 16),
           **a_card("0000:00:02.0/0000:02:00.0", "0x10de", "0x2684", 4, 16),
           **a_card("0000:00:03.0", "0x10de", "0x1111", "Unknown", 16),
           **a_card("0000:00:04.0", "0x10de", "0x2222", 255, 16),
           **a_card("0000:00:05.0", "0x10de", "0x3333", 16, 16)})
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    for place in sorted((tmp_path / "devices").rglob("0000:*")):
        (links / place.name).symlink_to(place)
    assert lanes(0x10DE, 0x2684) == (4, 16)  # the worst of two
    (links / "0000:02:00.0").unlink()
    assert lanes(0x10DE, 0x2684) == (8, 16)  # the bridge's
    assert lanes(0x10DE, 0x3333) == (16, 16)
    assert lanes(0x10DE, 0x1111) is lanes(0x10DE, 0x2222) is lanes(0x1002, 0x2684) is None
