"""The kernel builder: what it reads from a shader, what it refuses, when it builds again; and that the shaders fit the
primitives."""

from __future__ import annotations

import json
import os
import shutil
from array import array
from operator import add, and_, eq, floordiv, ge, gt, le, lshift, lt, mod, mul, ne, rshift, sub
from pathlib import Path
from typing import Any

import pytest

import ag.engine.kernels  # noqa: F401  importing declares the primitives
import kernels_build
from ag.engine.backends.shader import plans
from ag.engine.backends.shader.tiles import TILES
from ag.engine.kernels.elementwise import fused
from ag.engine.primitive import PRIMITIVES
from kernels_build import ShaderError, build

MANIFEST = kernels_build.read_manifest(kernels_build.OUT)
needs_tools = pytest.mark.skipif(bool(kernels_build.missing_tools()), reason=kernels_build.missing_tools())

SHADER = """// twice: out = factor x
// grid: n / 4, 3 workgroups
#version 440
#extension GL_GOOGLE_include_directive : require
#include "head.glsl"
layout(constant_id = 0) const uint last = 0;
layout(constant_id = FIRST + 1) const int TILE = -4;
layout(push_constant) uniform Args { uint n, out_at, x_at; float factor; uint shape[SIZE]; };
layout(set = 0, binding = 1) readonly buffer X_ { float x[]; };
layout(set = 0, binding = 0) buffer Out_ { float out_[]; };  // bindings count, not the order here
void main() {
    if (gl_GlobalInvocationID.x < n + last + TILE) out_[out_at] = factor * x[x_at] + shape[0];
}
"""
HEAD = "#define SIZE 8\n#define FIRST 0\nlayout(local_size_x = 16, local_size_y = 8) in;\n"


@pytest.fixture
def shaders(tmp_path: Path) -> Path:
    """A folder with one shader and the file it includes."""
    folder = tmp_path / "shaders"
    folder.mkdir()
    (folder / "twice.comp").write_text(SHADER)
    (folder / "head.glsl").write_text(HEAD)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "spv"


def edit(shaders: Path, old: str, new: str) -> None:
    path = shaders / "twice.comp"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


# ---------------------------------------------------------------------------------------------- reading


@needs_tools
def test_the_manifest_describes_the_shader(shaders: Path, out: Path) -> None:
    assert build(shaders, out) == ["twice"]
    manifest = json.loads((out / "manifest.json").read_text())
    entry = manifest["kernels"]["twice"]
    assert manifest["format"] == kernels_build.FORMAT and manifest["compiler"] == kernels_build.compiler_version()
    assert entry["operands"] == [{"name": "out", "writes": True}, {"name": "x", "writes": False}]
    assert [(m["name"], m["type"], m["count"]) for m in entry["push"]] == [
        ("n", "uint", 1), ("out_at", "uint", 1), ("x_at", "uint", 1), ("factor", "float", 1), ("shape", "uint", 8)]
    assert entry["spec"] == [{"name": "last", "id": 0, "type": "uint", "default": 0},
                             {"name": "TILE", "id": 1, "type": "int", "default": -4}]
    assert entry["grid"] == {"unit": "workgroups", "axes": ["n / 4", "3"]}
    assert (entry["work"], entry["multiplies"], entry["turns"]) == ("", False, "")
    assert entry["local_size"] == [16, 8, 1] and entry["shared_bytes"] == 0
    assert entry["sha256"] == kernels_build.source_hash(shaders / "twice.comp")
    assert (out / "twice.spv").read_bytes()[:4] == bytes.fromhex("03022307")


REFUSED = [
    ("float factor", "vec4 factor", "members must be uint, int, float"),
    ("float factor", "double factor", "members must be uint, int, float"),
    ("shape[SIZE]", "shape[29]", "33 words and 32 are allowed"),
    ("uniform Args", "uniform Other", "no push-constant block"),
    ("x_at;", "y_at;", "every buffer x needs one member x_at"),
    ("binding = 1", "binding = 2", "they must count from 0"),
    ("set = 0, binding = 1", "set = 0", "needs a binding of its own"),
    ("// grid", "// the grid", "exactly one line"),
    ("n / 4, 3", "n + 4", "with * and / between"),
    ("3 workgroups", "3 invocations", "at most 1 axes"),
    ("#version", "// work: n + 4\n#version", "as those of the grid"),
    ("#version", "// turns: n + 4\n#version", "as those of the grid"),
    ("constant_id = FIRST + 1", "constant_id = FIRST + 2", "must count from 0"),
    ("TILE = -4", "TILE = 2 * 8", "specialization constant TILE: `2*8` is not a literal"),
    ('"head.glsl"', '"lost.glsl"', "lost.glsl"),
    ("void main", "void", "syntax error"),
    ("void main", "#error here\nvoid main", "here"),
    ("#version 440\n", "", "#version: compute shaders require"),
]


