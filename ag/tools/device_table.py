"""Devices as a table, ggmlR's functions about Vulkan devices, and what is used by default or set wrongly."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ag.engine.backend import DeviceInfo
from ag.engine.device import ag_default_device, default_devices
from ag.engine.registry import devices_of, say_once, unusable_devices
from ag.errors import AgError, DeviceError, milliseconds, switched_on
from ag.log import aligned


def ag_vulkan_devices() -> list[DeviceInfo]:
    """Return the Vulkan devices of this machine.

    Reference: ggmlR ``ggml_vulkan_list_devices``.

    Returns
    -------
    list of DeviceInfo
        In driver order, so ``"vulkan:k"`` is entry k; software drivers (kind ``"cpu"``), which are used by name only,
        and a card under its second driver are in it, too.  Empty if the Vulkan extension, its kernels, a Vulkan loader
        or a driver is missing (`ag_vulkan_status` says which).

    Examples
    --------
    >>> names = [d.name for d in ag.ag_vulkan_devices()]
    """
    for why in unusable_devices():
        say_once(f"ag_vulkan_devices: none counts, as none has working kernels. {why}")
    return devices_of("vulkan")[0]


def ag_vulkan_device_count() -> int:
    """Count the Vulkan devices.

    Reference: ggmlR ``ggml_vulkan_device_count``.

    Returns
    -------
    int

    Examples
    --------
    >>> ag.ag_vulkan_device_count() >= 0
    True
    """
    return len(ag_vulkan_devices())


def ag_vulkan_status() -> None:
    """Print a table of the Vulkan devices, or what is missing and how to get it.

    Reference: ggmlR ``ggml_vulkan_status``.

    Examples
    --------
    >>> ag.ag_vulkan_status()  # doctest: +SKIP
    """
    devices, missing = devices_of("vulkan")
    show(device_table(devices) if devices else missing)


# the same functions under ggmlR's names
ggml_vulkan_device_count = ag_vulkan_device_count
ggml_vulkan_list_devices = ag_vulkan_devices
ggml_vulkan_status = ag_vulkan_status

LEGEND = """\
features: f16 f64 i8 i16 i64 are element types that kernels can compute with besides f32, atomic adds floats in memory,
matrix is matrix units; ag.ag_vulkan_devices() has the full list."""

# Names in the table of those features that decide which kernels a device can run.
_SHORT_FEATURES = {
    "float16": "f16", "float64": "f64", "int8": "i8", "int16": "i16", "int64": "i64",
    "atomic_float32_add": "atomic", "cooperative_matrix": "matrix",
}
_PRODUCT_WIDTH = 28  # characters; the table then fits 120 columns


def device_table(devices: Sequence[DeviceInfo]) -> str:
    rows = [("device", "kind", "product", "vendor", "driver", "memory", "features")]
    for d in devices:
        features = [short for name, short in _SHORT_FEATURES.items() if name in d.features]
        product = d.description if len(d.description) <= _PRODUCT_WIDTH else d.description[: _PRODUCT_WIDTH - 3] + "..."
        rows.append((d.name, d.kind, product, d.vendor, d.driver, f"{d.memory_bytes / 2**30:.1f} GiB",
                     " ".join(features) or "-"))
    return aligned(rows, len(rows[0]))


def chosen() -> dict[str, str | list[str]]:
    """Return what is used where no device is named, by whom, or the error of an environment variable."""
    try:
        return {"default": ag_default_device(), "dp_train": default_devices()}
    except AgError as error:
        return {"error": str(error)}


_SWITCHES = ("AG_NATIVE", "AG_SOFTWARE", "AG_TUNE", "AG_SHADOW", "AG_TRACE", "AG_BARRIER_ALL", "AG_SUBMIT_MS")


def setting_faults() -> list[str]:
    """Return what is wrong with variables of the environment, also with those that no device here reads."""
    faults = [text for key, text in chosen().items() if key == "error" and isinstance(text, str)]
    for name in _SWITCHES:
        try:
            (milliseconds if name == "AG_SUBMIT_MS" else switched_on)(name)
        except DeviceError as error:
            faults.append(str(error))
    if (asked := os.environ.get("AG_VULKAN_DEVICES")) and not devices_of("vulkan")[0]:
        faults.append(f"AG_VULKAN_DEVICES is {asked!r}, and there is no Vulkan device; unset it.")
    return list(dict.fromkeys(faults))


class UnwritableError(OSError):
    """Raised where a stream takes no text: its reader has gone, or its disk is full."""


def show(text: str, stream: str = "stdout") -> None:
    """Print a text on a stream of `sys`, with "?" for what its encoding lacks; do nothing where there is none."""
    file = getattr(sys, stream)
    if file is None or getattr(file, "closed", False):
        return
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), file=file, flush=True)
    except OSError as error:
        raise UnwritableError(f"the output cannot be written: {error.strerror}.") from error
