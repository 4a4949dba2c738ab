"""Read the compiled kernels, their manifest, and the build's note on what it could not make."""

from __future__ import annotations

import importlib.util
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

from ag.errors import KernelError
from ag.version import DISTRIBUTION

_SHADERS = Path(__file__).parents[4] / "shaders"  # only in a source checkout
BUILD = ("run `python kernels_build.py` (needs glslang-tools and spirv-tools)" if _SHADERS.is_dir() else
         f"install again: `pip install --force-reinstall {DISTRIBUTION}`")
_NOTE = Path(__file__).parent / "not_built.txt"
_SPIRV = bytes.fromhex("03022307")  # the first bytes of a file of SPIR-V


def not_built() -> str:
    """Return what the build could not make, and why; empty without a note."""
    return "; ".join(_NOTE.read_text("utf-8").splitlines()) if _NOTE.is_file() else ""


class Operand(TypedDict):
    name: str
    writes: bool


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
    local_size: list[int]
    shared_bytes: int
    sha256: str


class Manifest(TypedDict):
    """All kernels that were compiled, and the names of those that could not be."""

    compiler: str
    kernels: dict[str, Entry]
    left_out: list[str]


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the kernels in a folder."""
    path = folder / "manifest.json"
    if not path.is_file():
        why = f" ({why})" if (why := not_built()) else ""
        raise KernelError(f"Vulkan: no compiled kernels were found in {folder.name}/{why}; {BUILD}.")
    try:
        manifest: Manifest = json.loads(path.read_text("utf-8"))
        known = dict(manifest["kernels"])
    except (ValueError, KeyError, TypeError) as error:
        raise KernelError(f"Vulkan: {folder.name}/manifest.json is no manifest of kernels ({error!r}); {BUILD}."
                          ) from error
    if not known:
        raise KernelError(f"Vulkan: {folder.name}/manifest.json lists no kernel; {BUILD}.")
    return manifest


@lru_cache(maxsize=8)
def check_files(folder: Path) -> None:
    """Raise KernelError if a folder of kernels is incomplete; check it once."""
    for kernel, entry in read_manifest(folder)["kernels"].items():
        if lacking := sorted(Entry.__required_keys__ - entry.keys()):
            raise KernelError(f"Vulkan: {folder.name}/manifest.json does not say {', '.join(lacking)} of kernel "
                              f"{kernel}, as another version of ag has made it; {BUILD}.")
        for path in _file(folder, kernel), *([_file(folder, f"{kernel}.fixed")] if entry["fixed"] else []):
            with path.open("rb") as file:
                if file.read(len(_SPIRV)) != _SPIRV:
                    raise KernelError(f"Vulkan: {path.name} is no SPIR-V; {BUILD}.")


def _file(folder: Path, kernel: str) -> Path:
    path = folder / f"{kernel}.spv"
    if not path.is_file():
        raise KernelError(f"Vulkan: the manifest lists kernel {kernel} and its file is not there; {BUILD}.")
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


def refuse_stale(folder: Path, kernel: str, sha256: str) -> None:
    """Raise KernelError if the SPIR-V is missing, or, in a source checkout, older than its shader."""
    _file(folder, kernel)
    _compare(kernel, sha256)


@lru_cache(maxsize=1024)
def _compare(kernel: str, sha256: str) -> None:
    """Compare with the shader, once: it takes as long as planning a launch."""
    builder, shader = _builder(), _SHADERS / f"{kernel}.comp"
    if builder is not None and builder.source_hash(shader) != sha256:
        raise KernelError(f"Vulkan: the compiled kernel {kernel} does not come from what is in shaders/ now; {BUILD}.")
