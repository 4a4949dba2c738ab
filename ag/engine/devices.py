"""Which Vulkan devices this machine has, and what is missing where there are none.

Asking loads Kompute; nothing else here does.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from ag.engine.backend import DeviceInfo
from ag.errors import DeviceError

__all__ = ["ag_vulkan_device_count", "ag_vulkan_devices", "ag_vulkan_status", "device_table", "devices_or_why_none"]


def ag_vulkan_devices() -> list[DeviceInfo]:
    """The Vulkan devices of this machine.

    Returns
    -------
    list of DeviceInfo
        In driver order, so ``"vulkan:k"`` is entry k; empty if Kompute, a Vulkan loader or a driver is missing
        (`ag_vulkan_status` says which).

    References
    ----------
    ggmlR ``ggml_vulkan_list_devices``.

    Examples
    --------
    >>> import ag
    >>> names = [d.name for d in ag.ag_vulkan_devices()]
    """
    return devices_or_why_none()[0]


def devices_or_why_none() -> tuple[list[DeviceInfo], str]:
    """The devices; if there are none, what is missing and how to get it."""
    loader = importlib.import_module("ag.engine.backends.vulkan.loader")
    try:
        return list(loader.list_devices()), ""
    except DeviceError as error:
        return [], str(error)


def ag_vulkan_device_count() -> int:
    """How many Vulkan devices there are.

    Returns
    -------
    int

    References
    ----------
    ggmlR ``ggml_vulkan_device_count``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_vulkan_device_count() >= 0
    True
    """
    return len(ag_vulkan_devices())


def ag_vulkan_status() -> None:
    """Print a table of the Vulkan devices, or what is missing and how to get it.

    References
    ----------
    ggmlR ``ggml_vulkan_status``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_vulkan_status()  # doctest: +SKIP
    """
    devices, missing = devices_or_why_none()
    print(device_table(devices) if devices else missing)


# What the table calls the features that decide which kernels a device can run; DeviceInfo.features has all of them.
_SHORT_FEATURES = {
    "float16": "f16", "float64": "f64", "int8": "i8", "int16": "i16", "int64": "i64",
    "atomic_float32_add": "atomic", "cooperative_matrix": "matrix",
}
_PRODUCT_WIDTH = 28  # characters; the table then fits 120 columns


def device_table(devices: Sequence[DeviceInfo]) -> str:
    """Devices as an aligned text table."""
    rows = [("device", "kind", "product", "vendor", "driver", "memory", "features")]
    for d in devices:
        features = [short for name, short in _SHORT_FEATURES.items() if name in d.features]
        product = d.description if len(d.description) <= _PRODUCT_WIDTH else d.description[: _PRODUCT_WIDTH - 1] + "…"
        rows.append((d.name, d.kind, product, d.vendor, d.driver, f"{d.memory_bytes / 2**30:.1f} GiB",
                     " ".join(features) or "-"))
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows)
