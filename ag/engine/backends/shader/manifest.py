"""Read the manifest of the compiled kernels, their files and needs, and the build's note on what it could not make."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from ag.errors import KernelError
from ag.version import DISTRIBUTION

_SHADERS = Path(__file__).parents[4] / "shaders"  # only in a source checkout
BUILD = ("run `python kernels_build.py` (needs glslang-tools and spirv-tools)" if _SHADERS.is_dir() else
         f"install again: `pip install --force-reinstall {DISTRIBUTION}`")
_HERE = Path(__file__).parent
_SPV, _NOTE = _HERE / "spv", "not_built.txt"  # which the build writes
_SPIRV = bytes.fromhex("03022307")  # the first bytes of a file of SPIR-V
_LAVAPIPE = 13  # its VkDriverId
_TURNS = 65_000  # before Mesa 25 it ended all loops of an invocation after 65,535; short loops take some


def not_built(*folders: Path) -> str:
    """Return what the build could not make here and in these folders, and why; empty without a note."""
    notes = [folder / _NOTE for folder in (_HERE, *folders)]
    return "; ".join(line for note in notes if note.is_file() for line in note.read_text("utf-8").splitlines())


class _Operand(TypedDict):
    name: str
    writes: bool


class Operand(_Operand, total=False):
    halves: bool  # true where it may have 16 bits


class Argument(TypedDict):
    """A member of the push-constant block: so many words of a type."""

    name: str
    type: str
    count: int


class Constant(TypedDict):
    name: str
    type: str
    default: float


class GridRule(TypedDict):
    unit: str
    axes: list[str]


class Entry(TypedDict):
    """The description of a kernel, which kernels_build.py reads from its shader."""

    operands: list[Operand]
    push: list[Argument]
    spec: list[Constant]
    grid: GridRule
    work: str
    multiplies: bool
    turns: str
    strict: bool
    fixed: bool
    halves: bool  # whether there is another form for operands of 16 bits
    local_size: list[int]
    shared_bytes: int
    sha256: str


class Manifest(TypedDict):
    """All kernels that were compiled, and the names of those that could not be."""

    compiler: str
    kernels: dict[str, Entry]
    left_out: list[str]


def read_manifest(folder: Path) -> Manifest:
    path = folder / "manifest.json"
    if not path.is_file():
        why = f" ({why})" if (why := not_built()) else ""
        raise KernelError(f"no compiled kernels were found in {folder.name}/{why}; {BUILD}.")
    try:
        manifest: Manifest = json.loads(path.read_text("utf-8"))
        known = dict(manifest["kernels"])
    except (ValueError, KeyError, TypeError) as error:
        raise KernelError(f"{folder.name}/manifest.json is no manifest of kernels ({error!r}); {BUILD}.") from error
    if not known:
        raise KernelError(f"{folder.name}/manifest.json lists no kernel; {BUILD}.")
    return manifest


@lru_cache(maxsize=8)
def check_files(folder: Path) -> None:
    """Raise KernelError if a folder of kernels is incomplete; check it once."""
    for kernel, entry in read_manifest(folder)["kernels"].items():
        if lacking := sorted(Entry.__required_keys__ - entry.keys()):
            raise KernelError(f"{folder.name}/manifest.json does not say {', '.join(lacking)} of kernel "
                              f"{kernel}, as another version of ag has made it; {BUILD}.")
        forms = ("", ".fixed") if entry["fixed"] else ("",)
        for name in [kernel + form + of for form in forms for of in (("", ".halves") if entry["halves"] else ("",))]:
            try:
                with open(f"{folder}/{name}.spv", "rb", 0) as file:  # hundreds, and `Path` takes its time
                    if file.read(len(_SPIRV)) != _SPIRV:
                        raise KernelError(f"{name}.spv is no SPIR-V; {BUILD}.")
            except FileNotFoundError:
                _file(folder, name)


def _file(folder: Path, kernel: str) -> Path:
    path = folder / f"{kernel}.spv"
    if not path.is_file():
        raise KernelError(f"the manifest lists kernel {kernel} and its file is not there; {BUILD}.")
    return path


@lru_cache(maxsize=1)
def _builder() -> Any:
    """Load kernels_build.py of a source checkout, which hashes shaders; None outside of one."""
    path = _SHADERS.parent / "kernels_build.py"
    specification = importlib.util.spec_from_file_location("kernels_build", path)
    if not _SHADERS.is_dir() or not path.is_file() or specification is None or specification.loader is None:
        return None
    builder = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(builder)
    return builder


def refuse_stale(kernel: str, sha256: str) -> None:
    """Raise KernelError if the SPIR-V is missing, or, in a source checkout, older than its shader."""
    _file(_SPV, kernel)
    _compare(kernel, sha256)


@lru_cache(maxsize=1024)
def _compare(kernel: str, sha256: str) -> None:
    """Compare with the shader, once: hashing takes as long as planning a launch."""
    builder, shader = _builder(), _SHADERS / f"{kernel}.comp"
    if builder is not None and builder.source_hash(shader) != sha256:
        raise KernelError(f"the compiled kernel {kernel} does not come from what is in shaders/ now; {BUILD}.")


@lru_cache(maxsize=1)
def manifest() -> Manifest:
    return read_manifest(_SPV)


def spirv_of(file: str) -> bytes:
    return (_SPV / f"{file}.spv").read_bytes()


def files_of(kernel: str) -> list[Path]:
    """List the files of a kernel: one, and with fixed tiles another."""
    return sorted(_SPV.glob(f"{kernel}.*spv"))


def check_build() -> None:
    check_files(_SPV)


def kernel_state(name: str) -> str:
    """Return a kernel's state: ``"compiled"``, ``"left out"`` by the compiler, or ``"none"``."""
    if name in manifest()["kernels"]:
        return "compiled"
    return "left out" if name in manifest()["left_out"] else "none"


