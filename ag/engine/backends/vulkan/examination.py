"""Report on devices, drivers and their files: a finding per subject, with a verdict and a remedy.

The Vulkan loader does not say where a device comes from.  So separate processes ask it, as a driver may hang or crash.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import inf
from pathlib import Path
from time import monotonic, perf_counter
from typing import NamedTuple

import numpy as np

from ag.engine.backend import Finding
from ag.engine.backends.shader.autotune import TunedBackend, time_of, uploaded, wrong_now
from ag.engine.backends.shader.cache_files import CacheError, cache_folder, fault_of_folder
from ag.engine.backends.shader.manifest import lacking, manifest, unfit
from ag.engine.backends.shader.tiles import TILES, Tiles, tiles_of
from ag.engine.backends.vulkan.cooperative import sizes_of
from ag.engine.backends.vulkan.devices import DRIVERS, VULKAN_1_1, driver_version, largest_block, spare_bytes
from ag.engine.backends.vulkan.kp import Manager, Properties, kompute
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import copy
from ag.engine.kernels.matmul import matmul
from ag.engine.primitive import Params, Primitive
from ag.engine.shape import Shape
from ag.errors import AgError, ArenaError, DeviceError

_LITTLE = 1 / 8  # of the memory, which is little for what is left of it
_SMALL = 1 << 30  # bytes; models have tensors of half of it
_SIDES = (256, 1024, 4096)  # of the matrices that are multiplied to see how fast a device is: larger ones only if it is
_COPIED = (1 << 22, 1 << 24)  # elements, likewise: the first may fit into a cache
_QUICK, _QUICK_COPY = 2e-3, 5e-4  # seconds
_SENT = 1 << 23  # elements that go to the device and back
_TIMES = 3
_SLOW = 1.0  # GB/s; a card with a single lane has less
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


def examined(backend: TunedBackend, manager: Manager, tiles: Tiles, longest: float) -> list[Finding]:
    """Return the findings on a device with this rule of tiles, and seconds of the longest submission, in order."""
    limits, info = manager.get_device_properties(), backend.info
    found = [*_driver(backend, limits), *_memory(backend, manager, limits), *_kernels(manager, limits),
             _products(backend, tiles, limits), *_habits(limits, manager.transfers_apart()), _kept()]
    if info.kind != "cpu":  # a processor has none
        units = (f"{info.units}, as the driver says" if info.units else
                 f"about {tiles.units}, an estimate by kind and memory, as the driver does not say")
        found += [Finding("compute units", units), watchdog(info.vendor, limits["queue_draws"], longest)]
    return [*found, _measured("bus", lambda: _bus(backend, limits)), _measured("speed", lambda: _speed(backend))]


def _driver(backend: TunedBackend, limits: Properties) -> Iterator[Finding]:
    version, info = limits["api_version"], backend.info
    told = " ".join(filter(None, (limits["driver_name"], limits["driver_info"]))) or info.driver
    yield Finding("driver", f"{told}, Vulkan {version >> 22}.{version >> 12 & 0x3FF}.{version & 0xFFF}",
                  "" if version >= VULKAN_1_1 else "a long launch cannot be made in parts; install a newer driver",
                  "problem")
    yield file_of((info.description, limits["driver_id"], info.driver), driver_files())
    software = info.kind == "cpu"
    yield Finding("kind", "software: it computes on the processor" if software else info.kind,
                  "the device 'cpu' is faster; to use a card, install its driver" if software else "")
    same = [device.info.name for device in DRIVERS.listed()
            if info.uuid and device.info.uuid == info.uuid and device.info.name != info.name
            and device.info.kind != "cpu"]
    if same:
        yield Finding("same card", f"{', '.join(same)} is the same card under another driver",
                      "use one of them; where none is named, the better one is used")


def _memory(backend: TunedBackend, manager: Manager, limits: Properties) -> Iterator[Finding]:
    heaps, budget, used = manager.memory_heaps(), manager.memory_budget(), manager.arena_heaps()
    own, lent = (sum(heaps[i][0] for i in used if heaps[i][1] == local) for local in (True, False))
    free = sum(spare_bytes(heaps, budget, used)) if budget else 0
    there = f"{_size(own)} of its own" + (f" and {_size(lent)} of the host's" if lent else "")
    rest = f"{_size(free)} free" if budget else "the driver does not tell how much is free"
    little = bool(budget) and free < _LITTLE * (own + lent)
    yield Finding("memory", f"{there}, {rest}",
                  "close what else uses the card, or take smaller batches" if little else "")
    local = [size for size, of_device in heaps if of_device]
    yield _seen(backend.info.kind, max(local), sum(local), manager.host_sees())
    most, name = largest_block(limits, manager.features()["buffer_device_address"])
    yield Finding("largest tensor", f"{_size(most)} ({name})", "larger ones are refused: take smaller batches and "
                  "layers, or a newer driver" if most < min(_SMALL, own // 2) else "")


def _seen(kind: str, largest: int, own: int, all_of_it: bool) -> Finding:
    """Report how much device memory the host sees; a card with a window has a second heap for it."""
    if kind in ("integrated", "cpu"):
        return Finding("host sees", "memory that both share")
    if all_of_it:
        return Finding("host sees", f"all {_size(largest)} of it (resizable BAR)")
    window = f"a window of {_size(own - largest)} of it" if own > largest else "none of it"
    remedy = ("switch on resizable BAR ('Above 4G Decoding', 'Smart Access Memory') in the setup of the firmware; till "
              "then uploads are copied twice")
    return Finding("host sees", window, remedy if kind == "discrete" else "")


def _kernels(manager: Manager, limits: Properties) -> Iterator[Finding]:
    lacks, count = unfit(limits), len(manifest()["kernels"])
    words = "; ".join(f"{name} needs {what}" for name, what in lacks.items())
    yield Finding("kernels", f"{len(lacks)} of {count} do not fit: {words}" if lacks else f"all {count} fit",
                  "attention, chains and epilogues are made of other kernels; the rest needs 'cpu'" if lacks else "")
    missing, sizes = ", ".join(manifest()["left_out"]), sizes_of(manager.cooperative_matrices())
    if sizes is not None:
        yield Finding("matrix units", f"not used, as {missing} were left out by {manifest()['compiler']}" if missing
                      else f"of {' x '.join(map(str, sizes))}, for ag_matmul_precision 'high' and 'medium'",
                      "build with a glslang that knows cooperative matrices of bfloat16 (16 or newer)" if missing
                      else "")


def _products(backend: TunedBackend, tiles: Tiles, limits: Properties) -> Finding:
    usual = tiles_of(backend.info)
    named = "of one size, for software drivers" if tiles.fixed else tiles.forced or ", ".join(k for k, _ in tiles.rates)
    try:
        wrong = wrong_now(backend, tiles)
    except AgError as error:
        return Finding("tiles", f"{named}: no product can be made ({error})", "use another driver, or 'cpu'", "problem")
    if wrong:  # the trial found these right
        return Finding("tiles", f"{named}: a product in {', '.join(wrong)} comes out wrong", "use another driver, or "
                       "'cpu'; if it was right before, empty the folder of the cache, and it is tried again", "problem")
    unused = [kind for kind, _ in usual.rates if kind not in [used for used, _ in tiles.rates]]
    lack = [kind for kind in unused if lacking(TILES[kind].needs, limits)]
    tried = [kind for kind in unused if kind not in lack] if not (tiles.forced or usual.fixed) else []
    faults = [f"{', '.join(kinds)} {what}"
              for kinds, what in ((tried, "came out wrong"), (lack, "do not fit")) if kinds]
    if tiles.fixed and not usual.fixed:
        faults = ["all others came out wrong, or do not fit"]
    return Finding("tiles", f"{named}: products are right", f"{'; '.join(faults)}: a newer driver may mend that"
                   if faults and not tiles.forced else "")


def _habits(limits: Properties, apart: bool) -> Iterator[Finding]:
    kept = limits["preserves_nan"]
    yield Finding("NaN and infinity", "kept, as kernels ask for it" if kept else "the driver promises nothing",
                  "" if kept else "relu or max may hide a NaN; a loss that is not finite is still found")
    bits = limits["timestamp_valid_bits"]
    least, most = limits["required_subgroup_sizes"]
    sizes = f"{limits['subgroup_size'] or 'unknown number of'} invocations" + (
        f", {least} to {most} where a kernel asks" if least < most else "")
    yield Finding("subgroups, clock", f"{sizes}; {bits} bits",
                  "" if bits else "the device tells no times, so profiles have those of the host")
    does = "draws, too" if limits["queue_draws"] else "only computes"
    beside = f"; uploads in family {limits['transfer_family']}" if apart else ""
    yield Finding("queue", f"family {limits['queue_family']}, which {does}{beside}")


def _kept() -> Finding:
    fault = fault_of_folder()
    try:
        found = str(cache_folder())
    except CacheError:
        found = "none, as there is no home"
    return Finding("cache", found, fault)


def _measured(subject: str, measure: Callable[[], Finding]) -> Finding:
    try:
        return measure()
    except AgError as error:
        return Finding(subject, f"not measured ({error})", "see what the message says")


def _bus(backend: TunedBackend, limits: Properties) -> Finding:
    values, into = np.ones(_SENT, np.float32), backend.alloc((_SENT,), F32)
    up, down = [], []
    for _ in range(_TIMES):
        begin = perf_counter()
        backend.upload(values, into)
        backend.recorder.wait()
        up.append(perf_counter() - begin)
        begin = perf_counter()
        backend.download(into)
        down.append(perf_counter() - begin)
    speeds = [4e-9 * _SENT / max(min(seconds), 1e-9) for seconds in (up, down)]
    said = f"up {speeds[0]:.1f} GB/s, down {speeds[1]:.1f} GB/s"
    if backend.info.kind != "discrete":
        return Finding("bus", said)
    way = lanes(limits["vendor_id"], limits["device_id"])
    narrow = way is not None and 2 * way[0] < way[1]
    return Finding("bus", said + (f", {way[0]} of {way[1]} lanes" if way else ""), "if the machine is not busy, put "
                   "the card into a slot with more lanes, without a riser" if narrow or min(speeds) < _SLOW else "")


def _speed(backend: TunedBackend) -> Finding:
    elements, copied = _largest(_COPIED, _QUICK_COPY, lambda n: _seconds(backend, copy, [(n,)] * 2, {}))
    side, multiplied = _largest(_SIDES, _QUICK, lambda n: _seconds(backend, matmul, [(n, n)] * 3,
                                                                   {"ta": False, "tb": False}))
    return Finding("speed", f"copies {8 * elements / copied / 1e9:.1f} GB/s (read and written), multiplies matrices of "
                            f"{side} x {side} at {2 * side**3 / multiplied / 1e9:.1f} GFLOP/s")


def _largest(sizes: tuple[int, ...], quick: float, seconds: Callable[[int], float]) -> tuple[int, float]:
    size, taken = sizes[0], seconds(sizes[0])
    for larger in sizes[1:]:
        if taken > quick:
            break
        try:
            size, taken = larger, seconds(larger)
        except ArenaError:
            break
    return size, taken


def _seconds(backend: TunedBackend, primitive: Primitive, shapes: list[Shape], params: Params) -> float:
    buffers = uploaded(backend, *(np.ones(shape, np.float32) for shape in shapes))
    return time_of(backend.recorder, backend.command(primitive, buffers, params))


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:.0f} MiB"


def watchdog(vendor: str, draws: bool, longest: float) -> Finding:
    """Report when the system takes a device for hung, which may draw, and whether `longest` seconds are less."""
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
    """Return milliseconds by the timer's name, the least if there are several; 0: the driver's default."""
    found: dict[str, float] = {}
    for name, pattern in _TIMERS.get(vendor, {}).items():
        for path in sorted(_SYS.glob(pattern)):
            try:
                text = path.read_text("utf-8").strip()
                ms = _of_amd(text, draws) if name == _AMD else float(text) or inf  # 0 switches off Intel's timers
            except (OSError, ValueError):
                continue
            found[name] = min(ms, found.get(name, inf))
    return found


def _of_amd(text: str, draws: bool) -> float:
    """Parse one number, of queues that draw, or several: of those that draw, compute, copy and play films."""
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
    winreg = importlib.import_module("winreg")  # of Windows
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _REGISTRY) as key:
            return int(winreg.QueryValueEx(key, name)[0])
    except (OSError, ValueError):
        return None


def lanes(vendor_id: int, device_id: int) -> tuple[int, int] | None:
    """Return the lanes that the worst of such cards uses on its way, and could use; None if unknown."""
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
    """Read a decimal or hexadecimal number in a file of /sys; 0 if there is none."""
    try:
        return int(path.read_text("utf-8"), 0)
    except (OSError, ValueError):
        return 0


# ---------------------------------------------------------------------------------------------- files of drivers

Key = tuple[str, int, str]  # product, VkDriverId and driver version, which differ between two drivers of a card

_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # the second is the older name
_ADDED = "VK_ADD_DRIVER_FILES"
_PATIENCE = 60.0  # seconds, for all
_MOST_LINES = 3
_LISTED = "AG"
# Loads the extension without this package, which takes a tenth of a second.
_CODE = f"""
import importlib.util as u, json, sys
spec = u.spec_from_file_location("_kp", sys.argv[1])
kp = u.module_from_spec(spec)
spec.loader.exec_module(kp)
told = "device_name", "driver_id", "driver_info", "vendor_id", "driver_version"
print("{_LISTED}" + json.dumps([dict((name, d[name]) for name in told) for d in kp.list_devices()]))
"""
_FOUND = re.compile(r"Found ICD manifest file (.+?), version|\bDRIVER:\s{8,}(\S.*\.json)$")
_LISTS = re.compile(r"Found the following files:|In following locations:")
_COMPLAINT = re.compile(r"^(?:\[Vulkan Loader\] )?(ERROR|WARN(?:ING)?)\b[^:]*:\s*(.+)$")
_NO_FAULT = re.compile(r"failed to detect any valid GPUs|found no drivers|\blayer\b", re.I)  # not the driver's fault


class DriverFile(NamedTuple):
    path: str
    devices: tuple[Key, ...]
    said: tuple[str, ...]
    fails: bool


class _Answer(NamedTuple):
    devices: tuple[Key, ...]
    lines: list[str]
    fault: str


def drivers() -> list[Finding]:
    """Return findings: the environment's choice of drivers, then each file, those with devices first."""
    try:
        listed = DRIVERS.listed()
    except DeviceError:  # the registry reports that
        listed = []
    names = [((device.info.description, device.driver_id, device.info.driver), device.info.name) for device in listed]
    chosen = {name: os.environ[name] for name in (*_VARIABLES, _ADDED) if os.environ.get(name)}
    gone = [entry for text in chosen.values() for entry in text.split(os.pathsep) if entry and not Path(entry).exists()]
    files = sorted(driver_files(), key=lambda file: (file.fails, not file.devices))
    return [*(Finding("chosen by", f"{name}={text}", "drivers that it does not name are not looked for; unset it to "
                      "find all" if name != _ADDED else "") for name, text in chosen.items()),
            *(_finding(file, [name for key, name in names if key in file.devices]) for file in files
              if file.path not in gone),
            *(Finding("driver", f"{path} is not there", f"correct {' and '.join(chosen)}, or unset it", "problem")
              for path in dict.fromkeys(gone))]


