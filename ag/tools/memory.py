"""`ag.memory`: what lies on each device, by kind; `ag.free_memory` gives back what nothing uses."""

from __future__ import annotations

import gc
from bisect import bisect_right

from ag.autograd.tensor import Tensor, grads_of
from ag.engine.backend import Backend
from ag.engine.buffer import HOLDERS, Buffer
from ag.engine.device import backend_of, open_backends
from ag.engine.program import Program
from ag.log import aligned
from ag.optim.flat import DeviceState


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
    nothing may lie.  Waits for the devices.  On a CPU device, numpy arrays that look into a segment keep it.
    Reference: PyTorch ``torch.cuda.empty_cache``.

    Parameters
    ----------
    device : str, optional
        Default: every device in use.

    Returns
    -------
    int
        How many bytes.

    Raises
    ------
    CaptureError
        Inside a captured step.

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
