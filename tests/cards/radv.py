"""Compile every kernel by RADV for AMD's chips, which need not be here, and read what became of it.

RADV_FORCE_FAMILY names the chip.  `statistics.c` has it compile kernels, and prints registers, spills and instructions.
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
from typing import Any, NamedTuple, NoReturn

import pytest

import ag.engine.backends.shader
from ag.engine.backend import DeviceInfo
from ag.engine.backends.shader.tiles import TILES, Tiles, has_few_registers, tiles_of
from ag.engine.backends.vulkan.spirv import Mode, modes_of, with_modes
from ag.engine.kernels.elementwise import Chain, fused
from ag.engine.target import Target

SPV = Path(ag.engine.backends.shader.__file__).parent / "spv"
SOURCE = Path(__file__).with_name("statistics.c")
ROOTS = (Path("/usr/share"), Path("/usr/local/share"), Path("/etc"))
NEWER = Path(__file__).parents[2] / ".drivers" / "mesa"  # into which packages of a newer Mesa are unpacked
PROMISED = "AG_TEST_NEWER_MESA"  # set where the set-up reached a mirror: then that must be there
SKINNY = "V"  # the kind of tiles that every device has for products with few rows or columns
NEW = 24  # the first version of those that may be unpacked there
CHIPS = {  # the names that some Mesa or other has for a chip
    "RDNA 4": ("gfx1201",), "RDNA 3.5": ("gfx1151",), "RDNA 3": ("navi31", "gfx1100"), "RDNA 2": ("navi21", "gfx1030"),
    "Vega": ("vega10", "gfx900"), "Polaris": ("polaris10",),
}
_FMA = re.compile(r"v_(?:dual_|pk_)?(?:fma|fmac|mad|mac)\w*_f32\w*")
_OPERATION = re.compile(r"(?:^[ \t]+(?:[^=;\n]* = )?|:: )(?:[sv]|ds|buffer|global|flat|scratch)_[a-z]\w*", re.M)
CHAIN: Chain = (("add", 0, 1, 0.0), ("relu", 4, 4, 0.0))  # what most fully connected layers end with
CHOICES = {  # values that make other code
    "blocks": (1, 2, 3, 4), "dropped": (0, 1), "held": (0, 1), "ta": (0, 1), "tb": (0, 1), "vector": (1, 0),
    "kernel_0": (3, 1), "type": (3, 5, 7),
}
TOLD = (*CHOICES, "loads", "whole")
SHARED = ((4096, 8192), (50257, 2048), (10, 4096), (512, 65536))  # columns, which several invocations may share
# Their loops are those of matmul, whose registers do not depend on the alignment of operands, as counted once.
ALIKE = {"batched_matmul", "matmul_chain", "matmul_chain_pair", "matmul_sums"}
# Those on matrix units choose their sizes by what a device has.
KERNELS: dict[str, Any] = {name: entry for name, entry in json.loads((SPV / "manifest.json").read_text("utf-8"))[
    "kernels"].items() if "_coop" not in name}


CARD = Tiles(60, (), threads=1024, kept=32)  # what AMD's chips have in common


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
        return self.told["Subgroups per SIMD"]

    def __str__(self) -> str:
        constants = " ".join(f"{name}={value}" for name, value in self.constants.items())
        return f"{self.kernel} {self.tile} {constants}".strip()


class Mesa(NamedTuple):
    """A Mesa that is here: the folder with descriptions of its drivers, and that of its libraries if not installed."""

    drivers: Path
    libraries: str = ""

    def environment(self, driver: str) -> dict[str, str]:
        file = str(self.description(driver))
        changed = {"VK_ICD_FILENAMES": file, "VK_DRIVER_FILES": file, "VK_LOADER_LAYERS_DISABLE": "*"}
        if self.libraries:
            changed["LD_LIBRARY_PATH"] = self.libraries
        return {**{k: v for k, v in os.environ.items() if k != "VK_INSTANCE_LAYERS"}, **changed}

    def description(self, driver: str) -> Path | None:
        """The file of a driver, ``radeon`` or ``lvp``, that the loader reads; None if it is not there."""
        names = (f"{driver}_icd.{platform.machine()}.json", f"{driver}_icd.json")
        return next((self.drivers / name for name in names if (self.drivers / name).is_file()), None)


def newest(program: Path) -> Mesa | None:
    """The newer Mesa, or the installed one if that is new itself."""
    return newer() or (installed() if is_new(program) else None)


def is_new(program: Path) -> bool:
    """Return whether others are unpacked beside the installed Mesa."""
    found = next(filter(None, (chip_of(program, name) for name in CHIPS)), None)
    return found is not None and int(found.version.partition(".")[0]) >= NEW


def installed() -> Mesa | None:
    """The system's Mesa, if it has RADV."""
    found = (Mesa(root / "vulkan" / "icd.d") for root in ROOTS)
    return next((mesa for mesa in found if mesa.description("radeon")), None)