def _finding(file: DriverFile, names: list[str]) -> Finding:
    brings = ", ".join(names or [product for product, *_ in file.devices]) or (
        "nothing" if file.fails else "no device, as none of its kind is here or may be used")
    said = f" (the Vulkan loader says: {'; '.join(file.said)})" if file.said else ""
    if file.fails:
        remedy = "install this driver again, or a newer one; or remove the file, if no card needs it"
    else:
        remedy = "if its card is here, install this driver again" if said and not file.devices else ""
    return Finding("driver", f"{file.path}: {brings}{said}", remedy, "problem" if file.fails else "note")


def file_of(key: Key, files: Sequence[DriverFile]) -> Finding:
    """Report the file that a device comes from, if known."""
    those = [file.path for file in files if key in file.devices]
    if len(those) == 1:
        return Finding("driver file", those[0])
    if not those:
        return Finding("driver file", "unknown: the loader does not tell it")
    if all(file.devices == files[0].devices for file in files):  # an elevated process may choose no files
        return Finding("driver file", f"unknown: one of {', '.join(those)}")
    return Finding("driver file", f"one of {', '.join(those)}",
                   f"remove one, or set {_VARIABLES[0]} to the other: the driver is installed twice")


@cache
def driver_files() -> tuple[DriverFile, ...]:
    """Return all files that the loader finds, in its order; none without the extension."""
    try:
        library = str(kompute().__file__)
    except DeviceError:
        return ()
    (all_files,) = _answers(library, [{**os.environ, "VK_LOADER_DEBUG": "error,warn,info,driver"}])
    paths = _paths(all_files.lines)
    base = {name: text for name, text in os.environ.items() if name != _ADDED} | {"VK_LOADER_DEBUG": "error,warn"}
    answers = _answers(library, [base | dict.fromkeys(_VARIABLES, path) for path in paths])
    return tuple(_file(path, answer) for path, answer in zip(paths, answers, strict=True))


