#!/usr/bin/env python3
"""Compile the kernels in shaders/ to SPIR-V, and describe each in a manifest.

A kernel is a file ``<name>.comp``, or a function of functions.glsl, which is mapped over arrays.  The manifest has its
operands, push constants, specialization constants, and the comments ``// grid:``, ``// work:`` and ``// turns:``
(docs/internals.md).  Unchanged shaders are not compiled again.  This script needs no `ag`.

Shaders are of ``#version 440``: for 450 the compiler first reads what is built into ray tracing and mesh shaders, in
every process anew, which takes longer than all else.  Cooperative matrices need 450.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

ROOT = Path(__file__).resolve().parent
SHADERS = ROOT / "shaders"
OUT = ROOT / "ag" / "engine" / "backends" / "shader" / "spv"

FORMAT = 10  # of the manifest; raise it when what is below writes something else
TARGET = "vulkan1.0"  # SPIR-V 1.0, which every driver takes
PREBUILT = "prebuilt"  # in the folder of shaders
COOPERATIVE_TARGET = "vulkan1.1"  # of shaders with cooperative matrices, which no driver of 1.0 has
MAX_PUSH_WORDS = 32  # Vulkan's guaranteed minimum of 128 bytes; drivers do not refuse more, they misbehave
MAX_INVOCATIONS = 256  # the largest workgroup that every driver of ours accepts
WORD_TYPES = ("uint", "int", "float")
SHARED_TYPES = {"bool": 4, "int": 4, "uint": 4, "float": 4, "uvec4": 16, "vec4": 16, "bf16vec4": 8, "f16vec4": 8}
TOOLS = {"glslangValidator": "glslang-tools", "spirv-opt": "spirv-tools", "spirv-val": "spirv-tools"}

Manifest = dict[str, Any]


class ShaderError(Exception):
    """A shader that does not compile or breaks a convention."""


# ---------------------------------------------------------------------------------------------- tools


def missing_tools() -> str:
    """Say in one sentence what to install; empty if all tools are there."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    packages = " ".join(sorted({TOOLS[tool] for tool in missing}))
    return f"{' and '.join(missing)} not found; install with: apt install {packages}" if missing else ""


def compiler_version() -> str:
    """Return the versions of compiler and optimizer, in one line."""
    return "; ".join(_run(tool, "--version").splitlines()[0] for tool in ("glslangValidator", "spirv-opt"))


def cooperative(shader: Path) -> bool:
    """Return whether a shader multiplies cooperative matrices."""
    return "GL_KHR_cooperative_matrix" in text_of(shader)


@lru_cache(maxsize=1)
def knows_cooperative() -> bool:
    """Return whether all tools support cooperative matrices of bfloat16: glslang 16.5 does, 12.0 does not."""
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe.comp")
        probe.write_text(_PROBE, "utf-8")
        try:
            _to_spirv(probe, probe.with_suffix(".spv"), COOPERATIVE_TARGET)
        except ShaderError:
            return False
    return True


_PROBE = """#version 450
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_bfloat16 : require
layout(local_size_x = 32) in;
shared bf16vec4 x[64];
void main() {
    coopmat<bfloat16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a;
    coopMatLoad(a, x, 0, 4, gl_CooperativeMatrixLayoutRowMajor);
}
"""


def _to_spirv(shader: Path, spv: Path, target: str, *options: str) -> None:
    """Compile, optimise and validate."""
    raw = spv.with_suffix(".raw")
    _run("glslangValidator", "-V", *options, "--target-env", target, shader, "-o", raw)
    _keep_apply(raw)
    _run("spirv-opt", "-O", "--strip-debug", f"--target-env={target}", raw, "-o", spv)
    _run("spirv-val", "--target-env", target, spv)
    raw.unlink()