@pytest.mark.slow
@needs_tools
@pytest.mark.parametrize(("old", "new", "message"), REFUSED)
def test_a_broken_shader_fails_the_build(shaders: Path, out: Path, old: str, new: str, message: str) -> None:
    edit(shaders, old, new)
    with pytest.raises(ShaderError) as caught:
        build(shaders, out)
    assert "twice.comp" in str(caught.value) and message in str(caught.value)


@pytest.mark.slow
@needs_tools
@pytest.mark.parametrize("line", ["// work: n * 3 / 4 multiply-adds", "// work: n * 3 / 4 operations",
                                  "// work: n * 3 / 4", "// turns: n * 3 / 4 of an invocation's loops"])
def test_what_a_launch_costs(shaders: Path, out: Path, line: str) -> None:
    edit(shaders, "#version", f"{line}\n#version")
    build(shaders, out)
    entry = kernels_build.read_manifest(out)["kernels"]["twice"]
    assert entry[line[3:].partition(":")[0]] == "n * 3 / 4"
    assert entry["multiplies"] == line.endswith("multiply-adds")
    edit(shaders, "#version", f"{line}\n#version")
    with pytest.raises(ShaderError, match="may stand there"):
        build(shaders, out)


@pytest.mark.slow
@needs_tools
def test_an_operand_seen_as_quads_and_a_local_size_to_be_chosen(shaders: Path, out: Path) -> None:
    edit(shaders, "void main", "layout(set = 0, binding = 1) readonly buffer XQuads_ { vec4 x_quads[]; };\nvoid main")
    edit(shaders, "const int TILE = -4", "const uint TILE = 64")
    (shaders / "head.glsl").write_text(HEAD.replace("local_size_x = 16", "local_size_x_id = 1"))
    with pytest.raises(ShaderError, match=r"local size \[64, 8, 1\]"):
        build(shaders, out)
    edit(shaders, "TILE = 64", "TILE = 32")
    build(shaders, out)
    entry = kernels_build.read_manifest(out)["kernels"]["twice"]
    assert entry["local_size"] == [32, 8, 1] and [o["name"] for o in entry["operands"]] == ["out", "x"]


# ---------------------------------------------------------------------------------------------- building


@pytest.mark.slow
@needs_tools
def test_only_what_changed_is_built(shaders: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(shaders / "twice.comp", shaders / "other.comp")
    assert build(shaders, out) == ["other", "twice"]
    assert build(shaders, out) == []
    edit(shaders, "factor * x[x_at]", "x[x_at] * factor")
    assert build(shaders, out) == ["twice"]
    (shaders / "head.glsl").write_text(HEAD + "// changed\n")
    assert build(shaders, out) == ["other", "twice"]
    (out / "twice.spv").unlink()
    assert build(shaders, out) == ["twice"]
    (shaders / "other.comp").unlink()
    assert build(shaders, out) == ["other"]
    assert sorted(contents(out)) == ["manifest.json", "twice.spv"]
    monkeypatch.setattr(kernels_build, "compiler_version", lambda: "a newer one")
    assert build(shaders, out) == ["twice"]


@pytest.mark.slow
@needs_tools
def test_a_failed_build_changes_nothing(shaders: Path, out: Path) -> None:
    build(shaders, out)
    before = contents(out)
    (shaders / "alright.comp").write_text(SHADER)
    edit(shaders, "void main", "#error here\nvoid main")  # in the process that reads all of them
    with pytest.raises(ShaderError, match=r"here") as caught:
        build(shaders, out)
    assert str(caught.value).startswith("twice.comp: ") and "alright" not in str(caught.value)
    assert contents(out) == before


@pytest.fixture
def mixed(shaders: Path) -> Path:
    """The folder, with a shader on cooperative matrices."""
    needs = "#extension GL_KHR_cooperative_matrix : require\n#include"
    (shaders / "new.comp").write_text(SHADER.replace("#include", needs))
    return shaders


@pytest.mark.slow
@needs_tools
def test_cooperative_shaders_are_left_out_where_the_tools_are_old(
    mixed: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(kernels_build, "knows_cooperative", lambda: False)
    monkeypatch.setattr(kernels_build, "SHADERS", mixed)
    arguments = ["--out", str(out)]
    assert kernels_build.main(arguments) == 0
    said = capsys.readouterr().out
    assert said.startswith("left out, as these tools (")
    assert "do not know cooperative matrices of bfloat16: new\n1 kernels rebuilt\n" in said
    manifest = kernels_build.read_manifest(out)
    assert list(manifest["kernels"]) == ["twice"] and manifest["left_out"] == ["new"]
    assert sorted(contents(out)) == ["manifest.json", "twice.spv"]
    assert kernels_build.main([*arguments, "--check"]) == 0
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))  # nobody knows what there are tools for
    assert kernels_build.main([*arguments, "--check"]) == 0