def _file(path: str, answer: _Answer) -> DriverFile:
    found = [match for line in answer.lines if (match := _COMPLAINT.match(line)) and not _NO_FAULT.search(match[2])]
    said = list(dict.fromkeys(" ".join(match[2].split()) for match in found))
    errors = any(match[1] == "ERROR" for match in found)
    if answer.fault:
        said.insert(0, answer.fault)
    return DriverFile(path, answer.devices, tuple(said[:_MOST_LINES]), not answer.devices and (
        errors or bool(answer.fault)))


def _paths(lines: list[str]) -> list[str]:
    """Find the drivers' files in the loader's messages; older loaders name them only when reading them."""
    found: dict[str, None] = {}
    files = False
    for line in lines:
        if heading := _LISTS.search(line):
            files = heading[0].startswith("Found")
        elif (match := _FOUND.search(line)) and (match[1] or files):
            found[(match[1] or match[2]).strip()] = None
        elif not match:
            files = False
    return list(found)


def _answers(library: str, environments: list[dict[str, str]]) -> list[_Answer]:
    try:
        started = [subprocess.Popen([sys.executable, "-c", _CODE, library], env=environment, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace")
                   for environment in environments]
    except OSError:
        return [_Answer((), [], "")] * len(environments)
    until = monotonic() + _PATIENCE
    return [_answer(process, max(until - monotonic(), 0.1)) for process in started]


def _answer(process: subprocess.Popen[str], patience: float) -> _Answer:
    try:
        out, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        return _Answer((), process.communicate()[1].splitlines(), f"it does not answer in {_PATIENCE:.0f} s")
    listed = [line.removeprefix(_LISTED) for line in out.splitlines() if line.startswith(_LISTED)]
    devices = tuple((d["device_name"], d["driver_id"], driver_version(d))
                    for d in json.loads(listed[0])) if listed else ()
    crashed = process.returncode < 0 or process.returncode > 1  # Python exits with 1 if no device is found
    return _Answer(devices, err.splitlines(), f"a process that loads it ends with {process.returncode}"
                   if crashed and not listed else "")
