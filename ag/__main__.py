"""The command line: commands that list, examine and test devices and report on them, and `launch` for ranks.

For `devices` every device computes one small product, so a device in the table without a complaint below it works.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from ag import __version__
from ag.engine.device import backend_of
from ag.engine.registry import list_devices, missing_devices
from ag.log import log
from ag.tools.device_table import LEGEND, UnwritableError, chosen, device_table, setting_faults, show
from ag.tools.doctor import examine, fault_of
from ag.tools.selftest import Outcome, report, selftest


def devices(options: argparse.Namespace) -> int:
    """Print the table of devices; return 1 if one does not work, or a variable of the environment is wrong."""
    infos, cards, wrong = list_devices(), list_devices(accelerators_only=True), setting_faults()
    if options.json:
        listed = [{**info._asdict(), "fault": fault_of(info.name)} for info in infos]
        show(json.dumps({"devices": listed, "missing": missing_devices(), "chosen": chosen(), "faults": wrong},
                        indent=1))
        return 1 if wrong or any(each["fault"] for each in listed) else 0
    show(f"{device_table(infos)}\n\n{LEGEND}")
    if not cards:
        missing = [why for why in missing_devices() if why not in wrong]
        show("\n".join(["\nOnly the CPU can be used:" if infos else "\nNo device can be used:", *missing]))
    used = chosen()
    show("\n" + "\n".join(wrong or [f"Used where no device is named: {used['default']}."]))
    if (names := used.get("dp_train", [])) not in ([], [used.get("default")]):
        show(f"dp_train uses {', '.join(names)}.")
    faults = {info.name: fault_of(info.name) for info in infos}
    complaints = [f"{name} does not work: {fault}" for name, fault in faults.items() if fault and fault not in wrong]
    working = [info.name for info in infos if info not in cards and not faults[info.name]]
    for name in working:  # the processor only: examining a card takes seconds, and is the doctor's
        for lacking in backend_of(name).examine():
            show(f"\n{name}: {lacking.found}; {lacking.remedy}.")
    if complaints or (infos and not any(faults.values())):
        show("\n" + ("\n".join(complaints) or "Every device computed a test product correctly."))
    return 1 if complaints or wrong else 0


def diagnose(options: argparse.Namespace) -> int:
    """Print what the doctor finds; return 1 if something does not work."""
    found = examine((lambda text: None) if options.json else show)
    show(json.dumps(found.as_dict(), indent=1) if options.json else found.rest())
    return 0 if found.healthy else 1


def test(options: argparse.Namespace) -> int:
    """Print the outcome of each check of the selftest; return 1 if one is wrong, or nothing was tested."""
    names = options.device or [info.name for info in list_devices()]
    if not (options.json or options.device):
        show(f"{device_table(list_devices())}\n\nDevices of kind cpu compute on the processor.\n")
    checks = [outcome if options.json else told(outcome) for outcome in selftest(names)]
    wrong, faults = sum(bool(check.fault) for check in checks), setting_faults()
    passed = bool(checks) and not (wrong or faults)
    show(json.dumps({"passed": passed, "checks": [check._asdict() for check in checks], "faults": faults}, indent=1)
         if options.json else "\n".join(["", *faults, f"{wrong} of {len(checks)} checks failed." if checks else
                                         "No device was tested."]))
    return 0 if passed else 1


def told(outcome: Outcome) -> Outcome:
    """Print the outcome of a check."""
    fault = f"\n       {outcome.fault}" if outcome.fault else ""
    show(f"{'WRONG' if fault else 'ok':7}{outcome.device:10}{outcome.check:20}{outcome.seconds:6.2f} s{fault}")
    return outcome


def describe(options: argparse.Namespace) -> int:
    """Write a report on the devices into a file; return 1 if a variable of the environment is wrong."""
    try:
        Path(options.file).open("a").close()  # before a minute of work
        show("Each device is tested, examined and measured, in about a minute.")
        Path(options.file).write_text(json.dumps(report(told), indent=1) + "\n", "utf-8")
    except UnwritableError:
        raise
    except OSError as error:
        raise UnwritableError(f"{options.file} cannot be written: {error.strerror}.") from error
    faults = setting_faults()
    show("\n".join(["", *faults, f"{options.file} is written. It holds no names and no paths; please "
                    f"attach it to an issue of the project."]))
    return 1 if faults else 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``launch``."""
    parser.add_argument("-n", dest="ranks", type=int, metavar="N", help="ranks (at most, where hosts are named)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="a:2,b:2", help="hosts, and how many ranks each may have; default: this one")
    where.add_argument("--discover", metavar="./hosts.sh", help="a script that prints such hosts, one in a line; the "
                       "job grows when it lists more")
    parser.add_argument("--min-ranks", type=int, default=0, metavar="K", help="go on with K ranks, also where half of "
                        "the hosts or more do not answer")
    parser.add_argument("--max-restarts", type=int, default=3, metavar="R", help="restarts of a lost job (default: 3)")
    parser.add_argument("script", help="train.py, as for python")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


COMMANDS = {"devices": devices, "doctor": diagnose, "selftest": test, "report": describe}


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return 0 if done, 1 if a device does not work or the output cannot be written, or a job's status.

    A reader that leaves early, such as ``head``, is no fault: 141, as of a program that SIGPIPE ends.
    """
    parser = argparse.ArgumentParser(prog="python -m ag", description="Automatic differentiation and data-parallel "
                                     "training on all devices of a machine together.")
    parser.add_argument("--version", action="version", version=f"ag {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    listed = commands.add_parser("devices", help="list the devices, check each, say what is missing")
    examined = commands.add_parser("doctor", help="examine devices, their precision and the transport between them")
    tested = commands.add_parser("selftest", help="compare what each device computes with numpy, in half a minute")
    tested.add_argument("--device", action="append", metavar="NAME", help="only this one; may be repeated")
    for each in (listed, examined, tested):
        each.add_argument("--json", action="store_true", help="for programs")
    described = commands.add_parser("report", help="write selftest, doctor and a benchmark into a file for the project")
    described.add_argument("file", nargs="?", default="ag-report.json", metavar="FILE", help="default: ag-report.json")
    add_arguments(commands.add_parser("launch", help="start the ranks of a script, and again if they are lost"))
    options = parser.parse_args(arguments)
    if options.command == "launch":
        from ag.tools.launcher.launch import launch  # of POSIX systems

        try:
            return launch(options)
        except ValueError as error:
            with suppress(OSError):
                show(str(error), "stderr")
            return 2
    try:
        if options.command is None:
            show(parser.format_help().rstrip())
            return 0
        before = log.level
        log.setLevel(logging.ERROR)  # a report lists itself what devices lack
        try:
            return COMMANDS[options.command](options)
        finally:
            log.setLevel(before)
    except UnwritableError as error:
        with suppress(OSError, ValueError, AttributeError):  # or Python would fail at its end, with what is buffered
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error.__cause__, BrokenPipeError):
            return 141
        with suppress(OSError):
            show(f"ag: {error}", "stderr")
        return 1


if __name__ == "__main__":
    sys.exit(main())
