"""Transport between devices, tried: does what is sent from one device arrive on the other, and how fast.

Tensors move through the host.  A device that returns something else than it was given is found here.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import permutations
from time import perf_counter
from typing import NamedTuple

import numpy as np

from ag.autograd.create import ag_tensor
from ag.engine.device import ag_synchronize, backend_of
from ag.engine.registry import list_devices
from ag.errors import AgError
from ag.ops.convert import ag_to_device

_TIMES = 3  # the quickest counts
_ELEMENTS = 1 << 20


class Transport(NamedTuple):
    """The result of sending a tensor from one device to another."""

    source: str
    target: str
    correct: bool
    gb_per_s: float
    fault: str = ""


def transport_selftest(devices: Sequence[str] | None = None, elements: int = _ELEMENTS) -> list[Transport]:
    """Send tensors between all pairs of devices, both ways, and compare checksums.

    Parameters
    ----------
    devices : sequence of str, optional
        Default: the CPU and every Vulkan device.
    elements : int, optional
        Float32 numbers in a tensor, at least 1.

    Returns
    -------
    list of Transport
        One per ordered pair, with ``source``, ``target``, ``correct`` (the SHA-256 is that of what was sent, every
        time), ``gb_per_s`` (10^9 bytes per second, at best) and ``fault`` (what went wrong, or empty).

    Raises
    ------
    ValueError
        If `elements` is not positive.
    DeviceError
        If a device is not there.

    Notes
    -----
    Values are new for every transfer, so that memory which still holds those of the last one does not pass.

    References
    ----------
    ggmlR's transport self-test; on some machines, copies between cards are known to deliver zeros and no error.

    Examples
    --------
    >>> import ag
    >>> for link in ag.transport_selftest(["cpu", "cpu:1"]):
    ...     print(link.source, link.target, link.correct)
    cpu cpu:1 True
    cpu:1 cpu True
    """
    if elements < 1:
        raise ValueError(f"transport_selftest: elements is {elements}; it must be at least 1.")
    names = [info.name for info in list_devices()] if devices is None else devices
    found = dict.fromkeys(backend_of(name).name for name in names)
    return [_tried(source, target, elements) for source, target in permutations(found, 2)]


def _tried(source: str, target: str, elements: int) -> Transport:
    rng, seconds = np.random.default_rng(0), []
    try:
        for _ in range(_TIMES):
            values = rng.standard_normal(elements, np.float32)
            sent = ag_tensor(values, device=source)
            ag_synchronize(source)
            begin = perf_counter()
            arrived = ag_to_device(sent, target)
            ag_synchronize(target)
            seconds.append(perf_counter() - begin)
            back = arrived.numpy().ravel()
            if sha256(back.tobytes()).digest() != sha256(values.tobytes()).digest():
                wrong = int(np.count_nonzero(back != values))
                return Transport(source, target, False, 0.0, f"{wrong:,} of {elements:,} numbers arrived wrong")
    except AgError as error:
        return Transport(source, target, False, 0.0, str(error))
    return Transport(source, target, True, 4e-9 * elements / max(min(seconds), 1e-9))