@pytest.mark.slow
@needs_tools
def test_better_tools_add_what_was_left_out(mixed: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_build, "knows_cooperative", lambda: False)
    build(mixed, out)
    targets = []

    def to_spirv(shader: Path, spv: Path, target: str, *options: str) -> None:
        targets.append((shader.stem, target, "-DFIXED" in options))
        spv.write_bytes(b"")

    monkeypatch.setattr(kernels_build, "knows_cooperative", lambda: True)
    monkeypatch.setattr(kernels_build, "_to_spirv", to_spirv)
    monkeypatch.setattr(kernels_build, "interface", lambda *_: {"spec": [{"name": "THREADS"}]})
    assert build(mixed, out) == ["new"]
    assert targets == [("new", kernels_build.COOPERATIVE_TARGET, False)]  # and none for software drivers
    assert kernels_build.read_manifest(out)["left_out"] == []


COOPERATIVE = [path for path in kernels_build.kernels(kernels_build.SHADERS) if kernels_build.cooperative(path)]


@pytest.mark.parametrize("shader", COOPERATIVE, ids=lambda path: path.stem)
def test_what_newer_tools_have_made_is_of_the_same_text(shader: Path) -> None:
    """Else run ``python kernels_build.py --prebuild`` with glslang 16.5 or newer; until then the kernel is left out."""
    entry = kernels_build.prebuilt_entry(shader)
    assert entry is not None
    assert [constant["name"] for constant in entry["spec"]][-5:] == ["TERMS", "M", "N", "K", "types"]
    built = kernels_build.read_manifest(kernels_build.OUT)["kernels"][shader.stem]
    assert built == entry  # with these tools or others


