"""What AMD's chips would run: RADV compiles every kernel for chips that are not here, and tells what became of it.

Mesa's driver takes the chip from RADV_FORCE_FAMILY and then needs no hardware.  `statistics.c`, built here, has it
compile kernels and prints registers, spills, scratch memory and instructions (VK_KHR_pipeline_executable_properties).
Which chips there are depends on Mesa: 22.3 of Debian 12 knows RDNA 3 as gfx1100 and none of RDNA 4, newer ones know
navi31 and gfx1201.  `tools/setup.sh` unpacks a newer Mesa beside it.  Knows manifest and specialization constants of
kernels; `test_radv.py` holds what follows.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ag.engine.backends.vulkan
from ag.engine.backends.vulkan.plans import HELD_BYTES
from ag.engine.backends.vulkan.products.tiles import TILES
from ag.engine.backends.vulkan.spirv.float_modes import Mode, modes_of, with_modes
from ag.engine.kernels.fused import Chain, fused

SPV = Path(ag.engine.backends.vulkan.__file__).parent / "spv"
SOURCE = Path(__file__).with_name("statistics.c")
ROOTS = (Path("/usr/share"), Path("/usr/local/share"), Path("/etc"))
NEWER = Path(__file__).parents[2] / ".drivers" / "mesa"  # into which packages of a newer Mesa are unpacked
CHIPS = {  # the names that some Mesa or other has for a chip
    "RDNA 4": ("gfx1201",), "RDNA 3": ("navi31", "gfx1100"), "RDNA 2": ("navi21", "gfx1030"),
    "Vega": ("vega10", "gfx900"), "Polaris": ("polaris10",),
}
_FMA = re.compile(r"v_(?:dual_|pk_)?(?:fma|fmac|mad|mac)\w*_f32\w*")
_INSTRUCTION = re.compile(r"\s+[sv]_|\s+(ds|buffer|global)_")
CHAIN: Chain = (("add", 0, 1, 0.0), ("relu", 4, 4, 0.0))  # what most fully connected layers end with
CHOICES = {  # values that make other code
    "blocks": (1, 2, 4), "dropped": (0, 1), "held": (0, 1, 2), "ta": (0, 1), "tb": (0, 1),
}
MOST_SHARED = 48 << 10  # bytes of a workgroup, of what any device is given
# Those on matrix units choose their sizes by what a device has.
KERNELS: dict[str, Any] = {name: entry for name, entry in json.loads((SPV / "manifest.json").read_text("utf-8"))[
    "kernels"].items() if "_coop" not in name}


class Compiled(NamedTuple):
    """A kernel, the kind of its tiles or "", its other constants, and what the driver tells of it, by its words."""

    kernel: str
    tile: str
    constants: dict[str, int]
    told: dict[str, int]

    @property
    def spills(self) -> int:
        """Registers that lie in memory, and bytes of that: 0, if all is well."""
        return self.told["Spilled VGPRs"] + self.told["Scratch size"]

    @property
    def waves(self) -> int:
        """How many may be on a SIMD at once, as far as registers and shared memory go."""
        return self.told["Subgroups per SIMD"]

    def __str__(self) -> str:
        constants = " ".join(f"{name}={value}" for name, value in self.constants.items())
        return f"{self.kernel} {self.tile} {constants}".strip()


class Mesa(NamedTuple):
    """A Mesa that is here: the folder with descriptions of its drivers, and that of its libraries if not installed."""

    drivers: Path
    libraries: str = ""

    def environment(self, driver: str) -> dict[str, str]:
        """What to start a process with, for the loader to find one driver of this Mesa."""
        file = str(self.description(driver))
        changed = {"VK_ICD_FILENAMES": file, "VK_DRIVER_FILES": file, "VK_LOADER_LAYERS_DISABLE": "*"}
        if self.libraries:
            changed["LD_LIBRARY_PATH"] = self.libraries
        return {**{k: v for k, v in os.environ.items() if k != "VK_INSTANCE_LAYERS"}, **changed}

    def description(self, driver: str) -> Path | None:
        """The file of a driver, ``radeon`` or ``lvp``, that the loader reads; None if it is not there."""
        names = (f"{driver}_icd.{platform.machine()}.json", f"{driver}_icd.json")
        return next((self.drivers / name for name in names if (self.drivers / name).is_file()), None)


def installed() -> Mesa | None:
    """The system's Mesa, if it has RADV."""
    found = (Mesa(root / "vulkan" / "icd.d") for root in ROOTS)
    return next((mesa for mesa in found if mesa.description("radeon")), None)


