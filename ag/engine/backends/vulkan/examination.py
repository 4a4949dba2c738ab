"""What is particular to one device and its driver, a line per subject: for the doctor, and for who reports a fault.

Where something is not as it should be, the line has a remedy.  For example::

    memory       2.0 GiB of its own, 1.2 GiB free
    kernels      1 of 89 do not fit: attention_grad needs 10 storage buffers where the device has 8
                 -> attention, chains and epilogues are made of other kernels; the rest needs 'cpu'

Knows what a driver tells, the manifest of kernels and the kinds of tiles; no tensor and no op.  The Vulkan backend
calls it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ag.engine.backend import Finding
from ag.engine.backends.vulkan.kp_types import Manager, Properties
from ag.engine.backends.vulkan.limits import VULKAN_1_1, largest_block, spare_bytes
from ag.engine.backends.vulkan.loader import DRIVERS
from ag.engine.backends.vulkan.plans import compiled_by, left_out, unfit
from ag.engine.backends.vulkan.products.autotune import TunedBackend, seconds_of
from ag.engine.backends.vulkan.products.cooperative import sizes_of
from ag.engine.backends.vulkan.products.tiles import Tiles, tiles_of
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import copy
from ag.engine.kernels.matmul import matmul
from ag.engine.primitive import Params, Primitive
from ag.engine.shape import Shape
from ag.errors import AgError

__all__ = ["examined"]

_LITTLE = 1 / 8  # of a heap, which is little for what is left of it
_WATCHDOG = Path("/sys/module/amdgpu/parameters/lockup_timeout")
_SIDES = (256, 1024)  # of the matrices that are multiplied to see how fast a device is: larger ones only if it is
_QUICK = 2e-3  # seconds
_COPIED = 1 << 22  # elements


def examined(backend: TunedBackend, manager: Manager, tiles: Tiles) -> list[Finding]:
    """What is to be said of a device, in the order of the report.

    Parameters
    ----------
    backend : VulkanBackend
    manager : kp.Manager
        Of the device.
    tiles : Tiles
        The rule it goes by.
    """
    limits = manager.get_device_properties()
    return [*_driver(backend, limits), *_memory(manager, limits), *_kernels(manager, limits),
            *_products(backend, tiles), *_habits(limits, manager.transfers_apart()), _kept(), *_watchdog(backend),
            _speed(backend)]


def _driver(backend: TunedBackend, limits: Properties) -> Iterator[Finding]:
    version = limits["api_version"]
    told = " ".join(filter(None, (limits["driver_name"], limits["driver_info"]))) or backend.info.driver
    yield Finding("driver", f"{told}, Vulkan {version >> 22}.{version >> 12 & 0x3FF}.{version & 0xFFF}",
                  "" if version >= VULKAN_1_1 else "a long launch cannot be made in parts; install a newer driver")
    same = [device.info.name for device in DRIVERS.listed()
            if backend.info.uuid and device.info.uuid == backend.info.uuid and device.info.name != backend.info.name
            and device.info.kind != "cpu"]
    if same:
        yield Finding("same card", f"{', '.join(same)} is the same card under another driver",
                      "use one of them; where none is named, the better one is used")
    files = [f"{name}={os.environ[name]}" for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES") if os.environ.get(name)]
    if files:
        yield Finding("chosen by", ", ".join(files))


def _memory(manager: Manager, limits: Properties) -> Iterator[Finding]:
    heaps, budget = manager.memory_heaps(), manager.memory_budget()
    own = sum(size for size, local in heaps if local)
    free = spare_bytes(heaps, budget) if budget else 0
    rest = f"{_size(free)} free" if budget else "the driver does not tell how much is free"
    little = bool(budget) and free < _LITTLE * own
    yield Finding("memory", f"{_size(own)} of its own, {rest}",
                  "close what else uses the card, or take smaller batches" if little else "")
    most, name = largest_block(limits, manager.features()["buffer_device_address"])
    yield Finding("largest tensor", f"{_size(most)} ({name})")


def _kernels(manager: Manager, limits: Properties) -> Iterator[Finding]:
    lacks, count = unfit(limits)
    words = "; ".join(f"{name} needs {what}" for name, what in lacks.items())
    yield Finding("kernels", f"{len(lacks)} of {count} do not fit: {words}" if lacks else f"all {count} fit",
                  "attention, chains and epilogues are made of other kernels; the rest needs 'cpu'" if lacks else "")
    missing = left_out()
    if missing and sizes_of(manager.cooperative_matrices()) is not None:
        yield Finding("matrix units", f"not used, as {', '.join(missing)} were left out by {compiled_by()}",
                      "build with a glslang that knows cooperative matrices of bfloat16 (16 or newer)")


def _products(backend: TunedBackend, tiles: Tiles) -> Iterator[Finding]:
    usual = tiles_of(backend.info)
    used = [kind for kind, _ in tiles.rates]
    wrong = [kind for kind, _ in usual.rates if kind not in used]
    if tiles.fixed:
        yield Finding("tiles", "of one size, for software drivers",
                      "" if usual.fixed else "all others came out wrong, or do not fit; a newer driver may mend that")
    else:
        yield Finding("tiles", tiles.forced or ", ".join(used), f"{', '.join(wrong)} came out wrong, or do not fit; a "
                      f"newer driver may mend that" if wrong and not tiles.forced else "")


def _habits(limits: Properties, apart: bool) -> Iterator[Finding]:
    kept = limits["preserves_nan"]
    yield Finding("NaN and infinity", "kept, as kernels ask for it" if kept else "the driver promises nothing",
                  "" if kept else "relu or max may hide a NaN; a loss that is not finite is still found")
    bits = limits["timestamp_valid_bits"]
    yield Finding("subgroups, clock", f"{limits['subgroup_size'] or 'unknown number of'} invocations, {bits} bits",
                  "" if bits else "the device tells no times, so profiles have those of the host")
    does = "draws, too" if limits["queue_draws"] else "only computes"
    beside = f"; uploads in family {limits['transfer_family']}" if apart else ""
    yield Finding("queue", f"family {limits['queue_family']}, which {does}{beside}")


def _kept() -> Finding:
    """The folder of what was compiled and measured."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ag"
    except RuntimeError:  # there is no home
        return Finding("cache", "none, as there is no home", "set XDG_CACHE_HOME, or each process compiles all kernels")
    there = next(path for path in (folder, *folder.parents) if path.exists())
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return Finding("cache", str(folder), "" if writable else
                   f"{there} cannot be written, so each process compiles all kernels: set XDG_CACHE_HOME")


