"""The command line: `python -m ag devices` lists devices, `doctor` examines them, `launch` starts ranks of a script.

For `devices` every device computes one small product, so a device in the table without a complaint below it works.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ag import __version__
from ag.engine.device import backend_of
from ag.engine.registry import list_devices, missing_devices, preferred_devices
from ag.errors import DeviceError
from ag.log import log
from ag.tools.device_table import LEGEND, UnwritableError, device_table, show
from ag.tools.doctor import doctor
from ag.tools.probe import fault_of


@contextmanager
def without_log() -> Iterator[None]:
    """Log no warnings: a report lists itself what devices lack."""
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def devices() -> int:
    """Print the table of devices; return the number of those that do not work."""
    infos, cards = list_devices(), list_devices(accelerators_only=True)
    show(f"{device_table(infos)}\n\n{LEGEND}")
    if not cards:
        show("\n".join(["\nOnly the CPU can be used:", *missing_devices()]))
    try:
        show(f"\nUsed where no device is named: {', '.join(info.name for info in preferred_devices()) or 'cpu'}.")
    except DeviceError as error:  # of the environment variable that chooses
        show(f"\n{error}")
    faults = {info.name: fault_of(info.name) for info in infos}
    complaints = [f"{name} does not work: {fault}" for name, fault in faults.items() if fault]
    working = [info.name for info in infos if info not in cards and not faults[info.name]]
    for name in working:  # the processor only: examining a card takes seconds, and is the doctor's
        for lacking in backend_of(name).examine():
            show(f"\n{name}: {lacking.found}; {lacking.remedy}.")
    show("\n" + ("\n".join(complaints) or "Every device computed a test product correctly."))
    return len(complaints)


def complain(text: str) -> None:
    """Print a text on stderr, if that can be written."""
    with suppress(OSError):
        show(text, "stderr")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``launch``."""
    parser.add_argument("-n", dest="ranks", type=int, metavar="N", help="ranks (at most, where hosts are named)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="a:2,b:2", help="hosts, and how many ranks each may have; default: this one")
    where.add_argument("--discover", metavar="./hosts.sh", help="a script that prints such hosts, one in a line; the "
                       "job grows when it lists more")
    parser.add_argument("--min-ranks", type=int, default=0, metavar="K", help="go on with K ranks, also where half of "
                        "the hosts or more do not answer")
    parser.add_argument("--max-restarts", type=int, default=3, metavar="R", help="how often a job that was lost is "
                        "started again (default: 3)")
    parser.add_argument("script", help="train.py, as for python")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return 0 if done, 1 if a device does not work or the output cannot be written, or a job's status.

    A reader that leaves early, such as ``head``, is no fault: 141, as of a program that SIGPIPE ends.
    """
    parser = argparse.ArgumentParser(prog="python -m ag", description="Automatic differentiation and data-parallel "
                                     "training on all devices of a machine together.")
    parser.add_argument("--version", action="version", version=f"ag {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("devices", help="list the devices, check each, say what is missing")
    examined = commands.add_parser("doctor", help="examine devices, their precision and the transport between them")
    examined.add_argument("--json", action="store_true", help="for programs")
    add_arguments(commands.add_parser("launch", help="start the ranks of a script, and again if they are lost"))
    options = parser.parse_args(arguments)
    if options.command == "launch":
        from ag.tools.launcher.launch import launch  # of POSIX systems

        try:
            return launch(options)
        except ValueError as error:
            complain(str(error))
            return 2
    try:
        if options.command is None:
            show(parser.format_help().rstrip())
            return 0
        with without_log():
            if options.command == "doctor":
                found = doctor()
                show(json.dumps(found.as_dict(), indent=1) if options.json else str(found))
                return 0 if found.healthy else 1
            return 1 if devices() else 0
    except UnwritableError as error:
        with suppress(OSError, ValueError, AttributeError):  # or Python would fail at its end, with what is buffered
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error.__cause__, BrokenPipeError):
            return 141
        complain(f"ag: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
