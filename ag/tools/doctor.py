"""The doctor: examines devices, drivers, precision, transport and packages, and reports what is missing."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass

import numpy as np

import ag.parallel  # noqa: F401  # whole, before a file of it, as in ag/training
from ag.engine.backend import DeviceInfo, Finding
from ag.engine.device import backend_of, is_software
from ag.engine.registry import accelerator_titles, drivers, list_devices, missing_devices
from ag.errors import AgError
from ag.parallel.comm.device_threads import blas_threads
from ag.tools.device_table import device_table
from ag.tools.graphics_cards import card_nodes
from ag.tools.mpi_probe import mpi_report, version_of
from ag.tools.probe import Accuracy, accuracy_of, fault_of
from ag.tools.transport_selftest import Transport, transport_selftest
from ag.version import install_line

_OPTIONAL = {  # distribution: (what is not there without it, how to get it)
    "pillow": ("image folders", install_line("images")),
}


@dataclass(frozen=True)
class Checked:
    """A device: its description, its fault or "", its accuracy, the bytes in use, findings about its driver."""

    info: DeviceInfo
    fault: str
    precision: Accuracy | None
    reserved_bytes: int
    findings: list[Finding]


@dataclass(frozen=True)
class Diagnosis:
    """The findings of `doctor`; printed, they are a report of a page.

    Attributes
    ----------
    system : dict of str to str
        Versions of Python, numpy and the platform, and how many threads numpy's BLAS uses.
    devices : list of Checked
        With ``info``, ``fault`` (empty if it works), ``precision``, ``reserved_bytes`` and ``findings``.  A finding has
        a subject, a verdict (``"ok"``, ``"note"`` or ``"problem"``) and, where that is not ``"ok"``, a remedy.
    drivers : list of Finding
        A line for every driver that is there: what it brings, or why it cannot be used.
    transport : list of Transport
        Of every ordered pair of devices that work.
    packages : dict of str to (str or None)
        Optional packages and their versions.
    mpi : str
        The MPI over which processes train together: library, whether it goes on without lost ranks, transports; "" if
        there is none.
    missing : list of str
        What is not there, what follows from that, and how to get it.
    """

    system: dict[str, str]
    devices: list[Checked]
    drivers: list[Finding]
    transport: list[Transport]
    packages: dict[str, str | None]
    mpi: str
    missing: list[str]

    @property
    def healthy(self) -> bool:
        """True if every device works, none has a problem, and every transport is right.

        Missing packages and drivers without a device are no faults.
        """
        faulty = any(d.fault or any(x.verdict == "problem" for x in d.findings) for d in self.devices)
        return not faulty and all(link.correct for link in self.transport)

    def as_dict(self) -> dict[str, object]:
        """Return the same as numbers, text, lists and dictionaries, for `json.dumps`."""
        devices = [{**asdict(d), "info": d.info._asdict(), "findings": [x._asdict() for x in d.findings]}
                   for d in self.devices]
        return {**asdict(self), "devices": devices, "drivers": [x._asdict() for x in self.drivers],
                "transport": [link._asdict() for link in self.transport], "healthy": self.healthy}

    def __str__(self) -> str:
        parts = [", ".join(f"{name} {number}" for name, number in self.system.items()),
                 device_table([d.info for d in self.devices]),
                 "\n".join(_judged(not d.fault, f"{d.info.name}: {_said(d)}") for d in self.devices),
                 *(f"{d.info.name}, {d.info.description}:\n{_found(d.findings)}" for d in self.devices if d.findings),
                 *([f"Drivers:\n{_found(self.drivers)}"] if self.drivers else []),
                 "\n".join(map(_link, self.transport)) or "One device: there is nothing to move values between.",
                 f"MPI: {self.mpi or 'none'}",
                 "\n".join(self.missing) or "Nothing is missing.",
                 *self._counted(),
                 "Healthy: every device works." if self.healthy else "NOT HEALTHY: see the faults above."]
        return "\n\n".join(parts)

    def _counted(self) -> list[str]:
        verdicts = [x.verdict for found in (self.drivers, *(d.findings for d in self.devices)) for x in found]
        counts = [f"{count} {verdict}{'s' * (count > 1)}" for verdict in ("problem", "note")
                  if (count := verdicts.count(verdict))]
        return [f"{' and '.join(counts)} above, each with a remedy behind the arrow."] if counts else []


def doctor() -> Diagnosis:
    """Examine this machine: devices, drivers, precision, transport between devices, and what is missing.

    Returns
    -------
    Diagnosis
        To be printed, or read by its attributes.

    Notes
    -----
    Takes a few seconds: every device computes with a few thousand numbers and sends some megabytes to every other.
    Without Vulkan the report is about the CPU and says what to install.

    References
    ----------
    ggmlR ``ggml_vulkan_status`` and its transport self-test, in one.

    Examples
    --------
    >>> import ag
    >>> ag.doctor().devices[0].info.name
    'cpu'
    """
    devices = [_checked(info) for info in list_devices()]
    packages = {name: version_of(name) for name in _OPTIONAL}
    missing = missing_devices() + _without_a_card()
    missing += [f"{name} is not installed, so {what} cannot be read; to get it: {how}"
                for name, (what, how) in _OPTIONAL.items() if packages[name] is None]
    system = {"Python": platform.python_version(), "numpy": np.__version__, sys.platform: platform.release()}
    system |= {f"BLAS threads ({library})": str(count) for library, count in blas_threads()}
    mpi, lacks = mpi_report()
    missing += lacks
    working = [d.info.name for d in devices if not d.fault]
    return Diagnosis(system, devices, drivers(), transport_selftest(working), packages, mpi, missing)


def _checked(info: DeviceInfo) -> Checked:
    fault = fault_of(info.name)
    if not fault:
        try:
            precision, device = accuracy_of(info.name), backend_of(info.name)
            return Checked(info, "", precision, device.arena.stats().reserved, device.examine())
        except AgError as error:
            fault = str(error)
    return Checked(info, fault, None, 0, [])


def _without_a_card() -> list[str]:
    """Return the sentences for a machine whose accelerators are all software, or that has none."""
    found = list_devices(accelerators_only=True)
    if not all(map(is_software, found)):
        return []
    names = ", ".join(info.name for info in found)
    software = (f"All {accelerator_titles()} devices ({names}) are software: they compute on the processor, more "
                f"slowly than the device cpu does, and are used only by name, or with AG_SOFTWARE=1. No graphics card "
                f"was found.")
    return [*([software] if found else []), *card_nodes()]


def _said(device: Checked) -> str:
    if device.precision is None:
        return f"DOES NOT WORK: {device.fault}"
    p = device.precision
    exact = [f"{name} {'exact' if ulp == 0 else f'within {ulp} ulp'}"
             for name, ulp in (("division", p.div_ulp), ("square root", p.sqrt_ulp))]
    return ", ".join([*exact, "fused multiply-add" if p.fma else "separate multiply and add",
                      "denormals kept" if p.denormals else "denormals become zero",
                      f"{device.reserved_bytes / 2**20:.0f} MiB in use here"])


def _judged(well: bool, text: str) -> str:
    return f"{'ok' if well else 'problem':9}{text}"


def _found(findings: list[Finding]) -> str:
    """Return a line for each finding, and one for each remedy."""
    lines = []
    for x in findings:
        lines.append(f"  {x.verdict:9}{x.subject:18}{x.found}")
        if x.remedy:
            lines.append(f"  {'':27}-> {x.remedy}")
    return "\n".join(lines)


def _link(link: Transport) -> str:
    found = f"correct, {link.gb_per_s:.1f} GB/s" if link.correct else f"WRONG: {link.fault}"
    return _judged(link.correct, f"{link.source} to {link.target}: {found}")