def newer() -> Mesa | None:
    found = Mesa(NEWER / "usr/share/vulkan/icd.d", os.pathsep.join(map(str, NEWER.glob("usr/lib/*-linux-*"))))
    return found if found.description("radeon") else None


def without_newer(program: Path) -> NoReturn:
    """End a test that needs the newer Mesa: it fails where that was promised."""
    if is_new(program):
        pytest.skip("the installed Mesa is new itself")
    if promised := os.environ.get(PROMISED):
        pytest.fail(f"{PROMISED}={promised} promises a newer Mesa than the installed one, and there is none in "
                    f".drivers/mesa; .make/missing and .make/setup.log say what tools/setup.sh tried")
    pytest.skip("there is no newer Mesa beside the installed one (tools/setup.sh unpacks it on Debian 12)")


def missing() -> str:
    """Why RADV cannot be asked here; empty if it can."""
    if installed() is None:
        return "there is no RADV here (Debian's package mesa-vulkan-drivers)"
    if shutil.which("gcc") is None or not any(Path(p, "vulkan/vulkan.h").is_file()
                                              for p in ("/usr/include", "/usr/local/include")):
        return "there is no gcc, or there are no headers of Vulkan (Debian's packages gcc and libvulkan-dev)"
    return ""


def built(folder: Path) -> Path:
    program = folder / "statistics"
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", str(SOURCE), "-lvulkan", "-o", str(program)],
                   check=True, capture_output=True, text=True)
    return program


def _asked(program: Path, mesa: Mesa, family: str, lines: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**mesa.environment("radeon"), "RADV_FORCE_FAMILY": family}
    return subprocess.run([program, *options], input=lines, env=environment, capture_output=True, text=True)


class Chip(NamedTuple):
    """A chip as RADV has it: the name to force it by, and float modes of kernels that multiply little, and much."""

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


def card(chip: Chip) -> DeviceInfo:
    return DeviceInfo("vulkan:0", chip.product, "AMD", chip.version, "discrete", 16 << 30)


def chosen_for(chip: Chip) -> list[str]:
    tiles = tiles_of(card(chip))
    assert isinstance(tiles, Tiles)
    return [*(kind for kind, _ in tiles.rates), SKINNY]


def is_used(found: Compiled, chip: Chip) -> bool:
    """Return whether a chip runs it: in its tiles, without held rows, and no large heads where registers are few."""
    if (found.tile and found.tile not in chosen_for(chip)) or found.constants.get("held"):
        return False
    if "blocks" not in found.constants:
        return True
    target = Target(few_registers=has_few_registers(card(chip)))
    return target.tiled_attention(32 * found.constants["blocks"], 1, found.constants["dropped"] != 0)


def variants(kernel: str, tiles: Collection[str] = TILES) -> Iterator[tuple[str, dict[str, int]]]:
    """The kind of tiles, or "", and the specialization constants of each piece of code that a kernel may become."""
    constants = {constant["name"]: int(constant["default"]) for constant in KERNELS[kernel]["spec"]}
    if "op1" in constants:
        codes = fused.layout(*[(8,)] * 5, chain=CHAIN)
        constants |= {name: codes[name] for name in codes if name in constants and name != "turns"}
        constants |= {"c_along": 2} if "c_along" in constants else {}
    chosen = {name: values for name, values in CHOICES.items() if name in constants and kernel not in ALIKE}
    chosen |= {"vector": (1,)} if kernel in ALIKE or "ta" in constants else {}
    if "loads" in constants:
        for length, inner in SHARED:
            values = CARD.columns(length, inner, 1, constants["loads"])
            yield "", {name: values.get(name, default) for name, default in constants.items()}
        return
    in_tiles = "TILE_ROWS" in constants
    for kind in tiles if in_tiles else ("",):
        sizes = {tile: tile.constants() for tile in (TILES[kind], TILES[kind].turned())} if in_tiles else {None: {}}
        for size, values in itertools.product(sizes.values(), itertools.product(*chosen.values())):
            known = {**constants, **size, **dict(zip(chosen, values, strict=True))}
            yield kind, known | ({"kernel_1": known["kernel_0"]} if "kernel_0" in known else {})


