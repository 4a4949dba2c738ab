"""What is particular to one device and its driver, a line per subject: for the doctor, and for who reports a fault.

Every line has a verdict, and where that is not "ok", a remedy.  For example::

    ok    memory       2.0 GiB of its own, 1.2 GiB free
    note  kernels      1 of 89 do not fit: attention_grad needs 10 storage buffers where the device has 8
                       -> attention, chains and epilogues are made of other kernels; the rest needs 'cpu'

Knows what a driver tells, the manifest of kernels and the kinds of tiles; no tensor and no op.  The Vulkan backend
calls it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import numpy as np

from ag.engine.backend import Finding
from ag.engine.backends.vulkan.driver_files import driver_files, file_of
from ag.engine.backends.vulkan.kp_types import Manager, Properties
from ag.engine.backends.vulkan.limits import VULKAN_1_1, lacking, largest_block, spare_bytes
from ag.engine.backends.vulkan.loader import DRIVERS
from ag.engine.backends.vulkan.machine import lanes, watchdog
from ag.engine.backends.vulkan.plans import compiled_by, left_out, unfit
from ag.engine.backends.vulkan.products.autotune import TunedBackend, seconds_of
from ag.engine.backends.vulkan.products.cooperative import sizes_of
from ag.engine.backends.vulkan.products.tiles import TILES, Tiles, tiles_of
from ag.engine.backends.vulkan.products.trial import wrong_now
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import copy
from ag.engine.kernels.matmul import matmul
from ag.engine.primitive import Params, Primitive
from ag.engine.shape import Shape
from ag.errors import AgError, ArenaError

__all__ = ["examined"]

_LITTLE = 1 / 8  # of the memory, which is little for what is left of it
_SMALL = 1 << 30  # bytes; models have tensors of half of it
_SIDES = (256, 1024, 4096)  # of the matrices that are multiplied to see how fast a device is: larger ones only if it is
_COPIED = (1 << 22, 1 << 24)  # elements, likewise: the first may fit into a cache
_QUICK, _QUICK_COPY = 2e-3, 5e-4  # seconds
_SENT = 1 << 23  # elements that go to the device and back
_TIMES = 3
_SLOW = 1.0  # GB/s; a card with a single lane has less


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
    limits, info = manager.get_device_properties(), backend.info
    found = [*_driver(backend, limits), *_memory(backend, manager, limits), *_kernels(manager, limits),
             _products(backend, tiles, limits), *_habits(limits, manager.transfers_apart()), _kept()]
    if info.kind != "cpu":  # which has none
        found += [_units(backend, tiles), watchdog(info.vendor, limits["queue_draws"], backend.recorder.budget.long)]
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
    """How much of its memory the host sees: a card with a window has a second heap of its own for that."""
    if kind in ("integrated", "cpu"):
        return Finding("host sees", "memory that both share")
    if all_of_it:
        return Finding("host sees", f"all {_size(largest)} of it (resizable BAR)")
    window = f"a window of {_size(own - largest)} of it" if own > largest else "none of it"
    remedy = ("switch on resizable BAR ('Above 4G Decoding', 'Smart Access Memory') in the setup of the firmware; till "
              "then uploads are copied twice")
    return Finding("host sees", window, remedy if kind == "discrete" else "")


def _kernels(manager: Manager, limits: Properties) -> Iterator[Finding]:
    lacks, count = unfit(limits)
    words = "; ".join(f"{name} needs {what}" for name, what in lacks.items())
    yield Finding("kernels", f"{len(lacks)} of {count} do not fit: {words}" if lacks else f"all {count} fit",
                  "attention, chains and epilogues are made of other kernels; the rest needs 'cpu'" if lacks else "")
    missing, sizes = left_out(), sizes_of(manager.cooperative_matrices())
    if sizes is not None:
        yield Finding("matrix units", f"not used, as {', '.join(missing)} were left out by {compiled_by()}" if missing
                      else f"of {' x '.join(map(str, sizes))}, for ag_matmul_precision 'high' and 'medium'",
                      "build with a glslang that knows cooperative matrices of bfloat16 (16 or newer)" if missing
                      else "")


def _units(backend: TunedBackend, tiles: Tiles) -> Finding:
    """How many units work on tiles at once, and who says so."""
    return Finding("compute units", f"{backend.info.units}, as the driver says" if backend.info.units else
                   f"about {tiles.units}, an estimate by kind and memory, as the driver does not say")


def _products(backend: TunedBackend, tiles: Tiles, limits: Properties) -> Finding:
    """The kinds of tiles, in each of which a product is made now."""
    usual = tiles_of(backend.info)
    named = "of one size, for software drivers" if tiles.fixed else tiles.forced or ", ".join(k for k, _ in tiles.rates)
    try:
        wrong = wrong_now(backend, tiles)
    except AgError as error:
        return Finding("tiles", f"{named}: no product can be made ({error})", "use another driver, or 'cpu'", "problem")
    if wrong:  # of a kind that was right when it was tried
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
    """The folder of what was compiled and measured."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ag"
    except RuntimeError:  # there is no home
        return Finding("cache", "none, as there is no home", "set XDG_CACHE_HOME, or each process compiles all kernels")
    there = next(path for path in (folder, *folder.parents) if path.exists())
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return Finding("cache", str(folder), "" if writable else
                   f"{there} cannot be written, so each process compiles all kernels: set XDG_CACHE_HOME")


def _measured(subject: str, measure: Callable[[], Finding]) -> Finding:
    try:
        return measure()
    except AgError as error:
        return Finding(subject, f"not measured ({error})", "see what the message says")


def _bus(backend: TunedBackend, limits: Properties) -> Finding:
    """How fast elements come and go, and by how many lanes."""
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
    """A copy and a product, as quick as they are: up to a second."""
    elements, copied = _largest(_COPIED, _QUICK_COPY, lambda n: _seconds(backend, copy, [(n,)] * 2, {}))
    side, multiplied = _largest(_SIDES, _QUICK, lambda n: _seconds(backend, matmul, [(n, n)] * 3,
                                                                   {"ta": False, "tb": False}))
    return Finding("speed", f"copies {8 * elements / copied / 1e9:.1f} GB/s (read and written), multiplies matrices of "
                            f"{side} x {side} at {2 * side**3 / multiplied / 1e9:.1f} GFLOP/s")


def _largest(sizes: tuple[int, ...], quick: float, seconds: Callable[[int], float]) -> tuple[int, float]:
    """What a size takes: the next larger one where that is quickly done, as far as there is memory."""
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
    buffers = tuple(backend.alloc(shape, F32) for shape in shapes)
    for buffer in buffers:
        backend.upload(np.ones(buffer.shape, np.float32), buffer)
    return seconds_of(backend.recorder, backend.command(primitive, buffers, params))


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:.0f} MiB"
