"""RADV compiles the kernels for real chips of AMD: registers suffice, and chains are compiled, not looked up."""

from __future__ import annotations

from pathlib import Path

import pytest
from cards import radv

from ag.engine.backends.shader.tiles import TILES, has_few_registers
from ag.engine.backends.vulkan.cooperative import CooperativeTile
from ag.engine.target import Target

LEAST_WAVES = 2  # per SIMD, in what is chosen: while one waits for memory, another computes
# Where heads are large, their sums take half of the registers on these.
ALONE = {"attention_grad", "masked_attention_grad"}, ("Vega", "Polaris")
MOST_OF_A_CHAIN = 120  # instructions of fused (add, relu); 550 where a driver looks up each function when it runs
WITHOUT_DIVISION = ("add", "equal", "expand", "permute", "fused", "fused_pair", "avg_pool2d", "avg_pool2d_grad",
                    "max_pool2d", "max_pool2d_grad", "conv2d_direct", "conv2d_input_grad_direct")


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := radv.missing():
        pytest.skip(why)
    return radv.built(tmp_path_factory.mktemp("radv"))


@pytest.fixture(params=["installed", pytest.param("newer", marks=(pytest.mark.slow, pytest.mark.long))])
def mesa(request: pytest.FixtureRequest, program: Path) -> radv.Mesa:
    found = radv.installed() if request.param == "installed" else radv.newer()
    if found is None:
        radv.without_newer(program)
    assert found is not None
    return found


MARKS = {"RDNA 2": (), "Polaris": (pytest.mark.slow, pytest.mark.long)}  # the latter is compiled as Vega is


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, pytest.mark.slow)) for name in radv.CHIPS])
def chip(request: pytest.FixtureRequest, program: Path, mesa: radv.Mesa) -> radv.Chip:
    found = radv.chip_of(program, request.param, mesa)
    if found is None:
        version = next(chip.version for name in radv.CHIPS if (chip := radv.chip_of(program, name, mesa)) is not None)
        pytest.skip(f"Mesa {version} does not know {request.param} ({' or '.join(radv.CHIPS[request.param])})")
    return found


@pytest.mark.slow
def test_chains_are_compiled(chip: radv.Chip, program: Path) -> None:
    for found in radv.compiled(program, chip, ["fused", "fused_pair"]):
        assert found.told["Instructions"] < MOST_OF_A_CHAIN, f"{found}: {found.told}"


@pytest.mark.slow
def test_nothing_is_divided_by_what_is_known_before(program: Path) -> None:
    chip = radv.chip_of(program, "RDNA 2")
    assert chip is not None
    for found, code in radv.machine_code(program, chip, [(name, "", {}) for name in WITHOUT_DIVISION]):
        assert "v_rcp" not in code, found
    tiles = [(name, "L2", {}) for name in ("matmul", "conv2d", "conv2d_input_grad")]
    product, *convolutions = [code.count("v_rcp") for _, code in radv.machine_code(program, chip, tiles)]
    assert 0 < product == convolutions[0] == convolutions[1]


