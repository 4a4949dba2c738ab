"""What the operating system knows of a card and its driver does not tell: its watchdog, and its lanes of the bus.

Linux has both in files of /sys, Windows the watchdog in its registry.  For example::

    watchdog   amdgpu.lockup_timeout is 2000 ms; submissions are kept below 200 ms
    bus        up 2.9 GB/s, down 2.8 GB/s, 4 of 16 lanes

Knows vendors by name, no device and no buffer.  `examination` asks.
"""

from __future__ import annotations

import importlib
import sys
from math import inf
from pathlib import Path

from ag.engine.backend import Finding

__all__ = ["lanes", "watchdog"]

_PLATFORM = sys.platform
_SYS = Path("/sys")
_TIMERS = {  # vendor: what a timer is called, and its file of milliseconds
    "AMD": {"amdgpu.lockup_timeout": "module/amdgpu/parameters/lockup_timeout"},
    "Intel": {"i915's heartbeat_interval_ms": "class/drm/card*/engine/[rc]cs0/heartbeat_interval_ms",
              "i915.request_timeout_ms": "module/i915/parameters/request_timeout_ms",
              "xe's job_timeout_ms": "class/drm/card*/device/tile*/gt*/engines/[rc]cs/job_timeout_ms"},
}
_AMD = "amdgpu.lockup_timeout"
_REGISTRY, _TDR_DELAY = r"SYSTEM\CurrentControlSet\Control\GraphicsDrivers", 2  # of Windows, in seconds
_MARGIN = 5  # submissions that should fit: one may take longer than was thought
_SAFE_MS = 10_000
_MOST_LANES = 32


def watchdog(vendor: str, draws: bool, longest: float) -> Finding:
    """When the operating system takes a device for hung, and whether that is late enough.

    Parameters
    ----------
    vendor : str
    draws : bool
        Whether the queue of launches is one that draws, too, which may have another limit.
    longest : float
        Seconds that a submission should take at most.
    """
    kept = f"submissions are kept below {1e3 * longest:.0f} ms"
    if _PLATFORM == "win32":
        return _of_windows(kept, longest)
    timers = _of_linux(vendor, draws) if _PLATFORM == "linux" else {}
    if not timers:
        return Finding("watchdog", f"none that can be read; {kept}")
    said = {name: "without a limit" if ms == inf else f"{ms:.0f} ms" if ms else "the driver's default"
            for name, ms in timers.items()}
    short = [name for name, ms in timers.items() if 0 < ms < 1e3 * _MARGIN * longest]
    return Finding("watchdog", f"{', '.join(f'{name} is {text}' for name, text in said.items())}; {kept}",
                   f"set {' and '.join(short)} to {_SAFE_MS}, or a long launch may lose the device" if short else "",
                   "problem")


def _of_linux(vendor: str, draws: bool) -> dict[str, float]:
    """Milliseconds by the timer's name, the least if there are several; 0: the driver's default."""
    found: dict[str, float] = {}
    for name, pattern in _TIMERS.get(vendor, {}).items():
        for path in sorted(_SYS.glob(pattern)):
            try:
                text = path.read_text("utf-8").strip()
                ms = _of_amd(text, draws) if name == _AMD else float(text) or inf  # of Intel's, 0 switches them off
            except (OSError, ValueError):
                continue
            found[name] = min(ms, found.get(name, inf))
    return found


def _of_amd(text: str, draws: bool) -> float:
    """One number is that of queues that draw, several are those that draw, compute, copy and play films."""
    numbers = [float(part) for part in text.split(",") if part.strip()]
    ms = numbers[0] if draws and numbers else numbers[1] if len(numbers) > 1 else 0
    return inf if ms < 0 else ms


def _of_windows(kept: str, longest: float) -> Finding:
    if _registered("TdrLevel") == 0:
        return Finding("watchdog", f"switched off (TdrLevel is 0); {kept}")
    delay = _registered("TdrDelay")
    told = f"{delay} s" if delay is not None else f"not set, hence {_TDR_DELAY} s"
    short = delay is not None and delay < _MARGIN * longest
    return Finding("watchdog", f"TdrDelay is {told}; {kept}",
                   rf"set HKEY_LOCAL_MACHINE\{_REGISTRY}\TdrDelay to {_SAFE_MS // 1000} and restart Windows, or a "
                   f"long launch may lose the device" if short else "", "problem")


def _registered(name: str) -> int | None:
    """A number of the registry; None if it is not there."""
    winreg = importlib.import_module("winreg")  # of Windows
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _REGISTRY) as key:
            return int(winreg.QueryValueEx(key, name)[0])
    except (OSError, ValueError):
        return None


def lanes(vendor_id: int, device_id: int) -> tuple[int, int] | None:
    """The lanes of the bus that a card has and could have, those of its narrowest way to the processor; None: unknown.

    Of several cards of one kind, those of the worst.
    """
    if _PLATFORM != "linux":
        return None
    found = []
    for path in sorted((_SYS / "bus/pci/devices").glob("*")):
        if (_number(path / "vendor"), _number(path / "device")) == (vendor_id, device_id):
            place = path.resolve()
            most = _number(place / "max_link_width")
            way = [_number(bridge / "current_link_width") for bridge in (place, *place.parents)]
            if used := [n for n in way if 0 < n <= _MOST_LANES]:
                found.append((min(used), most))
    return min(found, default=None)


def _number(path: Path) -> int:
    """What a file of /sys has, in either notation; 0 if it has no number."""
    try:
        return int(path.read_text("utf-8"), 0)
    except (OSError, ValueError):
        return 0