def newer() -> Mesa | None:
    """The Mesa that the set-up has unpacked beside the installed one."""
    found = Mesa(NEWER / "usr/share/vulkan/icd.d", os.pathsep.join(map(str, NEWER.glob("usr/lib/*-linux-*"))))
    return found if found.description("radeon") else None


def missing() -> str:
    """Why RADV cannot be asked here; empty if it can."""
    if installed() is None:
        return "there is no RADV here (Debian's package mesa-vulkan-drivers)"
    if shutil.which("gcc") is None or not any(Path(p, "vulkan/vulkan.h").is_file()
                                              for p in ("/usr/include", "/usr/local/include")):
        return "there is no gcc, or there are no headers of Vulkan (Debian's packages gcc and libvulkan-dev)"
    return ""


def built(folder: Path) -> Path:
    """The program that asks, built in a folder."""
    program = folder / "statistics"
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", str(SOURCE), "-lvulkan", "-o", str(program)],
                   check=True, capture_output=True, text=True)
    return program


def _asked(program: Path, mesa: Mesa, family: str, lines: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**mesa.environment("radeon"), "RADV_FORCE_FAMILY": family}
    return subprocess.run([program, *options], input=lines, env=environment, capture_output=True, text=True)


class Chip(NamedTuple):
    """A chip as RADV has it: the name to force it by, what a device of it is called, Mesa's version, float modes of
    kernels that multiply little, and much.
    """

    family: str
    product: str
    version: str
    modes: tuple[tuple[Mode, ...], ...]
    mesa: Mesa


def _known(program: Path, mesa: Mesa, family: str) -> Chip | None:
    done = _asked(program, mesa, family, "")
    if done.returncode != 0:
        return None
    name, version, *offered = done.stdout.splitlines()[0].split("\t")
    number = f"{int(version) >> 22}.{int(version) >> 12 & 0x3FF}.{int(version) & 0xFFF}"
    told: Any = {name: flag == "1" for name, flag in zip(
        ("preserves_nan", "rounds_to_nearest", "keeps_denormals"), offered, strict=True)}
    return Chip(family, name, number, (modes_of(told, multiplies=False), modes_of(told, multiplies=True)), mesa)


@cache
def chip_of(program: Path, name: str, mesa: Mesa | None = None) -> Chip | None:
    """A chip of `CHIPS`; None if this Mesa, by default the installed one, does not know it."""
    asked = mesa or installed()
    return asked and next(filter(None, (_known(program, asked, family) for family in CHIPS[name])), None)


# ---------------------------------------------------------------------------------------------- what is compiled


def variants(kernel: str, tiles: Collection[str] = TILES) -> Iterator[tuple[str, dict[str, int]]]:
    """The kind of tiles, or "", and the specialization constants of each piece of code that a kernel may become."""
    constants = {constant["name"]: int(constant["default"]) for constant in KERNELS[kernel]["spec"]}
    if "op1" in constants:
        codes = fused.layout(*[(8,)] * 5, chain=CHAIN)
        constants |= {name: codes[name] for name in codes if name in constants and name != "turns"}
        constants |= {"c_along": 2} if "c_along" in constants else {}
    chosen = {name: values for name, values in CHOICES.items() if name in constants}
    constants |= {"vector": 1} if "held" in constants else {}
    in_tiles = "TILE_ROWS" in constants
    for kind in tiles if in_tiles else ("",):
        size = {**TILES[kind].constants(), "vector": 1} if in_tiles else {}
        for values in itertools.product(*chosen.values()):
            made = {**constants, **size, **dict(zip(chosen, values, strict=True))}
            held = HELD_BYTES * made["held"] * made["blocks"] if "held" in made else 0
            if KERNELS[kernel]["shared_bytes"] + held <= MOST_SHARED:
                yield kind, made