def _keep_apply(raw: Path) -> None:
    """Let `apply` of chains stay a function: a device leaves out of it what a chain does not apply."""
    words, at, kept = array("I", raw.read_bytes()), 5, None
    while at < len(words):
        if words[at] & 0xFFFF == 5 and words[at + 2 : at + 4].tobytes() == b"apply(u1":  # OpName
            kept = words[at + 1]
        if words[at] & 0xFFFF == 54 and words[at + 2] == kept:  # OpFunction
            words[at + 3] = 2  # DontInline
        at += words[at] >> 16
    raw.write_bytes(words.tobytes())


def _run(*command: str | Path) -> str:
    """Return the output of a tool; ShaderError with that if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise ShaderError(f"{command[0]} failed:\n{done.stdout.strip()}")
    return done.stdout


# ---------------------------------------------------------------------------------------------- functions


class Function(NamedTuple):
    """An elementwise function: ``float <name>_of(float <operand>, ..., const float <parameter>)``."""

    name: str
    operands: tuple[str, ...]
    params: tuple[str, ...]


# What maps a function over arrays, by its operands; the parameter that it may have is a push constant.
MAPS = {("a", "b"): "broadcast.glsl", ("x",): "unary.glsl", ("x", "g"): "gradient.glsl", ("y", "g"): "gradient.glsl"}


def number_of(name: str) -> int:
    """Return the 16-bit checksum of a name, which chains have for it, as `ag.engine.kernels.elementwise` does."""
    return crc32(name.encode()) >> 16


@lru_cache(maxsize=8)
def functions(text: str) -> tuple[Function, ...]:
    """Parse the functions that a text like functions.glsl defines."""
    found = []
    for name, arguments in re.findall(r"^float (\w+)_of\((.*?)\)", text, re.M):
        operands = tuple(re.findall(r"(?<!const )\bfloat (\w+)", arguments))
        params = tuple(re.findall(r"const float (\w+)", arguments))
        signature = ", ".join([*(f"float {x}" for x in operands), *(f"const float {x}" for x in params)])
        if operands not in MAPS or len(params) > (operands != ("a", "b")) or arguments != signature:
            raise ShaderError(f"functions.glsl: {name}_of({arguments}): the operands must be (a, b), (x), (x, g) or "
                              f"(y, g), all float; but for (a, b), one `const float` parameter may follow.")
        found.append(Function(name, operands, params))
    if len({0, *(number_of(f.name) for f in found)}) <= len(found):
        raise ShaderError("functions.glsl: two functions have the same number in chains; rename one of them.")
    return tuple(found)


def kernel_of(function: Function) -> str:
    """Write the kernel that maps a function over arrays."""
    name, operands, params = function
    settings = [f"#define SAVED {operands[0]}"] if operands[-1] == "g" else []
    settings += [f"#define PARAMS float {', '.join(params)};"] if params else []
    return "\n".join([
        f"// {name}: out = {name}_of({', '.join((*operands, *params))}), element by element; see functions.glsl",
        "// grid: n / turns invocations", "#version 440", "#extension GL_GOOGLE_include_directive : require", *settings,
        f'#include "{MAPS[operands]}"', '#include "functions.glsl"', "",
        f"float f({', '.join(f'float {x}' for x in operands)}) {{ "
        f"return {name}_of({', '.join((*operands, *params))}); }}", ""])


def apply_of(table: Collection[Function]) -> str:
    """Write ``apply.glsl``, by which a chain applies the function of a number."""
    def call(function: Function) -> str:
        return ", ".join(("x", "y")[: len(function.operands)] + ("value",) * len(function.params))

    return "\n".join([
        "// The functions of functions.glsl by their numbers in chains, of which a device gets those that it needs.",
        '#include "functions.glsl"', "",
        "float apply(uint function, float x, float y, float value) {",
        "    float found = 0.0;  // no switch: lavapipe takes three times as long for one",
        *(f"    if (function == {number_of(f.name)}) found = {f.name}_of({call(f)});" for f in table),
        "    return found;", "}", ""])


def written(shaders: Path) -> dict[str, str]:
    """Return the files generated from functions.glsl, by name; none if it is missing."""
    path = shaders / "functions.glsl"
    return _written(path.read_text("utf-8") if path.is_file() else "")


@lru_cache(maxsize=4)  # every read of a file asks whether it is generated
def _written(text: str) -> dict[str, str]:
    table = functions(text)
    return {**{f"{function.name}.comp": kernel_of(function) for function in table}, "apply.glsl": apply_of(table)}


# ---------------------------------------------------------------------------------------------- sources


def kernels(shaders: Path) -> list[Path]:
    """List the source of every kernel, generated ones included."""
    return sorted({*shaders.glob("*.comp"), *(shaders / name for name in written(shaders) if name.endswith(".comp"))})


def text_of(path: Path) -> str:
    """Read a file in shaders/, or generate it from functions.glsl."""
    text = written(path.parent).get(path.name)
    if text is None:
        return path.read_text("utf-8")
    if path.is_file():
        raise ShaderError(f"{path.name} follows from functions.glsl; delete the file or the function.")
    return text


def sources(shader: Path) -> list[Path]:
    """List the shader and the files it includes, each once, in the order of inclusion."""
    found = [shader]
    for path in found:
        for name in re.findall(r'^[ \t]*#include[ \t]+"([^"]+)"', text_of(path), re.M):
            included = path.parent / name
            if not included.is_file() and name not in written(path.parent):
                raise ShaderError(f"{path.name} includes {name}, which does not exist.")
            if included not in found:
                found.append(included)
    return found


def fixed(shader: Path) -> bool:
    """Return whether a shader also has a form for software drivers, ``<name>.fixed.spv``, with FIXED defined.

    It has tiles of one size known to the compiler (shaders/tiles.glsl), and loops that stay loops.
    """
    return not cooperative(shader) and any(re.search(r"^#ifn?def FIXED\b", text_of(p), re.M) for p in sources(shader))


def source_hash(shader: Path) -> str:
    """Return the SHA-256 over the text of the shader and of its includes; empty if it does not exist."""
    if not shader.is_file() and shader.name not in written(shader.parent):
        return ""
    return hashlib.sha256("\0".join(text_of(path) for path in sources(shader)).encode()).hexdigest()


# ---------------------------------------------------------------------------------------------- interface


def interface(source: str, text: str) -> dict[str, Any]:
    """Describe a kernel for the backend, from its source, for the comments, and its preprocessed text."""
    operands = _operands(text)
    push = _push(text)
    offsets = [member["name"] for member in push if member["name"].endswith("_at")]
    if sorted(offsets) != sorted(f"{o['name']}_at" for o in operands):
        raise ShaderError(f"the buffers are {', '.join(o['name'] for o in operands)} and the offsets in Args "
                          f"{', '.join(offsets)}; every buffer x needs one member x_at.")
    spec = _spec(text)
    return {
        "operands": operands, "push": push, "spec": spec, "grid": _grid(source),
        "work": _stated(source, "work", "multiply-adds|operations"),
        "multiplies": bool(re.search(r"^// work: .* multiply-adds$", source, re.M)),
        "turns": _stated(source, "turns", "of an invocation's loops"),
        "local_size": _local_size(text, spec), "shared_bytes": _shared_bytes(text),
        "strict": not re.search(r"^// floats: relaxed$", source, re.M),
    }


def _operands(text: str) -> list[dict[str, Any]]:
    qualifier = r"(?:readonly|writeonly|coherent|restrict|volatile)\s+"
    pattern = rf"layout\s*\(([^)]*)\)\s*((?:{qualifier})*)buffer\s+(\w+)\s*\{{"
    found: dict[int, dict[str, Any]] = {}
    for layout, qualifiers, block in re.findall(pattern, text):
        binding = re.search(r"\bbinding\s*=\s*(\d+)(?:\s*\+\s*(\d+))?", layout)
        number = int(binding[1]) + int(binding[2] or 0) if binding else -1
        name = block.rstrip("_").lower()
        same = found.get(number)
        if same and name == f"{same['name']}quads":  # the same operand, seen as vectors
            continue
        if same and name in (f"{same['name']}halves", f"{same['name']}halfquads"):  # or as words of two numbers each
            same["halves"] = True
            continue
        if binding is None or same:
            raise ShaderError(f"buffer {block} needs a binding of its own, as layout(set = 0, binding = 0).")
        found[number] = {"name": name, "writes": "readonly" not in qualifiers}
    if sorted(found) != list(range(len(found))) or not found:
        raise ShaderError(f"the bindings are {sorted(found)}; they must count from 0 as the operands do.")
    return [found[i] for i in sorted(found)]


def _push(text: str) -> list[dict[str, Any]]:
    block = re.search(r"layout\s*\(\s*push_constant\s*\)\s*uniform\s+Args\s*\{(.*?)\}", text, re.S)
    if block is None:
        raise ShaderError("there is no push-constant block `layout(push_constant) uniform Args { ... };`.")
    push = []
    for declaration in filter(None, (part.strip() for part in block[1].split(";"))):
        kind, _, names = declaration.partition(" ")
        for name in names.split(","):
            member = re.fullmatch(r"\s*(\w+)\s*(?:\[\s*(\d+)\s*\])?\s*", name)
            if kind not in WORD_TYPES or member is None:
                raise ShaderError(f"push constant `{declaration}`: members must be {', '.join(WORD_TYPES)} "
                                  f"or arrays of them with a literal size.")
            push.append({"name": member[1], "type": kind, "count": int(member[2] or 1)})
    words = sum(member["count"] for member in push)
    if words > MAX_PUSH_WORDS:
        raise ShaderError(f"Args has {words} words and {MAX_PUSH_WORDS} are allowed; pass more in a buffer.")
    return push


def _spec(text: str) -> list[dict[str, Any]]:
    pattern = r"layout\s*\(\s*constant_id\s*=\s*(\d+)(?:\s*\+\s*(\d+))?\s*\)\s*const\s+(\w+)\s+(\w+)\s*=([^;]+);"
    found = [(int(first) + int(more or 0), *rest) for first, more, *rest in re.findall(pattern, text)]
    spec = []
    for number, kind, name, default in sorted(found):
        if kind not in WORD_TYPES:
            raise ShaderError(f"specialization constant {name} is {kind}; allowed: {', '.join(WORD_TYPES)}.")
        literal = default.replace(" ", "")
        try:
            value = float(literal.rstrip("f")) if kind == "float" else int(literal.rstrip("u"), 0)
        except ValueError as error:
            raise ShaderError(f"specialization constant {name}: `{literal}` is not a literal.") from error
        spec.append({"name": name, "id": number, "type": kind, "default": value})
    if [constant["id"] for constant in spec] != list(range(len(spec))):
        raise ShaderError("the constant_ids must count from 0.")  # kp passes them as an array
    return spec


def _grid(source: str) -> dict[str, Any]:
    found = re.findall(r"^// grid: (.+) (invocations|workgroups)$", source, re.M)
    if len(found) != 1:
        raise ShaderError("exactly one line `// grid: <expression> invocations`, or `workgroups`, is needed.")
    expressions, unit = found[0]
    axes = [axis.strip() for axis in expressions.split(",")]
    most = 1 if unit == "invocations" else 3
    if len(axes) > most or not all(re.fullmatch(r"\w+( [*/] \w+)*", axis) for axis in axes):
        raise ShaderError(f"grid `{expressions} {unit}`: at most {most} axes, each of names and integers "
                          f"with * and / between, evaluated from left to right; / rounds up.")
    return {"unit": unit, "axes": axes}


def _stated(source: str, what: str, unit: str) -> str:
    """Return the expression in a comment ``// what: expression unit``, or "".  Units: ``one|another``."""
    found = re.findall(rf"^// {what}: (.+?)(?: (?:{unit}))?$", source, re.M)
    if len(found) > 1 or not all(re.fullmatch(r"\w+( [*/] \w+)*", expression) for expression in found):
        raise ShaderError(f"one line `// {what}: <expression> {unit}` may stand there, with an expression as those "
                          f"of the grid.")
    return found[0] if found else ""