def test_products_have_room(chip: radv.Chip, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = radv.compiled(program, chip, ["matmul_chain", "conv2d"], radv.chosen_for(chip))
    assert not [f"{x}: {x.told}" for x in found if x.spills or x.waves < LEAST_WAVES]
    with capsys.disabled():
        waves = {kind: min(x.waves for x in found if x.tile == kind) for kind in radv.chosen_for(chip)}
        print(f"\n{chip.product}, Mesa {chip.version}: fewest waves per SIMD of products, by tiles: {waves}")


@pytest.mark.slow
def test_nothing_spills(chip: radv.Chip, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = radv.compiled(program, chip, sorted(radv.KERNELS), radv.chosen_for(chip))
    found = [x for x in every if radv.is_used(x, chip)]
    assert {x.kernel for x in found} == radv.KERNELS.keys()
    assert not [f"{x}: {x.told}" for x in found if x.spills]
    kernels, names = ALONE
    alone = kernels if any(chip.family in radv.CHIPS[name] for name in names) else set[str]()
    assert {x.kernel for x in found if x.waves < LEAST_WAVES} <= alone
    with capsys.disabled():
        waves = {name: min(x.waves for x in found if x.kernel == name) for name in radv.KERNELS}
        print(f"\n{chip.product}, Mesa {chip.version}: fewest waves per SIMD: {waves}")


@pytest.mark.slow
def test_multiply_adds_are_part_of_what_is_computed(chip: radv.Chip, program: Path) -> None:
    for found, code in radv.machine_code(program, chip, [("matmul", "L2", {}), ("attention", "", {}), ("sum", "", {})]):
        least, most = (0.0, 0.05) if found.kernel == "sum" else (0.7, 0.97)
        assert least <= radv.fma_share(code) <= most, found


LLVM = """
BB0:
\tv_fma_f32 v1, v2, v3, v4                       ; d6130001 04120702
BB1:
\ts_waitcnt lgkmcnt(0)                           ; bf89fc07
\tv_dual_fmac_f32 v1, v2, v3 :: v_dual_mov_b32 v4, v5 ; c8000001
\tv_fmac_f32_e32 v1, v2, v3                      ; 56020702
\tds_load_b128 v[1:4], v5 offset:16              ; dbfc0010
\t(then repeated 3 times)
BB2:
\tv_mov_b32_e32 v0, 0
"""
ACO = """
ACO shader stage: SW (CS), HW (COMPUTE_SHADER)
BB0
/* logical preds: / linear preds: / kind: uniform, top-level, */
\ts_waitcnt_depctr sa_sdst(0)
\t v1: %1:v[1] = v_fmac_f32 %2:v[2], %3:v[3], %1:v[1]
\t v1: %4:v[4],  s2: %5:vcc = v_add_co_u32 %2:v[2], %3:v[3]
\tbuffer_store_dwordx4 %6:s[4-7], %7:v[1], 0, %8:v[4-7] offen storage:buffer
BB1
/* logical preds: BB0, / linear preds: BB0, / kind: uniform, */
\ts_endpgm
"""


@pytest.mark.parametrize(("code", "share"), [(LLVM, 2 / 5), (ACO, 1 / 4)], ids=["LLVM", "Mesa"])
def test_multiply_adds_in_code_of_either_form(code: str, share: float) -> None:
    assert radv.fma_share(code) == share


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["matmul_coop_f16", "batched_matmul_coop_f16"])
@pytest.mark.parametrize("name", ["RDNA 3", "RDNA 3.5", "RDNA 4"])
def test_float16_on_matrix_units_has_room(program: Path, name: str, kernel: str) -> None:
    mesa = radv.newest(program)
    if mesa is None:
        radv.without_newer(program)
    assert mesa is not None
    chip = radv.chip_of(program, name, mesa)
    if chip is None:
        pytest.skip(f"this Mesa does not know {name}")
    for side, down in ((128, 64), (64, 32)):
        tile = CooperativeTile(side, side, 32, down, 32, 64, 1, (16, 16, 16))
        told = radv.on_matrix_units(program, chip, kernel, tile.constants())
        assert told["Spilled VGPRs"] + told["Scratch size"] == 0 and told["Subgroups per SIMD"] >= LEAST_WAVES, told


@pytest.mark.slow
def test_spills_would_be_seen(program: Path) -> None:
    chip = radv.chip_of(program, "RDNA 3")
    if chip is None or int(chip.version.partition(".")[0]) >= 24:
        pytest.skip("this Mesa has registers enough for L on RDNA 3, or does not know it")
    assert radv.compiled(program, chip, ["batched_matmul"], ["L"])[0].spills
    assert "L" not in radv.chosen_for(chip)


@pytest.mark.parametrize(("product", "version", "kinds", "few"), [
    ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "24.1.0", "L L2 M1 M S", False),
    ("AMD Radeon RX 7900 XTX (RADV GFX1100)", "22.3.6", "L8 M4 S", True),
    ("AMD Radeon RX 9070 XT (RADV GFX1201)", "25.0.7", "L L2 M1 M S", False),
    ("AMD Radeon RX 6800 (RADV NAVI21)", "22.3.6", "L L2 M1 M S", False),
    ("AMD Radeon Graphics (RADV VEGA10)", "25.0.7", "L8 M4 S", False),
    ("AMD Radeon RX 580 Series (RADV POLARIS10)", "25.0.7", "L8 M4 S", False),
    ("AMD Radeon RX 7900 XTX", "2.0.294", "L8 M4 S", False),  # AMD's own driver, which nobody has asked
])
def test_tiles_of_a_chip_and_large_heads_where_registers_are_few(product: str, version: str, kinds: str,
                                                                 few: bool) -> None:
    chip = radv.Chip("", product, version, (), radv.Mesa(Path()))
    assert radv.chosen_for(chip) == [*kinds.split(), radv.SKINNY] and set(kinds.split()) <= TILES.keys()
    tiled = Target(few_registers=has_few_registers(radv.card(chip))).tiled_attention
    assert tiled(64, 1) and tiled(32, 1, True)
    assert tiled(65, 1) == tiled(128, 1, True) == tiled(33, 1, True) == (not few)
