"""The command line: `python -m ag devices` lists what there is to train on; `python -m ag doctor` examines it.

For `devices` every device computes one small product, so a device in the table without a complaint below it works.
Called by users only; nothing imports it.
"""

from __future__ import annotations

import argparse
import json
import sys

from ag import __version__
from ag.engine.backend import DeviceInfo
from ag.engine.device import backend_of
from ag.engine.devices import ag_vulkan_devices, ag_vulkan_status, device_table
from ag.tools.doctor import doctor
from ag.tools.probe import fault_of

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
    complaints = [f"{info.name} does not work: {fault}" for info in found if (fault := fault_of(info.name))]
    print("\n" + ("\n".join(complaints) or "Every device computed a test product correctly."))
    return len(complaints)


def examine(as_json: bool) -> bool:
    """Print what the doctor found; whether all is well."""
    found = doctor()
    print(json.dumps(found.as_dict(), indent=1) if as_json else found)
    return found.healthy


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 a device does not work."""
    parser = argparse.ArgumentParser(prog="python -m ag", description="Automatic differentiation and data-parallel "
                                     "training on Vulkan devices and on the CPU.")
    parser.add_argument("--version", action="version", version=f"ag {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("devices", help="list the devices, check each, say what is missing")
    examined = commands.add_parser("doctor", help="examine devices, their precision and the transport between them")
    examined.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    if options.command == "doctor":
        return 0 if examine(options.json) else 1
    return 1 if devices() else 0


if __name__ == "__main__":
    sys.exit(main())
