"""Devices by name, the defaults, and which devices to use where none is named.

Drivers want a device to be opened once, so a backend lives as long as the process.  The default device and element type
belong to the running context, so threads do not disturb each other.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any

from ag.engine.arena import after_fork
from ag.engine.backend import Backend, DeviceInfo
from ag.engine.dtype import F32, DType, as_dtype
from ag.engine.registry import (
    Family,
    accelerator_titles,
    example_names,
    families,
    family_named,
    preferred_devices,
    say_once,
    unusable_devices,
)
from ag.errors import ArenaError, DeviceError, DtypeError, KernelError, switched_on

_UNNAMED = ("auto", "gpu")  # defaults that leave the choice to `ag`
_device: ContextVar[str] = ContextVar("ag_device", default=os.environ.get("AG_DEVICE") or "auto")
_dtype: ContextVar[DType] = ContextVar("ag_dtype", default=F32)
CONTEXT: tuple[ContextVar[Any], ...] = (_device, _dtype)  # the defaults of the running context

# Process-wide by nature: a device has one backend, whoever asks.
_backends: dict[str, Backend] = {}
_chosen: dict[str, Backend] = {}  # by the name of a default, also "auto"
_lock = threading.RLock()


@after_fork
def _forked() -> None:
    """Go on in a forked child, which has none of the other threads; nobody holds their locks there."""
    global _lock
    _lock = threading.RLock()
    _chosen.clear()  # a forked child cannot use its parent's card
    for backend in list(_backends.values()):
        backend.forked()


class PreviousSetting(str):
    """The name of a setting before a change; as a context manager it is restored on exit."""

    _restore: Callable[[str], object]
    _now: str | None

    def __new__(cls, name: str, restore: Callable[[str], object], now: str | None = None) -> PreviousSetting:
        previous = super().__new__(cls, name)
        previous._restore, previous._now = restore, now
        return previous

    def __repr__(self) -> str:
        return repr(str(self)) if self._now is None else f"<now {self._now!r}, before {str(self)!r}>"

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    def __enter__(self) -> str:
        return str(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._restore(str(self))


# ---------------------------------------------------------------------------------------------- names

def family_and_index(name: str) -> tuple[Family, int]:
    prefix, _, index = name.partition(":")
    family = family_named(prefix)
    if family is not None and family.find is not None and index and not (index.isascii() and index.isdigit()):
        return family, family.find(index)
    if family is None or not ((index.isascii() and index.isdigit()) or (index == "" and ":" not in name)):
        examples = ", ".join(map(repr, [*example_names(), "gpu"]))
        raise DeviceError(f"ag_device: unknown device {name!r}; use {examples} or 'auto'.")
    return family, int(index or 0)


def canonical(name: str) -> str:
    """The one spelling of a device's name; resolves ``"gpu"`` and ``"auto"``."""
    if not isinstance(name, str):
        examples = " or ".join(repr(family.examples[0]) for family in families())
        raise DeviceError(f"ag_device: a device is named by a string, and {name!r} was given; use {examples}.")
    if name in _UNNAMED:
        refused: list[str] = []
        best = next(iter(opened(preferred_devices(), 1, refused)), None)
        if best is None and name == "gpu":
            why = f"no card can be opened. {' '.join(refused)}" if refused else (
                f"no {accelerator_titles()} device was found that is a card; run `python -m ag devices` to see what "
                f"there is, name a device, or use 'auto' or 'cpu'.")
            raise DeviceError(f"ag_device: 'gpu' was asked for and {why}")
        for why in unusable_devices() if best is None else ():
            say_once(f"ag_device: 'auto' is 'cpu' here, as no device has working kernels. {why}")
        return best or "cpu"
    family, index = family_and_index(name)
    return family.device_name(index)


def opened(devices: Sequence[DeviceInfo], count: int | None = None, refused: list[str] | None = None) -> list[str]:
    """The names of the first `count` that can be opened; the log, and `refused`, say which cannot, and why."""
    names: list[str] = []
    for info in devices:
        if count is not None and len(names) >= count:
            break
        try:
            backend_of(info.name).check_open()
            names.append(info.name)
        except (DeviceError, ArenaError, KernelError) as error:
            say_once(f"{error} It is passed over where no device is named.")
            if refused is not None:
                refused.append(str(error))
    return names


def is_software(info: DeviceInfo) -> bool:
    """Return whether an accelerator is none but for its name: a driver that computes on the processor."""
    return info.kind == "cpu"