def compiled(program: Path, chip: Chip, kernels: Collection[str], tiles: Collection[str] = TILES) -> list[Compiled]:
    """All variants of kernels, in the chosen kinds of tiles, for a chip."""
    lines, made = _lines(program, chip, kernels, tiles)
    done = _asked(program, chip.mesa, chip.family, "\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    found = [_numbers(line) for line in done.stdout.splitlines()[1:]]
    return [Compiled(*what, told) for what, told in zip(made, found, strict=True)]


def on_matrix_units(program: Path, chip: Chip, kernel: str, chosen: dict[str, int]) -> dict[str, int]:
    """What the driver tells of a kernel on matrix units, in a tile's constants."""
    entry = json.loads((SPV / "manifest.json").read_text("utf-8"))["kernels"][kernel]
    words = [{"vector": 1, **chosen}.get(c["name"], c["default"]) for c in entry["spec"]]
    pushed = 4 * sum(member["count"] for member in entry["push"])
    line = [SPV / f"{kernel}.spv", pushed, len(entry["operands"]), len(words), *words]
    done = _asked(program, chip.mesa, chip.family, " ".join(map(str, line)) + "\n")
    assert done.returncode == 0, done.stderr
    return _numbers(done.stdout.splitlines()[1])


def machine_code(program: Path, chip: Chip, kernels: Iterable[tuple[str, str]]) -> Iterator[tuple[Compiled, str]]:
    """The first variant of each kernel, in tiles of a kind, and its instructions as RADV writes them."""
    asked = [_lines(program, chip, [kernel], [tile or "S"]) for kernel, tile in kernels]
    done = _asked(program, chip.mesa, chip.family, "".join(f"{lines[0]}\n" for lines, _ in asked), "--code")
    assert done.returncode == 0, done.stderr
    answers = done.stdout.partition("\n")[2].split("\nend\n")
    for (_, made), answer in zip(asked, answers[:-1], strict=True):
        told, _, code = answer.partition("\n")
        yield Compiled(*made[0], _numbers(told)), code


def fma_share(code: str) -> float:
    """Multiply-adds per instruction in the loop that has most of them, or where it is unrolled, the piece of code."""
    pieces = [piece.splitlines()[1:] for piece in re.split(r"(?m)^BB\d+:?", code)]
    counts = [(len(_FMA.findall("\n".join(lines))), sum(1 for line in lines if _INSTRUCTION.match(line)))
              for lines in pieces]
    fma, instructions = max(counts)
    return fma / max(1, instructions)


def _lines(program: Path, chip: Chip, kernels: Collection[str],
           tiles: Collection[str]) -> tuple[list[str], list[tuple[str, str, dict[str, int]]]]:
    """What the program is asked, and what it is then about."""
    lines, made = [], []
    for kernel in kernels:
        entry, file = KERNELS[kernel], program.parent / f"{kernel}.spv"
        spirv = (SPV / file.name).read_bytes()
        file.write_bytes(with_modes(spirv, chip.modes[bool(entry["work"])]) if entry["strict"] else spirv)
        push = 4 * sum(member["count"] for member in entry["push"])
        for kind, constants in variants(kernel, tiles):
            words = list(constants.values())
            lines.append(" ".join(map(str, (file, push, len(entry["operands"]), len(words), *words))))
            made.append((kernel, kind, {name: constants[name] for name in CHOICES if name in constants}))
    return lines, made


def _numbers(line: str) -> dict[str, int]:
    assert "=" in line, line
    return {name: int(value) for name, _, value in (part.partition("=") for part in line.split("\t") if part)}