def compiled(program: Path, chip: Chip, kernels: Collection[str], tiles: Collection[str] = TILES) -> list[Compiled]:
    """All variants of kernels, in the chosen kinds of tiles, for a chip."""
    lines, made = _lines(program, chip, kernels, tiles)
    done = _asked(program, chip.mesa, chip.family, "\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    found = [_numbers(line) for line in done.stdout.splitlines()[1:]]
    return [Compiled(*what, told) for what, told in zip(made, found, strict=True)]


def on_matrix_units(program: Path, chip: Chip, kernel: str, chosen: dict[str, int]) -> dict[str, int]:
    entry = json.loads((SPV / "manifest.json").read_text("utf-8"))["kernels"][kernel]
    words = [{"vector": 1, **chosen}.get(c["name"], c["default"]) for c in entry["spec"]]
    pushed = 4 * sum(member["count"] for member in entry["push"])
    line = [SPV / f"{kernel}.spv", pushed, len(entry["operands"]), len(words), *words]
    done = _asked(program, chip.mesa, chip.family, " ".join(map(str, line)) + "\n")
    assert done.returncode == 0, done.stderr
    return _numbers(done.stdout.splitlines()[1])


def machine_code(program: Path, chip: Chip,
                 kernels: Iterable[tuple[str, str, dict[str, int]]]) -> Iterator[tuple[Compiled, str]]:
    """The first variant of each kernel, in tiles of a kind, with some constants, and its instructions."""
    asked = []
    for kernel, tile, wanted in kernels:
        variants_of = zip(*_lines(program, chip, [kernel], [tile or "S"]), strict=True)
        asked.append(next((line, made) for line, made in variants_of if wanted.items() <= made[2].items()))
    done = _asked(program, chip.mesa, chip.family, "".join(f"{line}\n" for line, _ in asked), "--code")
    assert done.returncode == 0, done.stderr
    answers = done.stdout.partition("\n")[2].split("\nend\n")
    for (_, made), answer in zip(asked, answers[:-1], strict=True):
        told, _, code = answer.partition("\n")
        yield Compiled(*made, _numbers(told)), code


def fma_share(code: str) -> float:
    """Multiply-adds per operation in the loop that has most; two share an instruction of RDNA 3 (``v_dual_``)."""
    pieces = re.split(r"(?m)^BB\d+:?.*$", code)
    counts = [(len(_FMA.findall(piece)), len(_OPERATION.findall(piece))) for piece in pieces]
    fma, operations = max(counts)
    return fma / max(1, operations)


def _lines(program: Path, chip: Chip, kernels: Collection[str],
           tiles: Collection[str]) -> tuple[list[str], list[tuple[str, str, dict[str, int]]]]:
    lines, made = [], []
    for kernel in kernels:
        entry, file = KERNELS[kernel], program.parent / f"{kernel}.spv"
        spirv = (SPV / file.name).read_bytes()
        file.write_bytes(with_modes(spirv, chip.modes[entry["multiplies"]]) if entry["strict"] else spirv)
        push = 4 * sum(member["count"] for member in entry["push"])
        for kind, constants in variants(kernel, tiles):
            words = list(constants.values())
            lines.append(" ".join(map(str, (file, push, len(entry["operands"]), len(words), *words))))
            made.append((kernel, kind, {name: constants[name] for name in TOLD if name in constants}))
    return lines, made


def _numbers(line: str) -> dict[str, int]:
    assert "=" in line, line
    return {name: int(value) for name, _, value in (part.partition("=") for part in line.split("\t") if part)}