def is_accelerator(name: str) -> bool:
    """Return whether a device is of a family that training prefers to the processor."""
    return family_and_index(canonical(name))[0].is_accelerator


def backend_of(name: str) -> Backend:
    backend = _backends.get(name) if isinstance(name, str) else None
    if backend is not None:
        return backend
    name = canonical(name)
    family, index = family_and_index(name)
    with _lock:
        if name not in _backends:
            switched_on("AG_NATIVE", default=True)
            _backends[name] = family.open(index)
        return _backends[name]


def was_named() -> bool:
    return _device.get() not in _UNNAMED


@contextmanager
def same_default() -> Iterator[None]:
    device = _device.get()
    try:
        yield
    finally:
        _device.set(device)


def open_backends() -> list[Backend]:
    return list(_backends.values())


def default_backend(dtype: DType = F32) -> Backend:
    """The backend of the default device; unless that was named, the CPU for elements that it cannot hold."""
    name = _device.get()  # hot path: a dict that knows "auto", and no call
    backend = _chosen.get(name) or _choose(name)
    holds = dtype in backend.dtypes and _dtype.get() in backend.dtypes  # what is made together lies together
    return backend if holds or was_named() else backend_of("cpu")


def _choose(name: str) -> Backend:
    with _lock:
        if name not in _chosen:
            try:
                _chosen[name] = backend_of(name)
            except DeviceError as error:
                if name == os.environ.get("AG_DEVICE"):
                    raise DeviceError(f"{error} The environment has AG_DEVICE={name}.") from error
                raise
        return _chosen[name]


def prefer(name: str) -> None:
    """Let "auto" be this device, such as the process's share of a machine."""
    _chosen["auto"] = backend_of(name)


def default_dtype() -> DType:
    return _dtype.get()


# ---------------------------------------------------------------------------------------------- public


def ag_device(name: str) -> PreviousSetting:
    """Set the default device.

    Without any call it is ``"auto"``, or what AG_DEVICE names in the environment.  A new thread starts without it.
    `dp_train` and others use the device that is named here if they are given none.  After ``"auto"`` or ``"gpu"`` they
    take all cards, or those that AG_VULKAN_DEVICES names, in that order, such as ``0,2`` or ``NVIDIA,Arc``.
    Reference: ggmlR ``ag_device``.

    Parameters
    ----------
    name : str
        ``"cpu"``, ``"cpu:1"``, ``"vulkan:0"``, ``"vulkan:NVIDIA"`` (by a part of the product's name, or the beginning
        of the UUID), ``"gpu"`` (the best card) or ``"auto"`` (gpu if there is one, else cpu; chosen when a tensor is
        first made).  Software drivers are no cards: they are used only by their name, or with ``AG_SOFTWARE=1``.

    Returns
    -------
    str
        The previous default.  Used as ``with ag_device(name):`` that comes back on exit.

    Examples
    --------
    >>> with ag.ag_device("cpu:1"):
    ...     print(ag.ag_tensor([1.0]).device)
    cpu:1
    """
    backend = backend_of(name)
    previous = PreviousSetting(_device.get(), _device.set, backend.name)
    setting = name if name in _UNNAMED else backend.name
    _chosen[setting] = backend
    _device.set(setting)
    return previous


def ag_default_device() -> str:
    """Name the current default device, which is chosen and opened now if nothing has used it yet.

    Reference: ggmlR ``ag_default_device``.

    Returns
    -------
    str
        Such as ``"vulkan:0"``.

    Examples
    --------
    >>> with ag.ag_device("cpu"):
    ...     print(ag.ag_default_device())
    cpu
    """
    return default_backend().name


def ag_dtype(name: str) -> PreviousSetting:
    """Set the default element type of new tensors; docs/mixed_precision.md says what is computed in 16 bits.

    Reference: ggmlR ``ag_dtype``.

    Parameters
    ----------
    name : str
        ``"f32"``, ``"f16"``, ``"bf16"``, or ``"f64"``, which CPU devices hold: tensors of it are made there unless
        another device was named.

    Returns
    -------
    str
        The previous default.  Used as ``with ag_dtype(name):`` that comes back on exit.

    Examples
    --------
    >>> with ag.ag_dtype("f64"):
    ...     print(ag.ag_tensor([1.0]).dtype)
    f64
    """
    new = as_dtype(name, "ag_dtype")
    if not new.is_float:
        raise DtypeError(f"ag_dtype: the element type {new} was asked for; a floating type is required. Make single "
                         f"tensors of integers with ag_tensor(data, dtype={new.name!r}).")
    previous = PreviousSetting(_dtype.get().name, lambda name: _dtype.set(as_dtype(name, "ag_dtype")), new.name)
    _dtype.set(new)
    return previous


