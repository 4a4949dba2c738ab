"""What RADV makes of the kernels for real chips of AMD: registers suffice, chains are compiled, not looked up.

`radv.py` asks the driver, which needs no chip.  A chip that this Mesa does not know is skipped, by name.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cards.radv import (
    CHIPS,
    KERNELS,
    Chip,
    Mesa,
    built,
    chip_of,
    compiled,
    installed,
    missing,
    newer,
    on_matrix_units,
)

from ag.engine.backend import DeviceInfo
from ag.engine.backends.vulkan.products.cooperative import CooperativeTile
from ag.engine.backends.vulkan.products.tiles import TILES, Tiles, tiles_of

LEAST_WAVES = 2  # per SIMD, of products in tiles that are chosen: while one waits for memory, another computes
MOST_OF_A_CHAIN = 120  # instructions of fused (add, relu); 550 where a driver looks up each function when it runs
LET_BE = {  # registers in memory, by kernel, of RDNA 3 with a Mesa before 24
    "attention_grad": 500, "conv2d": 2, "conv2d_chain": 2, "conv2d_input_grad": 3, "conv2d_input_grad_chain": 3,
}
SKINNY = "V"  # the kind of tiles that every device has for products with few rows or columns
IN_TILES = [name for name, entry in KERNELS.items() if any(c["name"] == "TILE_ROWS" for c in entry["spec"])]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that asks RADV."""
    if why := missing():
        pytest.skip(why)
    return built(tmp_path_factory.mktemp("radv"))


@pytest.fixture(params=["installed", pytest.param("newer", marks=pytest.mark.slow)])
def mesa(request: pytest.FixtureRequest) -> Mesa:
    """The system's Mesa, and a newer one."""
    found = installed() if request.param == "installed" else newer()
    if found is None:
        pytest.skip("there is no newer Mesa beside the installed one (tools/setup.sh unpacks it on Debian 12)")
    return found


@pytest.fixture(params=[pytest.param(name, marks=() if name == "RDNA 2" else pytest.mark.slow) for name in CHIPS])
def chip(request: pytest.FixtureRequest, program: Path, mesa: Mesa) -> Chip:
    """Each chip in turn that this Mesa knows."""
    found = chip_of(program, request.param, mesa)
    if found is None:
        version = next(chip.version for name in CHIPS if (chip := chip_of(program, name, mesa)) is not None)
        pytest.skip(f"Mesa {version} does not know {request.param} ({' or '.join(CHIPS[request.param])})")
    return found


def chosen_for(chip: Chip) -> list[str]:
    """The kinds of tiles that the table has for a card with this chip and this driver."""
    tiles = tiles_of(DeviceInfo("vulkan:0", chip.product, "AMD", chip.version, "discrete", 16 << 30))
    assert isinstance(tiles, Tiles)
    return [*(kind for kind, _ in tiles.rates), SKINNY]


def test_chains_are_compiled(chip: Chip, program: Path) -> None:
    for found in compiled(program, chip, ["fused", "fused_pair"]):
        assert found.told["Instructions"] < MOST_OF_A_CHAIN, f"{found}: {found.told}"


def test_products_have_room(chip: Chip, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compiled(program, chip, ["matmul", "matmul_chain"], chosen_for(chip))
    assert not [f"{x}: {x.told}" for x in found if x.spills or x.waves < LEAST_WAVES]
    with capsys.disabled():
        waves = {x.tile: x.waves for x in found if x.kernel == "matmul"}
        print(f"\n{chip.product}, Mesa {chip.version}: waves per SIMD of matmul, by tiles: {waves}")


@pytest.mark.slow
def test_nothing_spills(chip: Chip, program: Path) -> None:
    """Of all kernels, in the tiles that the table has for the chip."""
    found = compiled(program, chip, sorted(KERNELS), chosen_for(chip))
    assert {x.kernel for x in found} == KERNELS.keys()
    let_be = LET_BE if "GFX11" in chip.product and int(chip.version.partition(".")[0]) < 24 else {}
    assert not [f"{x}: {x.told}" for x in found if x.told["Spilled VGPRs"] > let_be.get(x.kernel, 0)
                or (x.spills and x.kernel not in let_be)]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["matmul_coop_f16", "batched_matmul_coop_f16"])
@pytest.mark.parametrize("name", ["RDNA 3", "RDNA 4"])
def test_float16_on_matrix_units_has_room(program: Path, name: str, kernel: str) -> None:
    mesa = newer()
    chip = chip_of(program, name, mesa) if mesa else None
    if chip is None:
        pytest.skip(f"there is no newer Mesa here, or it does not know {name}")
    for side, down in ((128, 64), (64, 32)):
        tile = CooperativeTile(side, side, 32, down, 32, 64, 1, (16, 16, 16))
        told = on_matrix_units(program, chip, kernel, tile.constants())
        assert told["Spilled VGPRs"] + told["Scratch size"] == 0 and told["Subgroups per SIMD"] >= LEAST_WAVES, told


def test_spills_would_be_seen(program: Path) -> None:
    """Of L on RDNA 3 with a Mesa that has too few registers for it."""
    chip = chip_of(program, "RDNA 3")
    if chip is None or int(chip.version.partition(".")[0]) >= 24:
        pytest.skip("this Mesa has registers enough for L on RDNA 3, or does not know it")
    assert compiled(program, chip, ["batched_matmul"], ["L"])[0].spills
    assert "L" not in chosen_for(chip)


@pytest.mark.parametrize(("product", "version", "kinds"), [
    ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "24.1.0", "L L2 M1 M S"),
    ("AMD Radeon RX 7900 XTX (RADV GFX1100)", "22.3.6", "L2 M4 S"),
    ("AMD Radeon RX 9070 XT (RADV GFX1201)", "25.0.7", "L L2 M1 M S"),
    ("AMD Radeon RX 6800 (RADV NAVI21)", "22.3.6", "L L2 M1 M S"),
    ("AMD Radeon Graphics (RADV VEGA10)", "25.0.7", "L2 M4 S"),
    ("AMD Radeon RX 580 Series (RADV POLARIS10)", "25.0.7", "L2 M4 S"),
    ("AMD Radeon RX 7900 XTX", "2.0.294", "L2 M4 S"),  # AMD's own driver, which nobody has asked
])
def test_the_table_of_a_chip(product: str, version: str, kinds: str) -> None:
    assert chosen_for(Chip("", product, version, (), Mesa(Path()))) == [*kinds.split(), SKINNY]
    assert set(kinds.split()) <= TILES.keys()
