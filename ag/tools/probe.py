"""Probes of devices: does one compute at all, how exactly, and does what it sends arrive on others.

Vulkan leaves drivers much freedom, such as division within 2.5 units in the last place.  So each device is tried, with
ordinary ops on small tensors, and compared with numpy.  Tensors move through the host: a device that returns something
else than it was given is found here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import permutations
from time import perf_counter
from typing import NamedTuple

import numpy as np

from ag.autograd.create import ag_tensor
from ag.engine.device import ag_synchronize, backend_of
from ag.engine.registry import list_devices
from ag.errors import AgError
from ag.ops.arithmetic import ag_div, ag_mul
from ag.ops.convert import ag_to_device
from ag.ops.elementwise import ag_sqrt
from ag.ops.matmul import ag_matmul

_SAMPLES = 4096


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of a device in float32."""

    div_ulp: int  # largest distance from the correctly rounded result, in units in the last place
    sqrt_ulp: int
    fma: bool  # matrix products add to the running sum without rounding the product first
    denormals: bool  # numbers below 1.2e-38 are kept, and do not become zero


def fault_of(device: str) -> str:
    """Let the device multiply two matrices; return what goes wrong, or ""."""
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    try:
        product = ag_matmul(ag_tensor(a, device=device), ag_tensor(b, device=device)).numpy()
    except AgError as error:
        return str(error)
    return "" if np.array_equal(product, a @ b) else f"a matrix product is {product.tolist()}, not {(a @ b).tolist()}"


def accuracy_of(device: str) -> Accuracy:
    """Measure the device's accuracy on a few thousand numbers."""
    rng = np.random.default_rng(0)
    a, b = (np.exp(rng.uniform(-20, 20, _SAMPLES)).astype(np.float32) for _ in range(2))
    x, y = ag_tensor(a, device=device), ag_tensor(b, device=device)
    return Accuracy(_distance(ag_div(x, y).numpy(), a / b), _distance(ag_sqrt(x).numpy(), np.sqrt(a)),
                     _fuses(device), _keeps_denormals(device))


def _distance(found: object, exact: object) -> int:
    """Return the largest distance in units in the last place; numbers of one sign are ordered as their bits are."""
    bits = [np.ascontiguousarray(v, np.float32).ravel().view(np.int32).astype(np.int64) for v in (found, exact)]
    return int(np.abs(bits[0] - bits[1]).max())


def _fuses(device: str) -> bool:
    """Return whether a product's rounding error survives in a sum, in either order of the two products.

    The products are 64 apart, so that they meet in one running sum where several run side by side.
    """
    x = np.float32(1 + 2.0**-12)
    for first, second in (((1.0, -x * x), (x, x)), ((x, x), (1.0, -x * x))):
        a, b = np.zeros((16, 128), np.float32), np.zeros((128, 16), np.float32)
        (a[:, 0], b[0]), (a[:, 64], b[64]) = first, second
        if ag_matmul(ag_tensor(a, device=device), ag_tensor(b, device=device)).numpy().any():
            return True
    return False


def _keeps_denormals(device: str) -> bool:
    """Return whether 2^-130, which is subnormal, survives being made and being used."""
    small, factor, back = (ag_tensor([2.0**e], device=device) for e in (-100, -30, 120))
    made = ag_mul(small, factor)
    return made.item() == 2.0**-130 and ag_mul(made, back).item() == 2.0**-10


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

    ggmlR's transport self-test; on some machines, copies between cards are known to deliver zeros and no error.

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