def ag_default_dtype() -> str:
    """Name the current default element type.  Reference: ggmlR ``ag_default_dtype``.

    Returns
    -------
    str

    Examples
    --------
    >>> ag.ag_default_dtype()
    'f32'
    """
    return _dtype.get().name


def ag_synchronize(device: str | None = None) -> None:
    """Wait until a device has finished everything launched on it.

    Parameters
    ----------
    device : str, optional
        Default: every device in use.

    Examples
    --------
    >>> ag.ag_synchronize()
    """
    for backend in [backend_of(device)] if device is not None else open_backends():
        backend.synchronize()


def ag_shutdown() -> None:
    """Close every device; tensors on them cannot be used any more.

    Called at interpreter exit.  The next use of a device opens it anew; what was made before raises a `DeviceError`.

    Examples
    --------
    >>> ag.ag_shutdown()
    """
    with _lock:
        _chosen.clear()
        while _backends:
            name, backend = _backends.popitem()
            try:
                backend.close()
            except (RuntimeError, MemoryError) as error:  # one that fails does not keep the others open
                from ag.log import log  # which takes time to load

                log.warning("ag_shutdown: %s did not end well (%s); its next use opens it anew.", name, error)


atexit.register(ag_shutdown)


def default_devices(count: int | None = None) -> list[str]:
    """Names of the devices to use where none are named."""
    names = [] if was_named() else opened(preferred_devices(), count)
    names = [name for name in names if _dtype.get() in backend_of(name).dtypes]
    if not names:
        names = [ag_default_device()]
        family, _ = family_and_index(names[0])
        if count is not None and not family.is_accelerator:
            return [family.device_name(i) for i in range(count)]
    return names if count is None else [names[i % len(names)] for i in range(count)]


def cards() -> list[str]:
    """Names of the accelerators to choose from where none are named, best first; opens none."""
    if was_named():
        return [name for name in [ag_default_device()] if is_accelerator(name)]
    return [info.name for info in preferred_devices()]


def accelerator_name(index: int) -> str:
    """The name of an accelerator given by its number only: of the family that training prefers."""
    preferred = next((family for family in families() if family.is_accelerator), None)
    if preferred is None:
        raise DeviceError(f"device {index}: no accelerator could have a number, as no backend for one is registered.")
    return preferred.device_name(index)


_NAMES = ("highest", "high", "medium")


def ag_matmul_precision(name: str | None = None) -> PreviousSetting:
    """Set how exactly products of matrices in float32 are made, for all devices.

    A lower precision is allowed, not promised: for `ag_matmul` and what is made of it, on Vulkan devices with
    cooperative matrices whose kernels were right and faster in a test.  Convolutions, the weight gradients of linear
    layers, attention and the CPU stay in float32, and so do all sums.  Infinities in operands may become NaN.  A
    captured step keeps the precision with which it was captured.
    Reference: PyTorch ``torch.set_float32_matmul_precision``.

    Parameters
    ----------
    name : str, optional
        ``"highest"``, the default: in float32.  ``"high"``: from three products in bfloat16, with about 16 bits of
        every operand.  ``"medium"``: from one in bfloat16, with 8 bits, or in scaled float16, with 11.  Without a name
        nothing changes.

    Returns
    -------
    str
        The precision before.  Used as ``with ag_matmul_precision(name):`` it comes back on exit.

    Examples
    --------
    >>> with ag.ag_matmul_precision("high"):
    ...     print(ag.ag_matmul_precision(), ag.ag_matmul([[1.0, 2.0]], [[3.0], [4.0]]).item())
    high 11.0
    """
    previous = PreviousSetting(Backend.settings.precision, partial(setattr, Backend.settings, "precision"), name)
    if name is None:
        return previous
    if name not in _NAMES:
        raise DtypeError(f"ag_matmul_precision: there is no precision {name!r}; use 'highest', 'high' or 'medium'.")
    for backend in open_backends():
        backend.refuse_while_recording("changes the precision of products")
    Backend.settings.precision = name
    return previous
