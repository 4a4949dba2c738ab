"""The compiled kernels as files, and the note that the build left where it could not make something.

kernels_build.py writes the files: a manifest, which describes every kernel, and the SPIR-V.  native_build.py writes the
note.  Knows no device and no driver.  `plans` reads the manifest here, the loader the note.
"""

from __future__ import annotations

import importlib.util
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

from ag.errors import KernelError
from ag.version import DISTRIBUTION

__all__ = ["BUILD", "Entry", "Manifest", "check_files", "not_built", "read_manifest", "refuse_stale"]

_SHADERS = Path(__file__).parents[4] / "shaders"  # only in a source checkout
BUILD = ("run `python kernels_build.py` (needs glslang-tools and spirv-tools)" if _SHADERS.is_dir() else
         f"install again: `pip install --force-reinstall {DISTRIBUTION}`")
_NOTE = Path(__file__).parent / "not_built.txt"
_SPIRV = bytes.fromhex("03022307")  # how a file of SPIR-V begins


def not_built() -> str:
    """What the build could not make, and why; empty if it made everything, or is not known."""
    return "; ".join(_NOTE.read_text("utf-8").splitlines()) if _NOTE.is_file() else ""


class Operand(TypedDict):
    """A buffer of a kernel."""

    name: str
    writes: bool


class Argument(TypedDict):
    """A member of the push-constant block: so many words of a type."""

    name: str
    type: str
    count: int


class Constant(TypedDict):
    """A specialization constant."""

    name: str
    type: str
    default: float


class GridRule(TypedDict):
    """How many invocations or workgroups a kernel has, as expressions."""

    unit: str
    axes: list[str]


class Entry(TypedDict):
    """What kernels_build.py read from a shader."""

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
    """The manifest of the kernels in a folder."""
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
    """Refuse a folder of kernels that is not whole; once it was, it is not looked at again."""
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
    """kernels_build.py of this source checkout, which knows what a shader is made of; None if this is none."""
    path = _SHADERS.parent / "kernels_build.py"
    specification = importlib.util.spec_from_file_location("kernels_build", path)
    if not _SHADERS.is_dir() or not path.is_file() or specification is None or specification.loader is None:
        return None
    builder = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(builder)
    return builder


def refuse_stale(folder: Path, kernel: str, sha256: str) -> None:
    """The SPIR-V must be there, and, in a source checkout, come from the shader that is there now."""
    _file(folder, kernel)
    _compare(kernel, sha256)


@lru_cache(maxsize=1024)
def _compare(kernel: str, sha256: str) -> None:
    """Compare with the shader; once that went well it is not done again, as it takes as long as planning a launch."""
    builder, shader = _builder(), _SHADERS / f"{kernel}.comp"
    if builder is not None and builder.source_hash(shader) != sha256:
        raise KernelError(f"Vulkan: the compiled kernel {kernel} does not come from what is in shaders/ now; {BUILD}.")
