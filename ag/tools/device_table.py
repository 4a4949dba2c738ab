"""The devices of this machine as a table, and ggmlR's functions about Vulkan devices.

Knows devices by what the registry says of them, and opens none.  Names the Vulkan backend, because ggmlR's functions
do; outside `ag/engine/backends` only their exports (`ag`) and the messages of `ag.names` do so, too.  Users,
`ag.doctor` and the command line call it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ag.engine.backend import DeviceInfo
from ag.engine.registry import devices_of, say_once, unusable_devices

__all__ = ["LEGEND", "ag_vulkan_device_count", "ag_vulkan_devices", "ag_vulkan_status", "device_table",
           "ggml_vulkan_device_count", "ggml_vulkan_list_devices", "ggml_vulkan_status"]


def ag_vulkan_devices() -> list[DeviceInfo]:
    """The Vulkan devices of this machine.

    Returns
    -------
    list of DeviceInfo
        In driver order, so ``"vulkan:k"`` is entry k; software drivers (kind ``"cpu"``), which are used by name only,
        and a card under its second driver are in it, too.  Empty if the Vulkan extension, its kernels, a Vulkan loader
        or a driver is missing (`ag_vulkan_status` says which).

    References
    ----------
    ggmlR ``ggml_vulkan_list_devices``.

    Examples
    --------
    >>> import ag
    >>> names = [d.name for d in ag.ag_vulkan_devices()]
    """
    for why in unusable_devices():
        say_once(f"ag_vulkan_devices: none counts, as none has working kernels. {why}")
    return devices_of("vulkan")[0]


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
    devices, missing = devices_of("vulkan")
    print(device_table(devices) if devices else missing)


# the same functions under ggmlR's names
ggml_vulkan_device_count = ag_vulkan_device_count
ggml_vulkan_list_devices = ag_vulkan_devices
ggml_vulkan_status = ag_vulkan_status

LEGEND = """\
features: f16 f64 i8 i16 i64 are element types that kernels can compute with besides f32, atomic adds floats in memory,
matrix is matrix units; ag.ag_vulkan_devices() has the full list."""

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