def _local_size(text: str, spec: list[dict[str, Any]]) -> list[int]:
    """Return the workgroup's size; of a specialization constant, its default."""
    sizes = {axis: int(n) for axis, n in re.findall(r"\blocal_size_([xyz])\s*=\s*(\d+)", text)}
    defaults = {constant["id"]: constant["default"] for constant in spec}
    for axis, number in re.findall(r"\blocal_size_([xyz])_id\s*=\s*(\d+)", text):
        sizes[axis] = defaults.get(int(number), 1)
    size = [sizes.get(axis, 1) for axis in "xyz"]
    if not sizes or size[0] * size[1] * size[2] > MAX_INVOCATIONS:
        raise ShaderError(f"local size {size}: declare it, with at most {MAX_INVOCATIONS} invocations.")
    return size


def _shared_bytes(text: str) -> int:
    """Return the workgroup's shared memory, by its declarations and the defaults of specialization constants."""
    constants = {name: value for names in re.findall(r"\bconst\s+uint\s+([^;{]*);", text)[::-1]
                 for name, value in re.findall(r"(\w+)\s*=\s*([^,]+)", names)}
    total = 0
    for kind, names in re.findall(r"^\s*shared\s+(\w+)\s+([^;]+);", text, re.M):
        if kind not in SHARED_TYPES:
            raise ShaderError(f"shared {kind} {names}: allowed are {', '.join(SHARED_TYPES)}.")
        for name in names.split(","):
            nbytes = SHARED_TYPES[kind]
            for size in re.findall(r"\[([^]]*)\]", name):
                nbytes *= _number(size, constants)
            total += nbytes
    return total


