"""Writes docs/kernels.md: sectors, multiply-adds and waves of kernels on chips, all counted without one.

Run it as ``python tests/cards/table.py`` after a change of a kernel or of the table of tiles, on Debian 12, whose Mesa
the numbers are of.  `test_table.py` compares the page with what is counted now.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cards import radv
from cards.radv import CHIPS, Chip
from cards.sectors import LAUNCHES, ratio

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
BEGIN, END = "<!-- tests/cards/table.py writes from here -->", "<!-- to here -->"
CODE = {  # the kernel and the kind of tiles that each row of the table of chips is about
    **{f"matmul in {tile}": ("matmul", tile) for tile in radv.TILES},
    **{f"{kernel} in {tile}": (kernel, tile) for kernel in ("matmul_chain", "conv2d", "conv2d_input_grad",
                                                           "conv2d_weight_grad") for tile in ("L2", "M4")},
    **{kernel: (kernel, "") for kernel in ("attention", "attention_grad", "fused", "layer_norm", "layer_norm_grad",
                                           "norm_sums", "softmax", "sum", "adam_update", "sgd_update")},
}


def sectors() -> list[str]:
    """The rows of the table of sectors."""
    return [f"| {name} | {ratio(make()):.2f} |" for name, make in LAUNCHES.items()]


def known(program: Path) -> dict[str, Chip]:
    """The chips that this Mesa knows."""
    return {name: chip for name in CHIPS if (chip := radv.chip_of(program, name)) is not None}


def cells(program: Path, chip: Chip) -> list[str]:
    """Multiply-adds per hundred instructions of the loop that has most, registers, waves, and what spills."""
    return [f"{100 * radv.fma_share(code):.0f} %, {found.told['VGPRs']}, {found.waves}"
            + (f", {found.told['Spilled VGPRs']} spilled" if found.spills else "")
            for found, code in radv.machine_code(program, chip, CODE.values())]


def chips(program: Path) -> list[str]:
    """The rows of the table of chips, with its heading."""
    columns = known(program)
    rows = zip(CODE, *(cells(program, chip) for chip in columns.values()), strict=True)
    return [f"| kernel | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}",
            *(f"| {' | '.join(row)} |" for row in rows)]


def mesa(program: Path) -> str:
    """The version whose compiler the numbers are of."""
    return next(iter(known(program).values())).version


def tables(program: Path) -> str:
    """What stands between the marks of the page."""
    lines = ["", "| launch | sectors |", "|---|---|", *sectors(), "",
             f"Multiply-adds per instruction, registers and waves per SIMD, by Mesa {mesa(program)}:", "",
             *chips(program), ""]
    return "\n".join(lines)


def main() -> int:
    """Write the page; status 1 where RADV cannot be asked."""
    if why := radv.missing():
        print(f"table.py: {why}", file=sys.stderr)
        return 1
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    with tempfile.TemporaryDirectory() as folder:
        made = tables(radv.built(Path(folder)))
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