@pytest.mark.slow
@pytest.mark.parametrize("shader", COOPERATIVE, ids=lambda path: path.stem)
def test_what_newer_tools_have_made_is_taken(shader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shaders = tmp_path / "shaders"
    shutil.copytree(kernels_build.SHADERS, shaders)
    monkeypatch.setattr(kernels_build, "knows_cooperative", lambda: False)
    mine, prebuilt = shaders / shader.name, shaders / kernels_build.PREBUILT / f"{shader.stem}.spv"

    def is_taken() -> bool:
        return mine in kernels_build.wanted(shaders, ()) and kernels_build.prebuilt_entry(mine) is not None

    assert is_taken()
    entry = kernels_build.compile_shader(mine, tmp_path / prebuilt.name)
    assert (tmp_path / prebuilt.name).read_bytes() == prebuilt.read_bytes()
    assert entry["sha256"] == kernels_build.source_hash(mine)
    spirv, text = prebuilt.read_bytes(), mine.read_text("utf-8")
    mine.write_text(text + "// changed\n", "utf-8")
    assert not is_taken()
    mine.write_text(text, "utf-8")
    prebuilt.write_bytes(spirv[:-4])
    assert not is_taken()
    prebuilt.write_bytes(spirv)
    assert is_taken()
    prebuilt.with_suffix(".json").write_text("{}")
    assert not is_taken()


def test_old_tools_prebuild_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(kernels_build, "knows_cooperative", lambda: False)
    monkeypatch.setattr(kernels_build, "compiler_version", lambda: "Glslang 12")
    assert kernels_build.main(["--prebuild"]) == 1
    assert "these tools (Glslang 12) do not know cooperative matrices of bfloat16" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- functions

FUNCTIONS = """// as in ag
float half_of(float x) { return 0.5 * x; }
float scaled_grad_of(float y, float g, const float factor) {
    return factor * g * y;
}
"""


@pytest.fixture
def table(shaders: Path) -> Path:
    """The folder, with two functions and what their kernels include, and a chain of them."""
    (shaders / "functions.glsl").write_text(FUNCTIONS)
    for name in ("unary", "gradient", "turns", "index", "numbers", "half_bits"):
        shutil.copy(kernels_build.SHADERS / f"{name}.glsl", shaders)
    chain = SHADER.replace('"head.glsl"', '"head.glsl"\n#include "apply.glsl"').replace(
        "= factor * x[x_at]", "= apply(n, x[x_at], factor, factor)")
    (shaders / "chain.comp").write_text(chain)
    return shaders


@pytest.mark.slow
@needs_tools
def test_a_function_becomes_a_kernel_and_an_instruction(table: Path, out: Path) -> None:
    assert build(table, out) == ["chain", "half", "scaled_grad", "twice"]
    entry = kernels_build.read_manifest(out)["kernels"]["scaled_grad"]
    assert entry["operands"] == [{"name": "out", "writes": True, "halves": True},
                                 {"name": "y", "writes": False, "halves": True},
                                 {"name": "g", "writes": False, "halves": True}]
    assert [m["name"] for m in entry["push"]] == ["n", "out_at", "y_at", "g_at", "factor"]
    assert entry["grid"] == {"unit": "invocations", "axes": ["n / turns"]} and entry["local_size"] == [128, 1, 1]
    apply = kernels_build.text_of(table / "apply.glsl")
    assert f"if (function == {kernels_build.number_of('half')}) found = half_of(x);" in apply
    assert f"if (function == {kernels_build.number_of('scaled_grad')}) found = scaled_grad_of(x, y, value);" in apply


@pytest.mark.slow
@needs_tools
def test_a_changed_function_builds_its_kernels_again(table: Path, out: Path) -> None:
    build(table, out)
    assert build(table, out) == []
    (table / "functions.glsl").write_text(FUNCTIONS.replace("0.5 * x", "0.25 * x"))
    assert build(table, out) == ["chain", "half", "scaled_grad"]
    (table / "functions.glsl").write_text("")
    assert build(table, out) == ["chain", "half", "scaled_grad"]
    assert sorted(contents(out)) == ["chain.spv", "manifest.json", "twice.spv"]


@pytest.mark.parametrize("signature", [
    "pair_of(float x, float y)", "many_of(float x, const float lo, const float hi)",
    "mixed_of(float a, float b, const float s)", "counted_of(float x, const int n)", "first_of(const float s, float x)",
    "nothing_of()"])
def test_a_function_that_no_kernel_maps_is_refused(table: Path, signature: str) -> None:
    (table / "functions.glsl").write_text(f"float {signature} {{ return 0.0; }}\n")
    with pytest.raises(ShaderError, match=r"functions.glsl: .*the operands must be \(a, b\), \(x\), \(x, g\) or"):
        kernels_build.kernels(table)


def test_functions_must_have_numbers_of_their_own(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_build, "number_of", len)
    (table / "functions.glsl").write_text("float one_of(float x) { return x; }\nfloat two_of(float x) { return x; }\n")
    with pytest.raises(ShaderError, match="two functions have the same number"):
        kernels_build.kernels(table)


def test_a_kernel_is_written_once(table: Path) -> None:
    (table / "half.comp").write_text(SHADER)
    with pytest.raises(ShaderError, match=r"half\.comp follows from functions\.glsl; delete the file or the function"):
        kernels_build.source_hash(table / "half.comp")


# ---------------------------------------------------------------------------------------------- command line


@pytest.mark.slow
@needs_tools
def test_check_says_what_is_stale(
    shaders: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels_build, "SHADERS", shaders)
    arguments = ["--out", str(out)]
    assert kernels_build.main([*arguments, "--check"]) == 1
    assert kernels_build.main(arguments) == 0
    assert kernels_build.main([*arguments, "--check"]) == 0
    edit(shaders, "factor * x[x_at]", "x[x_at] * factor")
    capsys.readouterr()
    assert kernels_build.main([*arguments, "--check"]) == 1
    assert capsys.readouterr().err == "kernels_build.py: stale: twice; run: python kernels_build.py\n"
    edit(shaders, "void main", "void")
    assert kernels_build.main(arguments) == 1
    assert "twice.comp" in capsys.readouterr().err


def test_missing_tools_are_named(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))
    assert kernels_build.main(["--out", str(out)]) == 2
    assert capsys.readouterr().err == (
        "kernels_build.py: glslangValidator and spirv-opt and spirv-val not found; "
        "install with: apt install glslang-tools spirv-tools\n")
    assert not out.exists()


