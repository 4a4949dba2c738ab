"""The command line: `python -m ag devices` lists what there is to train on; `python -m ag doctor` examines it;
`python -m ag launch` starts the ranks of a script.

For `devices` every device computes one small product, so a device in the table without a complaint below it works.
Knows what to ask and how to print it; not how devices are examined or ranks started, which `ag.tools` knows.  Users
call it; nothing imports it.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ag import __version__
from ag.engine.device import backend_of
from ag.engine.registry import list_devices, missing_devices, preferred_devices
from ag.errors import DeviceError
from ag.tools.device_table import LEGEND, device_table
from ag.tools.doctor import doctor
from ag.tools.launcher.arguments import add_arguments
from ag.tools.probe import fault_of


@contextmanager
def without_log() -> Iterator[None]:
    """Log no warnings: a report says itself what devices lack, and would say it twice."""
    log = logging.getLogger("ag")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def devices() -> int:
    """Print the table of devices; the number of those that do not work."""
    infos, cards = list_devices(), list_devices(accelerators_only=True)
    print(device_table(infos), LEGEND, sep="\n\n")
    if not cards:
        print("\n".join(["\nOnly the CPU can be used:", *missing_devices()]))
    try:
        print(f"\nUsed where no device is named: {', '.join(info.name for info in preferred_devices()) or 'cpu'}.")
    except DeviceError as error:  # of the environment variable that chooses
        print(f"\n{error}")
    faults = {info.name: fault_of(info.name) for info in infos}
    complaints = [f"{name} does not work: {fault}" for name, fault in faults.items() if fault]
    working = [info.name for info in infos if info not in cards and not faults[info.name]]
    for name in working:  # the processor only: examining a card takes seconds, and is the doctor's
        for lacking in backend_of(name).examine():
            print(f"\n{name}: {lacking.found}; {lacking.remedy}.")
    print("\n" + ("\n".join(complaints) or "Every device computed a test product correctly."))
    return len(complaints)


def examine(as_json: bool) -> bool:
    """Print what the doctor found; whether all is well."""
    found = doctor()
    print(json.dumps(found.as_dict(), indent=1) if as_json else found)
    return found.healthy


def start(options: argparse.Namespace) -> int:
    """Launch ranks; the status of the job."""
    from ag.tools.launcher.launch import launch  # of POSIX systems

    try:
        return launch(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 a device does not work; of `launch`, that of the job."""
    parser = argparse.ArgumentParser(prog="python -m ag", description="Automatic differentiation and data-parallel "
                                     "training on all devices of a machine together.")
    parser.add_argument("--version", action="version", version=f"ag {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("devices", help="list the devices, check each, say what is missing")
    examined = commands.add_parser("doctor", help="examine devices, their precision and the transport between them")
    examined.add_argument("--json", action="store_true", help="for programs")
    add_arguments(commands.add_parser("launch", help="start the ranks of a script, and again if they are lost"))
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    if options.command == "launch":
        return start(options)
    with without_log():
        if options.command == "doctor":
            return 0 if examine(options.json) else 1
        return 1 if devices() else 0


if __name__ == "__main__":
    sys.exit(main())
