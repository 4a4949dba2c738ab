"""The doctor: examines devices, drivers, precision, transport, packages and MPI, and reports what is missing.

Vulkan leaves drivers much freedom, such as division within 2.5 ulps, so ops on small tensors are compared with numpy.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from itertools import permutations
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

import ag.parallel  # noqa: F401  # whole, before a file of it, as in ag/training
from ag.autograd.create import ag_tensor
from ag.engine.backend import DeviceInfo, Finding
from ag.engine.device import ag_synchronize, backend_of, is_software
from ag.engine.registry import accelerator_titles, drivers, list_devices, missing_devices
from ag.errors import AgError
from ag.ops import ag_div, ag_matmul, ag_mul, ag_sqrt, ag_to_device
from ag.parallel.comm.device_threads import blas_threads
from ag.parallel.comm.mpi_settings import find_mpiexec, rank_environment
from ag.tools.device_table import device_table, setting_faults
from ag.version import install_line

_SAMPLES = 4096  # numbers that show the precision
_TRIES, _ELEMENTS = 3, 1 << 20  # transfers, of which the quickest counts, and numbers in one


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of a device in float32; distances from the correctly rounded result are the largest, in ulps."""

    div_ulp: int
    sqrt_ulp: int
    fma: bool  # matrix products add to the running sum without rounding the product first
    denormals: bool  # numbers below 1.2e-38 are kept, and do not become zero


class Transport(NamedTuple):
    """The result of sending a tensor from one device to another."""

    source: str
    target: str
    correct: bool
    gb_per_s: float
    fault: str = ""


