"""`ag.profile`: every launch inside a ``with`` block, with its time on the device.

Backends note events while `Backend.settings.events` is a list.  This module sets it, and makes tables and traces.
"""

from __future__ import annotations

import json
from collections import defaultdict
from os import PathLike
from types import TracebackType
from typing import NamedTuple

from ag.engine.backend import Backend, Event
from ag.engine.device import open_backends
from ag.errors import AgError
from ag.log import aligned
from ag.names import Making


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

    Attributes
    ----------
    events : list of Event
        (device, kernel, begin, end) of every launch, times in nanoseconds as `time.perf_counter_ns` gives them; in
        order of their begin once the ``with`` block has ended.

    Raises
    ------
    AgError
        On entering, if another profile is active, in any thread.
    DeviceError
        On entering, if a device in use cannot be timed.

    Notes
    -----
    ``str()`` shows `table` as text.  On a CPU device the host's clock is read around each call.  On Vulkan the device
    writes a timestamp after each command, also in replays of captured steps, without any waiting.  Copies to, from and
    on the device count as ``transfer``.  Entering and leaving wait for all devices.

    Examples
    --------
    >>> x = ag.ag_tensor([[1.0, 2.0]])
    >>> with ag.profile() as seen:
    ...     y = x + x
    >>> [(row.kernel, row.calls) for row in seen.table()]
    [('add', 1)]
    """

    __signature__ = Making()

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