def _number(expression: str, constants: dict[str, str]) -> int:
    """Evaluate an expression of whole numbers and constants as GLSL does."""
    while inner := re.search(r"\(([^()]*)\)", expression):
        expression = f"{expression[:inner.start()]} {_number(inner[1], constants)} {expression[inner.end():]}"
    condition, chosen, others = expression.partition("?")
    if chosen:
        first, _, second = others.partition(":")
        return _number(first if _number(condition, constants) else second, constants)
    known = {"true": "1", "false": "0", **constants}
    found = re.sub(r"\b(\d+)u\b", r"\1", expression)
    found = re.sub(r"\b[A-Za-z_]\w*", lambda name: str(_number(known[name[0]], known)) if name[0] in known else "?",
                   found)
    if not re.search(r"\d", found) or not re.fullmatch(r"[\d\s*/%+<>=!-]+", found):
        raise ShaderError(f"the size `{expression.strip()}` of shared memory is not made of constants.")
    return int(eval(found.replace("/", "//"), {"__builtins__": {}}))


# ---------------------------------------------------------------------------------------------- building


def _place(shader: Path, folder: str) -> Path:
    """Write into a folder what is generated of a shader and its includes; return where the shader is."""
    for path in sources(shader):
        if not path.is_file():
            Path(folder, path.name).write_text(text_of(path), "utf-8")
    return shader if shader.is_file() else Path(folder, shader.name)