@dataclass(frozen=True)
class Checked:
    """A device: its description, its fault or "", its accuracy, the bytes in use, findings about its driver."""

    info: DeviceInfo
    fault: str
    precision: Accuracy | None = None
    reserved_bytes: int = 0
    findings: Sequence[Finding] = ()


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
        What every driver brings, or why it cannot be used.
    transport : list of Transport
        Of every ordered pair of devices that work.
    packages : dict of str to (str or None)
        Optional packages and their versions.
    mpi : str
        The MPI over which processes train together; "" if there is none.
    missing : list of str
        What is not there, what follows from that, and how to get it.
    faults : list of str
        Variables of the environment that are wrong, and what follows from that.
    """

    system: dict[str, str]
    devices: list[Checked]
    drivers: list[Finding]
    transport: list[Transport]
    packages: dict[str, str | None]
    mpi: str
    missing: list[str]
    faults: Sequence[str] = ()

    @property
    def healthy(self) -> bool:
        """True if devices and transports work, and no device or variable has a problem; what is missing is no fault."""
        faulty = any(d.fault or any(x.verdict == "problem" for x in d.findings) for d in self.devices)
        return not (faulty or self.faults) and all(link.correct for link in self.transport)

    def as_dict(self) -> dict[str, object]:
        """Return the same as numbers, text, lists and dictionaries, for `json.dumps`."""
        devices = [{**asdict(d), "info": d.info._asdict(), "findings": [x._asdict() for x in d.findings]}
                   for d in self.devices]
        return {**asdict(self), "devices": devices, "drivers": [x._asdict() for x in self.drivers],
                "transport": [link._asdict() for link in self.transport], "healthy": self.healthy}

    def __str__(self) -> str:
        head = _head(self.system, [d.info for d in self.devices])
        return "\n\n".join([head, *map(_shown, self.devices), self.rest()])

    def rest(self) -> str:
        """Return the report without the part that `examine` says while it goes."""
        parts = [*([f"Drivers:\n{_found(self.drivers)}"] if self.drivers else []),
                 "\n".join(map(_link, self.transport)) or "One device: there is nothing to move values between.",
                 f"MPI: {self.mpi or 'none'}",
                 "\n".join(self.missing) or "Nothing is missing.", *self.faults]
        verdicts = [x.verdict for found in (self.drivers, *(d.findings for d in self.devices)) for x in found]
        if counts := [f"{count} {verdict}{'s' * (count > 1)}" for verdict in ("problem", "note")
                      if (count := verdicts.count(verdict))]:
            parts.append(f"{' and '.join(counts)} above, each with a remedy behind the arrow.")
        return "\n\n".join([*parts, "Healthy: every device works." if self.healthy else
                            "NOT HEALTHY: see the faults above."])


def doctor() -> Diagnosis:
    """Examine this machine: devices, drivers, precision, transport between devices, and what is missing.

    Reference: ggmlR ``ggml_vulkan_status`` and its transport self-test, in one.

    Takes a few seconds: every device computes with a few thousand numbers and sends some megabytes to every other.
    Without Vulkan the report is about the CPU and says what to install.

    Returns
    -------
    Diagnosis
        To be printed, or read by its attributes.

    Examples
    --------
    >>> ag.doctor().devices[0].info.name
    'cpu'
    """
    return examine(lambda text: None)


def examine(say: Callable[[str], object]) -> Diagnosis:
    """Examine this machine, and say what was found of each device when it is known."""
    system = {"Python": platform.python_version(), "numpy": np.__version__, sys.platform: platform.release()}
    system |= {f"BLAS threads ({library})": str(count) for library, count in blas_threads()}
    infos, devices = list_devices(), list[Checked]()
    say(_head(system, infos) + "\n")
    for info in infos:
        devices.append(_checked(info))
        say(_shown(devices[-1]) + "\n")
    missing, packages = missing_devices() + _without_a_card(), {"pillow": version_of("pillow")}
    if packages["pillow"] is None:
        missing.append(f"pillow is not installed, so image folders cannot be read; to get it: {install_line('images')}")
    faults = setting_faults()
    mpi, lacks = mpi_report()
    working = [d.info.name for d in devices if not d.fault]
    return Diagnosis(system, devices, drivers(), transport_selftest(working), packages, mpi,
                     [text for text in missing + lacks if text not in faults], faults)


def _checked(info: DeviceInfo) -> Checked:
    if not (fault := fault_of(info.name)):
        try:
            precision, device = accuracy_of(info.name), backend_of(info.name)
            return Checked(info, "", precision, device.arena.stats().reserved, device.examine())
        except AgError as error:
            fault = str(error)
    return Checked(info, fault)


def _without_a_card() -> list[str]:
    """Return the sentences for a machine whose accelerators are all software, or that has none."""
    found = list_devices(accelerators_only=True)
    if not all(map(is_software, found)):
        return []
    names = ", ".join(info.name for info in found)
    software = (f"All {accelerator_titles()} devices ({names}) are software: they compute on the processor, more "
                f"slowly than the device cpu does, and are used only by name, or with AG_SOFTWARE=1. No graphics card "
                f"was found.")
    return [software, *card_nodes()] if found else card_nodes()


def _head(system: dict[str, str], infos: list[DeviceInfo]) -> str:
    return ", ".join(f"{name} {number}" for name, number in system.items()) + "\n\n" + device_table(infos)


def _shown(device: Checked) -> str:
    p, said = device.precision, [f"DOES NOT WORK: {device.fault}"]
    if p is not None:
        said = [f"{name} {'exact' if ulp == 0 else f'within {ulp} ulp'}"
                for name, ulp in (("division", p.div_ulp), ("square root", p.sqrt_ulp))]
        said += ["fused multiply-add" if p.fma else "separate multiply and add",
                 "denormals kept" if p.denormals else "denormals become zero",
                 f"{device.reserved_bytes / 2**20:.0f} MiB in use here"]
    judged = f"{'problem' if device.fault else 'ok':9}{device.info.name}: {', '.join(said)}"
    return "\n".join([judged, _found(device.findings)]).rstrip()


def _found(findings: Sequence[Finding]) -> str:
    """Return a line for each finding, and one for each remedy."""
    lines = []
    for x in findings:
        lines.append(f"  {x.verdict:9}{x.subject:18}{x.found}")
        if x.remedy:
            lines.append(f"  {'':27}-> {x.remedy}")
    return "\n".join(lines)


def _link(link: Transport) -> str:
    verdict, found = ("ok", f"correct, {link.gb_per_s:.1f} GB/s") if link.correct else (
        "problem", f"WRONG: {link.fault}")
    return f"{verdict:9}{link.source} to {link.target}: {found}"


def fault_of(device: str) -> str:
    """Let the device multiply two matrices; return what goes wrong, or ""."""
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    try:
        product = ag_matmul(ag_tensor(a, device=device), ag_tensor(b, device=device)).numpy()
    except AgError as error:
        return str(error)
    return "" if np.array_equal(product, a @ b) else f"a matrix product is {product.tolist()}, not {(a @ b).tolist()}"


def accuracy_of(device: str) -> Accuracy:
    """Measure the device's accuracy on a few thousand numbers."""
    rng = np.random.default_rng(0)
    a, b = (np.exp(rng.uniform(-20, 20, _SAMPLES)).astype(np.float32) for _ in range(2))
    x, y = ag_tensor(a, device=device), ag_tensor(b, device=device)
    return Accuracy(_distance(ag_div(x, y).numpy(), a / b), _distance(ag_sqrt(x).numpy(), np.sqrt(a)),
                     _fuses(device), _keeps_denormals(device))


