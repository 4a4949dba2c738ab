"""Devices by name, and which one is the current default.

The only place that turns a name into a backend.  Backends are imported when first asked for, so `import ag` needs
neither Kompute nor a driver.  A backend lives as long as the process (a Vulkan device wants exactly one manager);
the default device and element type belong to the running context, so threads do not disturb each other.
"""

from __future__ import annotations

import atexit
import importlib
import threading
from contextlib import ExitStack
from contextvars import ContextVar
from types import TracebackType

from ag.engine.backend import Backend
from ag.engine.devices import ag_vulkan_devices
from ag.engine.dtype import F32, DType, as_dtype
from ag.errors import DeviceError

__all__ = [
    "ag_default_device",
    "ag_default_dtype",
    "ag_device",
    "ag_dtype",
    "ag_shutdown",
    "ag_synchronize",
    "backend_of",
    "default_backend",
    "default_dtype",
    "open_backends",
]

_device: ContextVar[str] = ContextVar("ag_device", default="cpu")
_dtype: ContextVar[DType] = ContextVar("ag_dtype", default=F32)

# Process-wide by nature: a device has one backend, whoever asks.
_backends: dict[str, Backend] = {}
_lock = threading.Lock()


class _Previous(str):
    """The setting before a change; as a context manager it is restored on exit."""

    _variable: ContextVar[str]

    def __new__(cls, name: str, variable: ContextVar[str]) -> _Previous:
        previous = super().__new__(cls, name)
        previous._variable = variable
        return previous

    def __enter__(self) -> str:
        return str(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._variable.set(str(self))


# ---------------------------------------------------------------------------------------------- names


def _split(name: str) -> tuple[str, int]:
    family, _, index = name.partition(":")
    if family not in ("cpu", "vulkan") or not (index.isdigit() or (index == "" and ":" not in name)):
        raise DeviceError(f"ag_device: unknown device {name!r}; use 'cpu', 'cpu:1', 'vulkan:0', 'gpu' or 'auto'.")
    return family, int(index or 0)


def canonical(name: str) -> str:
    """The one spelling of a device's name; resolves ``"gpu"`` and ``"auto"``."""
    if not isinstance(name, str):
        raise DeviceError(f"ag_device: a device is named by a string, and {name!r} was given; use 'cpu' or 'vulkan:0'.")
    if name in ("gpu", "auto"):
        best = _best_vulkan()
        if best is None and name == "gpu":
            raise DeviceError("ag_device: 'gpu' was asked for and no Vulkan device was found; "
                              "run `python -m ag devices` to see what is missing, or use 'auto' or 'cpu'.")
        return best or "cpu"
    family, index = _split(name)
    if family == "cpu":
        return "cpu" if index == 0 else f"cpu:{index}"
    return f"vulkan:{index}"


def _best_vulkan() -> str | None:
    rank = {"discrete": 0, "integrated": 1, "virtual": 2}
    found = sorted(ag_vulkan_devices(), key=lambda d: rank.get(d.kind, 3))  # stable: lowest index first
    return found[0].name if found else None


def backend_of(name: str) -> Backend:
    """The backend of a device, created on first use.

    Raises
    ------
    DeviceError
        If the name is unknown or the device is not there.
    """
    found = _backends.get(name)
    if found is not None:
        return found
    name = canonical(name)
    family, index = _split(name)
    with _lock:
        if name not in _backends:
            module, kind = {
                "cpu": ("ag.engine.backends.cpu.backend", "NumpyBackend"),
                "vulkan": ("ag.engine.backends.vulkan.backend", "VulkanBackend"),
            }[family]
            _backends[name] = getattr(importlib.import_module(module), kind)(index)
        return _backends[name]


def open_backends() -> list[Backend]:
    """The backends of all devices in use."""
    return list(_backends.values())


def default_backend() -> Backend:
    """The backend of the current default device."""
    return backend_of(_device.get())


def default_dtype() -> DType:
    """The current default element type."""
    return _dtype.get()


# ---------------------------------------------------------------------------------------------- public


def ag_device(name: str) -> _Previous:
    """Set the default device.

    Parameters
    ----------
    name : str
        ``"cpu"``, ``"cpu:1"``, ``"vulkan:0"``, ``"gpu"`` (the best Vulkan device) or ``"auto"`` (gpu if there is one,
        else cpu).

    Returns
    -------
    str
        The previous default.  Used as ``with ag_device(name):`` the previous default comes back on exit.

    Raises
    ------
    DeviceError
        If the name is unknown or the device is not there; the default is unchanged.

    Notes
    -----
    The default belongs to the running context: a new thread starts with ``"cpu"``.

    References
    ----------
    ggmlR ``ag_device``.

    Examples
    --------
    >>> import ag
    >>> with ag.ag_device("cpu:1"):
    ...     print(ag.ag_tensor([1.0]).device)
    cpu:1
    """
    backend = backend_of(name)
    previous = _Previous(_device.get(), _device)
    _device.set(backend.name)
    return previous


def ag_default_device() -> str:
    """Name of the current default device.

    Returns
    -------
    str
        Such as ``"cpu"`` or ``"vulkan:0"``.

    References
    ----------
    ggmlR ``ag_default_device``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_default_device()
    'cpu'
    """
    return _device.get()


def ag_dtype(name: str) -> str:
    """Set the default element type of new tensors.

    Parameters
    ----------
    name : str
        ``"f32"``, ``"f16"``, ``"bf16"``, or ``"f64"`` on CPU devices.

    Returns
    -------
    str
        The previous default.

    Raises
    ------
    DtypeError
        If the type is unknown; the default is unchanged.

    Notes
    -----
    f16 and bf16 are stored in 16 bits on every device and computed with in float32; results are rounded to the
    nearest.  Losses, and all results without axes, are float32.  See docs/mixed_precision.md.

    References
    ----------
    ggmlR ``ag_dtype``.

    Examples
    --------
    >>> import ag
    >>> previous = ag.ag_dtype("f64")
    >>> ag.ag_dtype(previous)
    'f64'
    """
    new = as_dtype(name, "ag_dtype")
    previous = _dtype.get().name
    _dtype.set(new)
    return previous


def ag_default_dtype() -> str:
    """Name of the current default element type.

    Returns
    -------
    str
        Such as ``"f32"``.

    References
    ----------
    ggmlR ``ag_default_dtype``.

    Examples
    --------
    >>> import ag
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

    Raises
    ------
    DeviceError
        If the device was lost.

    Examples
    --------
    >>> import ag
    >>> ag.ag_synchronize()
    """
    for backend in [backend_of(device)] if device is not None else open_backends():
        backend.synchronize()


def ag_shutdown() -> None:
    """Close every device; tensors on them cannot be used any more.

    Notes
    -----
    Called at interpreter exit, so that no driver is torn down in the middle of work.  The next use of a device
    opens it anew.

    Examples
    --------
    >>> import ag
    >>> ag.ag_shutdown()
    """
    with _lock, ExitStack() as closing:  # one that fails does not keep the others open
        for backend in _backends.values():
            closing.callback(backend.close)
        _backends.clear()


atexit.register(ag_shutdown)