def unfit(limits: Limits) -> dict[str, str]:
    """Return what kernels lack on a device, by name; `tiles_of` checks tiles."""
    lacks = {name: lacking(Needs(0, 0, len(entry["operands"])) if in_tiles(entry) else needs_of(entry), limits)
             for name, entry in manifest()["kernels"].items()}
    return {name: what for name, what in lacks.items() if what}


class Limits(TypedDict):
    """The part of a device's limits that decides whether a kernel fits, by the names of Kompute."""

    driver_id: int
    max_required_subgroups: int
    max_shared_memory: int
    max_storage_buffers: int
    max_work_group_invocations: int
    max_work_group_size: tuple[int, int, int]
    required_subgroup_sizes: tuple[int, int]


class Needs(NamedTuple):
    threads: int  # invocations of a workgroup
    shared_bytes: int  # of a workgroup
    bindings: int = 0  # storage buffers
    turns: int = 0  # of an invocation's loops, if they grow with the operands
    subgroup: int = 0  # invocations of every subgroup, if the kernel depends on it


def lacking(needs: Needs, limits: Limits) -> str:
    """Say what the device lacks for a kernel; empty if it fits."""
    threads = min(limits["max_work_group_invocations"], limits["max_work_group_size"][0])
    rows = [(needs.bindings, limits["max_storage_buffers"], "storage buffers"),
            (needs.threads, threads, "invocations per workgroup"),
            (needs.shared_bytes, limits["max_shared_memory"], "bytes of shared memory"),
            (needs.turns, most_turns(limits), "turns of an invocation's loops")]
    if size := required_subgroup(needs, limits):
        rows.append((needs.threads // size, limits["max_required_subgroups"], f"subgroups of {size} invocations"))
    return " and ".join(f"{wanted} {what} where the device has {most}" for wanted, most, what in rows if wanted > most)


def required_subgroup(needs: Needs, limits: Limits) -> int:
    """Return the size of subgroups to require, as drivers may choose another than they report; 0: none."""
    least, most = limits["required_subgroup_sizes"]
    return needs.subgroup if least <= needs.subgroup <= most else 0


def most_turns(limits: Limits) -> int:
    return _TURNS if limits["driver_id"] == _LAVAPIPE else sys.maxsize


def needs_of(entry: Entry) -> Needs:
    return Needs(prod(entry["local_size"]), entry["shared_bytes"], len(entry["operands"]))


def takes_halves() -> dict[str, tuple[bool, ...]]:
    """Return which operands of kernels may have 16 bits, by the name of those that take some."""
    kernels = manifest()["kernels"]
    found = {name: tuple([o.get("halves", False) for o in entry["operands"]]) for name, entry in kernels.items()}
    return {name: halves for name, halves in found.items() if any(halves)}


def in_tiles(entry: Entry) -> bool:
    return any(constant["name"] == "TILE_ROWS" for constant in entry["spec"])