def _distance(found: object, exact: object) -> int:
    """Return the largest distance in units in the last place; numbers of one sign are ordered as their bits are."""
    bits = [np.ascontiguousarray(v, np.float32).ravel().view(np.int32).astype(np.int64) for v in (found, exact)]
    return int(np.abs(bits[0] - bits[1]).max())


def _fuses(device: str) -> bool:
    """Return whether a product's rounding error survives in a sum, in either order of the two products."""
    # 64 apart, the products meet in one running sum where several run side by side
    x = np.float32(1 + 2.0**-12)
    for first, second in (((1.0, -x * x), (x, x)), ((x, x), (1.0, -x * x))):
        a, b = np.zeros((16, 128), np.float32), np.zeros((128, 16), np.float32)
        (a[:, 0], b[0]), (a[:, 64], b[64]) = first, second
        if ag_matmul(ag_tensor(a, device=device), ag_tensor(b, device=device)).numpy().any():
            return True
    return False


def _keeps_denormals(device: str) -> bool:
    """Return whether 2^-130, which is subnormal, survives being made and being used."""
    small, factor, back = (ag_tensor([2.0**e], device=device) for e in (-100, -30, 120))
    made = ag_mul(small, factor)
    return made.item() == 2.0**-130 and ag_mul(made, back).item() == 2.0**-10


def transport_selftest(devices: Sequence[str] | None = None, elements: int = _ELEMENTS) -> list[Transport]:
    """Send tensors between all pairs of devices, both ways, and compare checksums.

    ggmlR's transport self-test; on some machines, copies between cards are known to deliver zeros and no error.

    Parameters
    ----------
    devices : sequence of str, optional
        Default: the CPU and every Vulkan device.
    elements : int, optional
        Float32 numbers in a tensor, at least 1.

    Returns
    -------
    list of Transport
        One per ordered pair, with ``source``, ``target``, ``correct`` (the SHA-256 is that of what was sent, every
        time), ``gb_per_s`` (10^9 bytes per second, at best) and ``fault`` (what went wrong, or empty).

    Examples
    --------
    >>> for link in ag.transport_selftest(["cpu", "cpu:1"]):
    ...     print(link.source, link.target, link.correct)
    cpu cpu:1 True
    cpu:1 cpu True
    """
    if elements < 1:
        raise ValueError(f"transport_selftest: elements is {elements}; it must be at least 1.")
    names = [info.name for info in list_devices()] if devices is None else devices
    found = dict.fromkeys(backend_of(name).name for name in names)
    return [_tried(source, target, elements) for source, target in permutations(found, 2)]


def _tried(source: str, target: str, elements: int) -> Transport:
    rng, seconds = np.random.default_rng(0), []
    try:
        for _ in range(_TRIES):  # with new values: memory that holds those of the last transfer must not pass
            values = rng.standard_normal(elements, np.float32)
            sent = ag_tensor(values, device=source)
            ag_synchronize(source)
            begin = perf_counter()
            arrived = ag_to_device(sent, target)
            ag_synchronize(target)
            seconds.append(perf_counter() - begin)
            back = arrived.numpy().ravel()
            if sha256(back.tobytes()).digest() != sha256(values.tobytes()).digest():
                wrong = int(np.count_nonzero(back != values))
                return Transport(source, target, False, 0.0, f"{wrong:,} of {elements:,} numbers arrived wrong")
    except AgError as error:
        return Transport(source, target, False, 0.0, str(error))
    return Transport(source, target, True, 4e-9 * elements / max(min(seconds), 1e-9))