def _watchdog(backend: TunedBackend) -> Iterator[Finding]:
    if backend.info.vendor == "AMD" and _WATCHDOG.is_file():
        timeout = _WATCHDOG.read_text("utf-8").strip() or "the driver's default"
        yield Finding("watchdog", f"amdgpu.lockup_timeout is {timeout} (ms); submissions are kept below "
                                  f"{1e3 * backend.recorder.budget.long:.0f} ms")


def _speed(backend: TunedBackend) -> Finding:
    """A copy and a product, as quick as they are: some milliseconds."""
    try:
        copied = _seconds(backend, copy, [(_COPIED,)] * 2, {})
        for side in _SIDES:
            multiplied = _seconds(backend, matmul, [(side, side)] * 3, {"ta": False, "tb": False})
            if multiplied > _QUICK:
                break
    except AgError as error:
        return Finding("speed", f"not measured ({error})")
    return Finding("speed", f"copies {8 * _COPIED / copied / 1e9:.1f} GB/s (read and written), multiplies matrices of "
                            f"{side} x {side} at {2 * side**3 / multiplied / 1e9:.1f} GFLOP/s")


def _seconds(backend: TunedBackend, primitive: Primitive, shapes: list[Shape], params: Params) -> float:
    buffers = tuple(backend.alloc(shape, F32) for shape in shapes)
    for buffer in buffers:
        backend.upload(np.ones(buffer.shape, np.float32), buffer)
    return seconds_of(backend.recorder, backend.command(primitive, buffers, params))


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:.0f} MiB"
