"""The command line: `python -m ag devices` says what there is to train on, and what is missing.

Every device computes one small product, so a device in the table without a complaint below it works.  Called by users
only; nothing imports it.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from ag import __version__
from ag.backend import DeviceInfo
from ag.create import ag_tensor
from ag.device import backend_of
from ag.errors import AgError
from ag.ops.linalg import ag_matmul
from ag.vulkan_devices import ag_vulkan_devices, ag_vulkan_status, device_table

_LEGEND = """
features: f16 f64 i8 i16 i64 are element types that kernels can compute with besides f32, atomic adds floats in memory,
matrix is matrix units; ag.ag_vulkan_devices() has the full list."""


def devices() -> int:
    """Print the table of devices; the number of those that do not work."""
    vulkan = ag_vulkan_devices()
    found: list[DeviceInfo] = [backend_of("cpu").info, *vulkan]
    print(device_table(found))
    print(_LEGEND)
    if not vulkan:
        print("\nOnly the CPU can be used:")
        ag_vulkan_status()  # which says what is missing and how to get it
    complaints = [f"{info.name} does not work: {fault}" for info in found if (fault := _fault(info.name))]
    print("\n" + ("\n".join(complaints) or "Every device computed a test product correctly."))
    return len(complaints)


def _fault(device: str) -> str:
    """What goes wrong when the device multiplies two matrices; empty if nothing does."""
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    try:
        product = ag_matmul(ag_tensor(a, device=device), ag_tensor(b, device=device)).numpy()
    except AgError as error:
        return str(error)
    return "" if np.array_equal(product, a @ b) else f"a matrix product is {product.tolist()}, not {(a @ b).tolist()}"


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 a device does not work."""
    parser = argparse.ArgumentParser(prog="python -m ag", description="Automatic differentiation and data-parallel "
                                     "training on Vulkan devices and on the CPU.")
    parser.add_argument("--version", action="version", version=f"ag {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("devices", help="list the devices, check each, say what is missing")
    if parser.parse_args(arguments).command is None:
        parser.print_help()
        return 0
    return 1 if devices() else 0


if __name__ == "__main__":
    sys.exit(main())