def preprocessed(shaders: Sequence[Path]) -> dict[Path, str]:
    """Return the text of each shader of a folder, with its includes, from one process: they begin slowly."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [_place(shader, folder) for shader in shaders]
        text = _run("glslangValidator", "-E", f"-I{shaders[0].parent}", f"-I{folder}", *paths)
    return dict(zip(shaders, re.split(r"^(?=#version)", text, flags=re.M)[1:], strict=True))


def compile_shader(shader: Path, spv: Path, text: str = "") -> dict[str, Any]:
    """Compile, optimise and validate one shader, whose preprocessed text may be given; return its manifest entry.

    A `fixed` one is compiled again with FIXED defined: some software drivers do not unroll loops over specialization
    constants, and are ten times slower then.  One whose operands may have 16 bits has forms for float32 alone, and for
    both, ``<name>.halves.spv``, which drivers compile up to five times as long; small functions have the latter alone.
    """
    if cooperative(shader) and not knows_cooperative() and (made := prebuilt_entry(shader)) is not None:
        shutil.copyfile(shader.parent / PREBUILT / spv.name, spv)
        return made
    target, twice = COOPERATIVE_TARGET if cooperative(shader) else TARGET, fixed(shader)
    entry = interface(text_of(shader), text or preprocessed([shader])[shader])
    halves = shader.is_file() and not cooperative(shader) and any(o.get("halves") for o in entry["operands"])
    with tempfile.TemporaryDirectory() as folder:
        source, includes = _place(shader, folder), (f"-I{shader.parent}", f"-I{folder}")
        for form, flags in (("", ()), (".fixed", ("-DFIXED",))) if twice else (("", ()),):
            _to_spirv(source, spv.with_suffix(f"{form}.spv"), target, *flags, *("-DFLOATS",) * halves, *includes)
            if halves:
                _to_spirv(source, spv.with_suffix(f"{form}.halves.spv"), target, *flags, *includes)
    return {**entry, "fixed": twice, "halves": halves, "sha256": source_hash(shader)}


def read_manifest(out: Path) -> Manifest:
    """Read the manifest of the last build; an empty one if there is none of this format."""
    path = out / "manifest.json"
    manifest: Manifest = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return manifest if manifest.get("format") == FORMAT else {
        "compiler": "", "format": FORMAT, "kernels": {}, "left_out": []}


def wanted(shaders: Path, known: Collection[str]) -> list[Path]:
    """List the shaders that can be compiled or are prebuilt; old tools cannot compile cooperative ones."""
    return [path for path in kernels(shaders)
            if not cooperative(path) or prebuilt_entry(path) is not None
            or (path.stem in known if missing_tools() else knows_cooperative())]


def prebuilt_entry(shader: Path) -> dict[str, Any] | None:
    """Return the manifest entry of a prebuilt shader; None if its text has changed, or it is damaged."""
    folder = shader.parent / PREBUILT
    try:
        entry: dict[str, Any] = json.loads((folder / f"{shader.stem}.json").read_text("utf-8"))
        spirv = (folder / f"{shader.stem}.spv").read_bytes()
        hashes = entry.pop("spirv_sha256"), entry["sha256"], entry.pop("format")
        entry.pop("compiler")
    except (OSError, ValueError, KeyError):
        return None
    return entry if hashes == (hashlib.sha256(spirv).hexdigest(), source_hash(shader), FORMAT) else None


def prebuild(shaders: Path = SHADERS) -> list[str]:
    """Compile the cooperative shaders, which need newer tools, into shaders/prebuilt/; return their names.

    Each file has a hash of the text and of itself, and the tools' versions.  ShaderError if the tools are too old, or
    refuse a shader.
    """
    if not knows_cooperative():
        raise ShaderError(f"these tools ({compiler_version()}) do not know cooperative matrices of bfloat16; glslang "
                          f"16.5 and SPIRV-Tools 2026.4 do.")
    found = [path for path in kernels(shaders) if cooperative(path)]
    (shaders / PREBUILT).mkdir(exist_ok=True)
    for shader in found:
        spv = shaders / PREBUILT / f"{shader.stem}.spv"
        entry = {**compile_shader(shader, spv), "format": FORMAT, "compiler": compiler_version(),
                 "spirv_sha256": hashlib.sha256(spv.read_bytes()).hexdigest()}
        text = json.dumps(entry, indent=1, sort_keys=True) + "\n"
        spv.with_suffix(".json").write_text(text, "utf-8")
    return [path.stem for path in found]


def stale(shaders: Path, out: Path, manifest: Manifest, compiler: str) -> list[str]:
    """Name the kernels to compile, and those whose shader is gone."""
    names = {path.stem: path for path in wanted(shaders, manifest["kernels"])}
    known = manifest["kernels"]
    changed = [
        name for name, path in names.items()
        if name not in known or manifest["compiler"] != compiler or known[name]["sha256"] != source_hash(path)
        or not (out / f"{name}.spv").is_file()
    ]
    return changed + sorted(known.keys() - names.keys())


def build(shaders: Path = SHADERS, out: Path = OUT) -> list[str]:
    """Compile stale kernels and return their names; if one fails, change nothing, and raise ShaderError with all."""
    compiler = compiler_version()
    manifest = read_manifest(out)
    todo = stale(shaders, out, manifest, compiler)
    names = {path.stem for path in wanted(shaders, ())}
    entries = {name: entry for name, entry in manifest["kernels"].items() if name in names}
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".build-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        built = Path(folder)
        changed = [name for name in todo if name in names]
        texts: dict[Path, str] = {}
        with suppress(ShaderError):  # which the shader that it is of raises again
            texts = preprocessed([shaders / f"{name}.comp" for name in changed]) if changed else {}

        def attempt(name: str) -> dict[str, Any] | str:
            shader = shaders / f"{name}.comp"
            try:
                return compile_shader(shader, built / f"{name}.spv", texts.get(shader, ""))
            except ShaderError as error:
                return f"{name}.comp: {error}"

        results = dict(zip(changed, pool.map(attempt, changed), strict=True))
        if errors := [result for result in results.values() if isinstance(result, str)]:
            raise ShaderError("\n".join(errors))
        entries |= results
        left_out = sorted({path.stem for path in kernels(shaders)} - names)
        manifest = {"compiler": compiler, "format": FORMAT, "kernels": entries, "left_out": left_out}
        (built / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", "utf-8")
        for path in (*built.glob("*.spv"), built / "manifest.json"):  # which vouches for the rest
            os.replace(path, out / path.name)
    for path in out.glob("*.spv"):
        if path.name.partition(".")[0] not in names:
            path.unlink()
    return todo


def main(arguments: list[str] | None = None) -> int:
    """Run; exit status 0: done, 1: a shader was refused or is stale, 2: tools are missing."""
    parser = argparse.ArgumentParser(description="Compile the compute shaders.")
    parser.add_argument("--check", action="store_true", help="only say whether something is stale")
    parser.add_argument("--prebuild", action="store_true", help="compile into shaders/prebuilt/ what needs newer tools")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where the SPIR-V goes")
    options = parser.parse_args(arguments)
    try:
        if options.prebuild:
            print(f"prebuilt with {compiler_version()}: {', '.join(prebuild())}")
            return 0
        return _check(options.out) if options.check else _build(options.out)
    except ShaderError as error:
        print(f"kernels_build.py: {error}", file=sys.stderr)
        return 1


def _check(out: Path) -> int:
    # Without a compiler only the sources are compared.
    manifest = read_manifest(out)
    names = stale(SHADERS, out, manifest, manifest["compiler"] if missing_tools() else compiler_version())
    if names:
        print(f"kernels_build.py: stale: {', '.join(names)}; run: python kernels_build.py", file=sys.stderr)
    return 1 if names else 0


def _build(out: Path) -> int:
    if missing_tools():
        print(f"kernels_build.py: {missing_tools()}", file=sys.stderr)
        return 2
    names = build(SHADERS, out)
    if left_out := read_manifest(out)["left_out"]:
        print(f"left out, as these tools ({compiler_version()}) do not know cooperative matrices of bfloat16: "
              f"{', '.join(left_out)}")
    print(f"{len(names)} kernels rebuilt" if names else "kernels are up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
