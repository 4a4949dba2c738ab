"""`ag.profile` times every launch on the devices; `ag.memory` says what they hold, `ag.free_memory` gives it back."""

from __future__ import annotations

import gc
import json
from bisect import bisect_right
from collections import defaultdict
from os import PathLike
from types import TracebackType
from typing import NamedTuple

from ag.autograd.tensor import Tensor, grads_of
from ag.engine.backend import Backend, Event
from ag.engine.buffer import HOLDERS, Buffer
from ag.engine.device import backend_of, open_backends
from ag.engine.program import Program
from ag.errors import AgError
from ag.log import aligned
from ag.optim.flat import DeviceState


class KernelTime(NamedTuple):
    """All calls of a kernel on a device; `share` is its part of the device's total."""

    device: str
    kernel: str
    calls: int
    total_ms: float
    share: float
    mean_us: float


class Profile:
    """Time every launch inside a ``with`` block, on all devices.

    ``str()`` shows `table` as text.  On entering, an AgError says that another profile is active, in any thread, and a
    DeviceError that a device cannot be timed.  On a CPU device the host's clock is read around each call.  On Vulkan
    the device writes a timestamp after each command, also in replays of captured steps, without any waiting.  Copies
    to, from and on the device count as ``transfer``.  Entering and leaving wait for all devices.

    Attributes
    ----------
    events : list of Event
        (device, kernel, begin, end) of every launch, times in nanoseconds as `time.perf_counter_ns` gives them; in
        order of their begin once the ``with`` block has ended.

    Examples
    --------
    >>> x = ag.ag_tensor([[1.0, 2.0]])
    >>> with ag.profile() as seen:
    ...     y = x + x
    >>> [(row.kernel, row.calls) for row in seen.table()]
    [('add', 1)]
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __enter__(self) -> Profile:
        if Backend.settings.events is not None:
            raise AgError("profile: a profile is active already, and a launch is timed by one; end it first, or take "
                          "the events of both from it.")
        try:
            _note_in(self.events)
        except BaseException:
            _note_in(None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        _note_in(None)
        self.events.sort(key=lambda e: e.begin)

    def table(self) -> list[KernelTime]:
        """Return tuples (device, kernel, calls, total_ms, share, mean_us), for each device the largest first."""
        calls: dict[tuple[str, str], list[int]] = defaultdict(list)
        of_device: dict[str, int] = defaultdict(int)
        for e in self.events:
            calls[e.device, e.kernel].append(e.end - e.begin)
            of_device[e.device] += e.end - e.begin
        rows = [KernelTime(device, kernel, len(times), sum(times) / 1e6, sum(times) / max(of_device[device], 1),
                           sum(times) / len(times) / 1e3) for (device, kernel), times in calls.items()]
        return sorted(rows, key=lambda row: (row.device, -row.total_ms))

    def __str__(self) -> str:
        rows = [("device", "kernel", "calls", "total ms", "share", "mean us")]
        rows += [(r.device, r.kernel, str(r.calls), f"{r.total_ms:.3f}", f"{r.share:.1%}", f"{r.mean_us:.2f}")
                 for r in self.table()]
        return aligned(rows, 2)

    def save_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write the events as JSON for chrome://tracing or ui.perfetto.dev, with a row per device."""
        rows = {device: i for i, device in enumerate(sorted({e.device for e in self.events}))}
        start = min((e.begin for e in self.events), default=0)
        names = [{"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": device}}
                 for device, row in rows.items()]
        launches = [{"name": e.kernel, "ph": "X", "pid": 0, "tid": rows[e.device], "ts": (e.begin - start) / 1e3,
                     "dur": (e.end - e.begin) / 1e3} for e in self.events]
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": names + launches, "displayTimeUnit": "ms"}, file)


def _note_in(events: list[Event] | None) -> None:
    """Have every device note its launches in `events`; None ends that."""
    Backend.settings.events = events
    for backend in open_backends():
        backend.retime()


profile = Profile


