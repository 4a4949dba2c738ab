"""Write docs/kernels.md: ``python tests/cards/table.py``, after a change of a kernel or of the table of tiles.

Run it on Debian 12 with the newer Mesa that ``make setup-test`` unpacks.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cards import radv
from cards.radv import CHIPS, Chip, Compiled, Mesa
from cards.sectors import LAUNCHES, ratio

from ag.engine.kernels.packing import PACKINGS

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
BEGIN, END = "<!-- tests/cards/table.py writes from here -->", "<!-- to here -->"
CONVOLUTIONS = ("conv2d", "conv2d_input_grad", "conv2d_weight_grad")
CODE: dict[str, tuple[str, str, dict[str, int]]] = {  # the kernel, tiles and constants of each row of a table of chips
    **{f"matmul in {tile}": ("matmul", tile, {}) for tile in radv.TILES},
    **{f"{kernel} in {tile}": (kernel, tile, {})
       for kernel in ("matmul_chain", "batched_matmul", *CONVOLUTIONS) for tile in ("L2", "L8", "M4")},
    **{f"packed_matmul of {packing} in {tile}": ("packed_matmul", tile, {"type": PACKINGS[packing].number})
       for packing in ("q8_0", "q4_1", "q6_k") for tile in ("L2", "L8", "M4")},
    **{f"{kernel}, unaligned, in {tile}": (kernel, tile, {"vector": 0})
       for kernel in CONVOLUTIONS for tile in ("L2", "L8")},
    **{f"{kernel} of {32 * blocks} features": (kernel, "", {"blocks": blocks})
       for kernel in ("attention", "attention_grad") for blocks in (1, 2, 3, 4)},
    **{f"{kernel} of {32 * blocks} features, held": (kernel, "", {"blocks": blocks, "held": 1})
       for kernel in ("attention", "attention_grad") for blocks in (1, 2, 4)},
    **{f"{kernel}, read again": (kernel, "", {"whole": 0}) for kernel in (
        "softmax", "softmax_cross_entropy_ids", "layer_norm")},
    **{kernel: (kernel, "", {}) for kernel in (
        "conv2d_direct", "fused", "layer_norm", "layer_norm_grad", "norm_sums", "rms_norm", "rms_norm_grad",
        "rms_norm_sums", "softmax", "softmax_cross_entropy", "softmax_cross_entropy_ids", "sum", "permute",
        "take", "scatter_add", "adam_update", "sgd_update")},
}


def sectors() -> list[str]:
    return [f"| {name} | {ratio(make()):.2f} |" for name, make in LAUNCHES.items()]


def known(program: Path, mesa: Mesa) -> dict[str, Chip]:
    return {name: chip for name in CHIPS if (chip := radv.chip_of(program, name, mesa)) is not None}


def cells(program: Path, chip: Chip) -> list[str]:
    """Multiply-adds per hundred operations of the loop that has most, registers, waves, and what spills."""
    return [_cell(found, code, chip) for found, code in radv.machine_code(program, chip, CODE.values())]


def _cell(found: Compiled, code: str, chip: Chip) -> str:
    text = f"{100 * radv.fma_share(code):.0f} %, {found.told['VGPRs']}, {found.waves}"
    text += f", {found.told['Spilled VGPRs']} spilled" if found.spills else ""
    return text if radv.is_used(found, chip) else f"({text})"


def chips(program: Path, mesa: Mesa) -> list[str]:
    columns = known(program, mesa)
    rows = zip(CODE, *(cells(program, chip) for chip in columns.values()), strict=True)
    return [title(program, mesa), "", f"| kernel | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}",
            *(f"| {' | '.join(row)} |" for row in rows)]


def title(program: Path, mesa: Mesa) -> str:
    version = next(iter(known(program, mesa).values())).version
    return f"Multiply-adds per operation, registers and waves per SIMD, by Mesa {version}:"


def mesas() -> list[Mesa]:
    return [mesa for mesa in (radv.installed(), radv.newer()) if mesa is not None]


def tables(program: Path) -> str:
    of_chips = [line for mesa in mesas() for line in (*chips(program, mesa), "")]
    return "\n".join(["", "| launch | sectors |", "|---|---|", *sectors(), "", *of_chips])


def main() -> int:
    why = radv.missing() or ("" if radv.newer() else "there is no newer Mesa in .drivers (make setup-test)")
    if why:
        print(f"table.py: {why}", file=sys.stderr)
        return 1
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    with tempfile.TemporaryDirectory() as folder:
        made = tables(radv.built(Path(folder)))
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