# A driver passes over a card whose node it may not open, so a missing permission looks like a missing card.
_PATTERNS = ("dri/renderD*", "nvidia[0-9]*")  # of all drivers in Linux itself, and of NVIDIA's own


def card_nodes(dev: Path = Path("/dev")) -> list[str]:
    """Return a sentence for each node of a card, on what is in the way of using it; on Linux at least one."""
    if sys.platform != "linux":
        return []
    nodes = [node for pattern in _PATTERNS for node in sorted(dev.glob(pattern))]
    if not nodes:
        return [f"There is no {dev}/{_PATTERNS[0]}: Linux drives no graphics card here; in a container the card must "
                f"be handed in (docker run --device /dev/dri)."]
    return [_usable(node) for node in nodes]


def _usable(node: Path) -> str:
    if os.access(node, os.R_OK | os.W_OK):
        return f"{node} is there and you may use it; if no device of the table is that card, install the card's driver."
    from grp import getgrgid, getgrnam  # of POSIX systems
    from pwd import getpwuid

    found = node.stat()
    try:
        group, user = getgrgid(found.st_gid).gr_name, getpwuid(os.getuid()).pw_name
    except KeyError:  # a container has numbers without names
        return (f"{node} is there and you may not use it: it belongs to group {found.st_gid}, which user {os.getuid()} "
                f"is not in; run with that group (docker run --group-add {found.st_gid}).")
    if found.st_mode & 0o060 != 0o060:
        return f"{node} is there and you may not use it, nor may its group {group}; an administrator must allow it."
    if user in getgrnam(group).gr_mem and found.st_gid not in os.getgroups():
        return f"{node} is there and you may use it, as a member of group {group}, after you have logged in again."
    return (f"{node} is there and you may not use it, as you are not in group {group}: sudo usermod -aG {group} "
            f"{user}, and log in again.")


# Programs that come with MPI are asked in processes of their own, so that MPI is not loaded here.
_LIBRARY = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
_TIMES = ("period", "timeout")  # settings with these at the end may have other values


def mpi_report() -> tuple[str, list[str]]:
    """Return a line about the MPI, "" if there is none, and sentences about what is missing or set wrongly."""
    binding = version_of("mpi4py")
    if binding is None:
        return "", [f"mpi4py is not installed, so processes cannot train together; to get it: {install_line('mpi')}"]
    library = _output(sys.executable, "-c", _LIBRARY).partition(",")[0].partition("\n")[0].strip()
    if not library:
        return "", [f"mpi4py {binding} finds no MPI library, so processes cannot train together; to get one: "
                    f"{install_line('mpi')}, or load the site's own"]
    launcher, missing = find_mpiexec(), list[str]()
    if launcher is None:
        missing.append("mpiexec is not on the path, so processes are started by the site's launcher only, such as srun")
    beside = os.path.dirname(launcher) if launcher else ""
    program = shutil.which("ompi_info", path=os.pathsep.join(filter(None, [beside, os.environ.get("PATH", "")])))
    info = _output(program, "--parsable") if program and library.startswith("Open MPI") else ""
    parts = [f"{library} (mpi4py {binding})", "goes on without lost ranks" if "options:ft_mpi_support:yes" in info else
             "restarts when a rank is lost"]
    if names := sorted({line.split(":")[2] for line in info.splitlines() if line.startswith("mca:btl:")}):
        parts.append(f"transports {' '.join(names)}")
    for name, value in rank_environment().items():
        given = os.environ.get(name, value)
        if given != value and not name.endswith(_TIMES):
            missing.append(f"{name} is {given!r} in the environment, and without {value!r} ranks that are lost can "
                           f"stop the others; unset it")
    return ", ".join(parts), missing


def version_of(distribution: str) -> str | None:
    """Return the version of an installed package; None if it is missing."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str:
    """Return the output of a program; "" if it fails."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_COMM", "PMIX_", "PMI_"))}
    try:
        return subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=30, env=ours,
                              check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