class MemoryTable(dict[str, dict[str, int]]):
    """Bytes by device and column; ``str()`` is a table in MiB."""

    def __str__(self) -> str:
        rows = [["MiB", *next(iter(self.values()), ())],
                *[[device, *[f"{n / 2**20:,.1f}" for n in row.values()]] for device, row in self.items()]]
        return aligned(rows, 0)

    __repr__ = __str__


def memory(device: str | None = None, reset_peak: bool = False) -> MemoryTable:
    """Return the bytes that are used on the devices, without staging memory, kernels and what drivers need.

    Reference: PyTorch ``torch.cuda.memory_allocated``, ``torch.cuda.memory_summary``.

    Parameters
    ----------
    device : str, optional
        Default: every device in use.
    reset_peak : bool, optional
        Measure the peak anew from now on.

    Returns
    -------
    dict of dict
        By device, then: ``used`` now, ``reserved`` of the driver or system, ``peak`` of what was used, ``total`` that
        the device has.  The rest adds up to ``used``: ``parameters``, their ``gradients``, state of ``optimizers``,
        programs of ``captured`` steps, and ``other``, such as tensors and what is saved for `backward`.  What is of
        several kinds counts for the first.  `print` shows a table.

    Examples
    --------
    >>> W = ag.ag_param([[1.0] * 1024], device="cpu:2")
    >>> ag.memory("cpu:2")["cpu:2"]["parameters"]
    4096
    """
    backends = open_backends() if device is None else [backend_of(device)]
    held = _held()
    return MemoryTable({backend.name: _row(backend, held, reset_peak) for backend in backends})


def free_memory(device: str | None = None) -> int:
    """Give memory that nothing uses back to the drivers and the system.

    A tensor that dies leaves its memory to the next ones.  It is given back in segments of some megabytes, in which
    nothing may lie and no numpy array look.  Waits for the devices.  Inside a captured step it is a CaptureError.
    Reference: PyTorch ``torch.cuda.empty_cache``.

    Parameters
    ----------
    device : str, optional
        Default: every device in use.

    Returns
    -------
    int
        How many bytes.

    Examples
    --------
    >>> ag.free_memory() >= 0
    True
    """
    gc.collect()
    backends = open_backends() if device is None else [backend_of(device)]
    gone = [segment for backend in backends for segment in backend.release().values()]
    for backend in open_backends():
        backend.arena.unreach({id(there) for _, there in gone})
    return sum([nbytes for nbytes, _ in gone])


def _held() -> dict[str, list[Buffer]]:
    """Return the buffers that objects of the process hold, by kind."""
    alive = [x for reference in HOLDERS.valuerefs() if (x := reference()) is not None]
    parameters = [x for x in alive if isinstance(x, Tensor)]
    states = [x for x in alive if isinstance(x, DeviceState)]
    return {"parameters": [x.buffer for x in parameters],
            "gradients": [x.buffer for x in grads_of(parameters) if x is not None] + [x.grads for x in states],
            "optimizers": [b for x in states for b in (*x.flats, *x.numbers)],
            "captured": [b for x in alive if isinstance(x, Program) for b in x.buffers]}


def _row(backend: Backend, held: dict[str, list[Buffer]], reset_peak: bool) -> dict[str, int]:
    """Count every block of a device once."""
    blocks = backend.arena.lent()
    starts, counted, kinds = [address for address, _ in blocks], set[int](), dict[str, int]()
    for kind, buffers in held.items():
        places = {at for b in buffers if b.backend is backend and (at := bisect_right(starts, b.address) - 1) >= 0
                  and b.address < sum(blocks[at])} - counted
        kinds[kind] = sum([blocks[at][1] for at in places])
        counted |= places
    stats, used = backend.arena.stats(reset_peak), sum([nbytes for _, nbytes in blocks])
    return {"used": used, "reserved": stats.reserved, "peak": max(stats.peak, used),
            "total": backend.info.memory_bytes, **kinds, "other": used - sum(kinds.values())}