# ---------------------------------------------------------------------------------------------- shaders and primitives


SHADERS = {path.stem for path in kernels_build.kernels(kernels_build.SHADERS)}
# Kernels that a primitive has beside its own, and the primitive.
VARIANTS = {name: name.partition("_coop")[0].replace("_direct", "") for name in SHADERS - {*PRIMITIVES}}


def test_every_primitive_has_a_kernel_and_every_kernel_a_primitive() -> None:
    assert {*PRIMITIVES} <= SHADERS
    assert {*VARIANTS.values()} <= {*PRIMITIVES}


def test_the_functions_are_the_fusable_primitives_and_have_their_numbers() -> None:
    table = kernels_build.functions((kernels_build.SHADERS / "functions.glsl").read_text("utf-8"))
    assert {f.name: (("out", *f.operands), f.params) for f in table} == {
        p.name: (p.operands, p.params) for p in PRIMITIVES.values() if p.fusable}
    for f in table:
        codes = fused.layout(*[(2,)] * 5, chain=((f.name, 3, 2, 0.5),))
        assert codes["op1"] == kernels_build.number_of(f.name) << 16 | 3 << 8 | 2


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of the project, of which only those are compiled that are not there already."""
    if kernels_build.missing_tools():
        pytest.skip(kernels_build.missing_tools())
    out = tmp_path_factory.mktemp("spv")
    if kernels_build.OUT.is_dir():
        shutil.copytree(kernels_build.OUT, out, dirs_exist_ok=True)
    build(kernels_build.SHADERS, out)
    return out


@pytest.fixture(scope="module")
def kernels(built: Path) -> dict[str, Any]:
    """The entries of all shaders of the project."""
    entries: dict[str, Any] = kernels_build.read_manifest(built)["kernels"]
    return entries


@pytest.mark.slow
def test_all_kernels_anew_are_the_same_bytes(built: Path, out: Path) -> None:
    build(kernels_build.SHADERS, out)
    assert contents(out) == contents(built)


def test_the_manifest_lists_the_primitives_and_their_variants(kernels: dict[str, Any]) -> None:
    assert {name for name in kernels if "_coop" not in name} == {
        name for name in SHADERS if "_coop" not in name}


def test_a_shader_has_the_operands_of_its_primitive(kernels: dict[str, Any]) -> None:
    for kernel, entry in kernels.items():
        primitive = PRIMITIVES[VARIANTS.get(kernel, kernel)]
        assert tuple(operand["name"] for operand in entry["operands"]) == primitive.operands, kernel
        writes = tuple(i for i, operand in enumerate(entry["operands"]) if operand["writes"])
        assert writes == (*range(primitive.outputs), *primitive.updates), kernel


def test_a_shader_is_short_and_begins_with_what_it_does() -> None:
    for path in kernels_build.SHADERS.glob("*.*"):
        lines = path.read_text("utf-8").splitlines()
        most = 300 if path.name == "functions.glsl" else 90  # that one is a table, a few lines per op
        assert len(lines) <= most and max(map(len, lines)) <= 120, path
        assert lines[0].startswith(f"// {path.stem}" if path.suffix == ".comp" else "// "), path
        if path.suffix == ".comp":  # 450 takes the compiler twice as long
            assert ("#version 450" if kernels_build.cooperative(path) else "#version 440") in lines, path


# ---------------------------------------------------------------------------------------------- shared memory


@pytest.mark.slow
@needs_tools
def test_shared_memory_is_summed_up(shaders: Path, out: Path) -> None:
    edit(shaders, "void main", "const uint WIDE = 4, HIGH = (last == 0) ? WIDE * 2u : 3;\n"
         "shared vec4 a[HIGH * (WIDE + 1)], b[2];\nshared bool c;\nshared float d[3][HIGH / 4];\nvoid main")
    build(shaders, out)
    entry = kernels_build.read_manifest(out)["kernels"]["twice"]
    assert entry["shared_bytes"] == 16 * (8 * 5 + 2) + 4 + 4 * 3 * 2
    edit(shaders, "bool c", "dvec4 c")
    with pytest.raises(ShaderError, match="shared dvec4 c: allowed are bool"):
        build(shaders, out)


def test_a_size_that_is_no_constant() -> None:
    with pytest.raises(ShaderError, match="the size `n` of shared memory is not made of constants"):
        kernels_build._shared_bytes("shared float x[n];")


def shared_bytes(spirv: bytes, values: dict[int, int]) -> int:
    """Shared memory of a binary, given its specialization constants by their numbers."""
    words = array("I", spirv)
    found: dict[int, int] = {}  # constants by id
    nbytes: dict[int, int] = {}  # types by id
    numbers: dict[int, int] = {}  # specialization constants: id to number
    pointed: dict[int, int] = {}
    total, at = 0, 5
    operators = {128: add, 130: sub, 132: mul, 134: floordiv, 169: lambda c, a, b: a if c else b, 170: eq, 171: ne,
                 172: gt, 174: ge, 176: lt, 178: le, 199: and_, 194: rshift, 196: lshift, 137: mod}
    while at < len(words):
        length, code = words[at] >> 16, words[at] & 0xFFFF
        given = words[at + 1 : at + length].tolist()
        at += length
        if code == 71 and given[1] == 1:  # OpDecorate SpecId
            numbers[given[0]] = given[2]
        elif code in (20, 21, 22):  # bool, int, float; the latter two with their bits
            nbytes[given[0]] = given[1] // 8 if code > 20 else 4
        elif code == 23:  # vector
            nbytes[given[0]] = nbytes[given[1]] * given[2]
        elif code == 28:  # array
            nbytes[given[0]] = nbytes.get(given[1], 0) * found[given[2]]
        elif code == 32:  # pointer
            pointed[given[0]] = given[2]
        elif code in (43, 50):  # OpConstant, OpSpecConstant
            found[given[1]] = values.get(numbers.get(given[1], -1), given[2])
        elif code == 52:  # OpSpecConstantOp
            found[given[1]] = int(operators[given[2]](*[found[x] for x in given[3:]]))
        elif code == 59 and given[2] == 4:  # OpVariable in Workgroup
            total += nbytes[pointed[given[0]]]
    return total


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MANIFEST["kernels"]))
def test_the_manifest_has_the_shared_memory_of_the_binaries(name: str) -> None:
    entry = MANIFEST["kernels"][name]
    assert shared_bytes((kernels_build.OUT / f"{name}.spv").read_bytes(), {}) == entry["shared_bytes"]
    if any(c["name"] == "TILE_ROWS" for c in entry["spec"]) and "_coop" not in name:
        for kind, tile in TILES.items():
            values = {c["id"]: tile.constants()[c["name"]] for c in entry["spec"] if c["name"] in tile.constants()}
            assert shared_bytes((kernels_build.OUT / f"{name}.spv").read_bytes(), values) == tile.shared_bytes, kind
        assert shared_bytes((kernels_build.OUT / f"{name}.fixed.spv").read_bytes(), {}) == TILES["S"].shared_bytes
    numbers = {c["name"]: c["id"] for c in entry["spec"]}
    for suffix in ("", ".fixed") if "held" in numbers else ():
        values = {numbers["blocks"]: 3, numbers["held"]: 2}
        spirv = (kernels_build.OUT / f"{name}{suffix}.spv").read_bytes()
        assert shared_bytes(spirv, values) == entry["shared_bytes"] + 3 * 2 * plans.HELD_BYTES
