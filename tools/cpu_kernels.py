#!/usr/bin/env python3
"""Compile the C kernels of the CPU device, and describe them in a manifest.

Reads the C files in `ag/engine/backends/cpu/kernels` and shaders/functions.glsl, whose elementwise functions become C,
too; writes ``kernels.so`` for any such processor, ``kernels.v3.so`` and ``kernels.v4.so`` for x86-64 with AVX2 and
AVX-512, and ``manifest.json`` into `ag/engine/backends/cpu/built`.  Where an old compiler does not know such
processors, the manifest says why their library is left out.  Needs the standard library and a C compiler (``CC``, or
one of gcc, clang, cc) and knows nothing of `ag`; `make setup` and the wheel's build call it.  Without a compiler it
says so in one line, and the device computes with numpy.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from kernels_build import Function, functions, number_of  # noqa: E402 - it lies beside this folder

SHADERS = ROOT / "shaders"
SOURCES = ROOT / "ag" / "engine" / "backends" / "cpu" / "kernels"
OUT = SOURCES.parent / "built"

FORMAT = 1  # of the manifest
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-Wall", "-Wextra",
     "-Werror=implicit-function-declaration", "-pthread"]
# AG_CPU_LEVELS=native leaves out those that this processor does not use.
LEVELS = {"x86_64": {"": [], ".v3": ["-march=x86-64-v3"], ".v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"]}}
NEEDS = {".v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}, ".v3": {"avx2", "bmi2", "fma", "movbe"}}
CPUINFO = Path("/proc/cpuinfo")  # where Linux lists what a processor can do
_PER_FILE = 12  # functions; files are compiled side by side
CONTRACT = re.compile(r"^// contract\b", re.M)  # of files whose products and sums may become one operation
MEMBER = re.compile(r"((?:const )?(?:float|number|double|int32_t|uint32_t|word|void) \*|int64_t |double )(\w+)"
                    r"(?:\[(\d+)\])?")


class KernelError(Exception):
    """A kernel that does not compile or breaks a convention."""


def compiler() -> list[str]:
    """The command that compiles C; empty if there is none."""
    given = shlex.split(os.environ.get("CC", ""))
    for command in (given, ["gcc"], ["clang"], ["cc"]):
        if command and shutil.which(command[0]):
            return command
    return []


# ---------------------------------------------------------------------------------------------- functions.glsl in C


def in_c(path: Path, seen: set[Path]) -> str:
    """A text of GLSL as C: what it includes in its place, once, and an f at every constant."""
    if path in seen:
        return ""
    seen.add(path)
    lines = []
    for line in path.read_text("utf-8").splitlines():
        included = re.match(r'#include "(.+)"', line)
        lines.append(in_c(path.parent / included[1], seen) if included else line)
    text = "\n".join(lines)
    text = re.sub(r"(?<![\w.])(\d+\.\d*(?:e[+-]?\d+)?)(?![\w.])", r"\1f", text)
    return re.sub(r"^float (\w+)\(", r"static inline float \1(", text, flags=re.M)


def function_text(function: Function) -> str:
    """The C text that maps a function over arrays, and its kernel."""
    name, operands, params = function
    call = ", ".join([f"{x}[i]" for x in ("x", "y")[: len(operands)]] + ["value"] * len(params))
    unused = [x for x, used in (("y", len(operands) == 2), ("value", params)) if not used]
    body = "".join(f"    (void){x};\n" for x in unused)
    pointers = " ".join(f"const number *{x};" for x in operands)
    if operands == ("a", "b"):
        sizes = "int64_t n; int64_t ndim; int64_t shape[8]; int64_t a_stride[8]; int64_t b_stride[8];"
        sizes += " int64_t types;"
        run = (f"    map_broadcast(map_{name}, a->types, a->out, a->a, a->b, (walk){{a->n, a->ndim, a->shape, "
               f"a->a_stride, a->b_stride}}, part, parts);\n")
    else:
        sizes = " ".join(["int64_t n;", *(f"double {p};" for p in params), "int64_t types;"])
        inputs = ", ".join([f"a->{x}" for x in (operands * 2)[:2]])
        value = f"(float)a->{params[0]}" if params else "0.0f"
        run = (f"    map_all(map_{name}, a->types, a->out, {inputs}, {value}, "
               "share(a->n, BLOCK, part, parts));\n")
    return (f"void map_{name}(float *out, const float *x, const float *y, float value, int64_t n) {{\n{body}"
            f"#pragma GCC ivdep\n    for (int64_t i = 0; i < n; i++) out[i] = {name}_of({call});\n}}\n"
            f"KERNEL({name}, {{ number *out; {pointers} {sizes} }}) {{\n{run}}}\n")


def functions_files() -> dict[str, str]:
    """``functions.h``, the table by which chains find functions, and files with some functions and kernels each."""
    path = SHADERS / "functions.glsl"
    table = functions(path.read_text("utf-8"))
    head = "\n".join(['#include "glsl.h"', '#include "functions.h"', in_c(path, set()), ""])
    rows = "\n".join(f"    {{{number_of(f.name)}, map_{f.name}}}," for f in table)
    declared = [f"void map_{f.name}(float *, const float *, const float *, float, int64_t);" for f in table]
    header = ["#ifndef FUNCTIONS_H", "#define FUNCTIONS_H", '#include "maps.h"', *declared,
              f"static const struct {{ int64_t number; map run; }} MAPS[] = {{\n{rows}\n}};", "#endif", ""]
    return {"functions.h": "\n".join(header), **{
        f"functions_{i // _PER_FILE}.c": head + "\n".join(map(function_text, table[i : i + _PER_FILE]))
        for i in range(0, len(table), _PER_FILE)}}


# ---------------------------------------------------------------------------------------------- interface


def interface(text: str) -> dict[str, Any]:
    """The kernels that a text of C declares: by name, operands with their types, numbers, and how much work it is."""
    found = {}
    pattern = r"(?:^// work: ([^\n]+)\n)?^KERNEL\((\w+), \{(.*?)\}\)"
    for work, name, block in re.findall(pattern, text, re.M | re.S):
        operands, numbers = [], []
        for member in filter(None, map(str.strip, block.split(";"))):
            match = MEMBER.fullmatch(member)
            if match is None or (match[1].endswith("*") and (numbers or match[3])):
                raise KernelError(f"{name}: `{member}` is not a pointer to float, number, double, int32_t, uint32_t, "
                                  f"word or void, which come first, nor an int64_t or double, or an array of these.")
            if match[1].endswith("*"):
                kind = match[1].removeprefix("const ").removesuffix(" *")
                operands.append({"name": match[2], "type": kind, "writes": not match[1].startswith("const")})
            else:
                numbers.append({"name": match[2], "type": match[1].strip(), "count": int(match[3] or 1)})
        if work and not re.fullmatch(r"\w+( \* \w+)*", work):
            raise KernelError(f"{name}: `// work: {work}` must be names and numbers with * between.")
        found[name] = {"operands": operands, "numbers": numbers, "work": work.split(" * ") if work else []}
    return found


# ---------------------------------------------------------------------------------------------- building


def build(command: list[str], out: Path = OUT, levels: dict[str, list[str]] | None = None,
          more: Sequence[str] = ()) -> None:
    """Compile every kernel for every level, and write the manifest last.

    Raises
    ------
    KernelError
        If they do not compile for any such processor; other levels are left out, and the manifest says why.
    """
    levels = wanted() if levels is None else levels
    out.mkdir(parents=True, exist_ok=True)
    (out / "manifest.json").unlink(missing_ok=True)
    kernels: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, text in functions_files().items():
            Path(folder, name).write_text(text, "utf-8")
        paths = [*sorted(Path(folder).glob("*.c")), *sorted(SOURCES.rglob("*.c"))]
        sources = {path: path.read_text("utf-8") for path in paths}
        for path, text in sources.items():
            declared = interface(text)
            if twice := kernels.keys() & declared.keys():
                raise KernelError(f"{path.name}: {', '.join(sorted(twice))} is declared twice.")
            kernels |= declared
        jobs = []
        for level, flags in levels.items():
            for path, text in sources.items():
                made = Path(folder, f"{path.stem}{level}.o")
                contract = ["-ffp-contract=fast"] if CONTRACT.search(text) else []
                jobs.append((level, pool.submit(
                    subprocess.run, [*command, *FLAGS, *flags, *contract, *more, f"-I{folder}", f"-I{SOURCES}", "-c",
                                     str(path), "-o", str(made)], stderr=subprocess.PIPE, text=True, check=False)))
        failed: dict[str, str] = {}
        for level, job in jobs:
            if (done := job.result()).returncode:
                failed.setdefault(level, done.stderr)
        for level in levels:
            objects = [str(Path(folder, f"{path.stem}{level}.o")) for path in sources]
            library = out / f"kernels{level}.so"
            library.unlink(missing_ok=True)  # not written over: a process may have it open
            if level not in failed:
                linked = subprocess.run([*command, "-shared", "-pthread", *more, *objects, "-lm", "-o", str(library)],
                                        capture_output=True, text=True, check=False)
                if linked.returncode:
                    failed[level] = linked.stderr
    if "" in failed:
        raise KernelError(failed[""])
    manifest = {"format": FORMAT, "machine": platform.machine(), "kernels": kernels,
                "levels": [level for level in levels if level not in failed],
                "left_out": {level: one_line(message) for level, message in failed.items()},
                "functions": [f.name for f in functions((SHADERS / "functions.glsl").read_text("utf-8"))],
                "sources": hashes()}
    manifest["libraries"] = {level: digest(out / f"kernels{level}.so") for level in manifest["levels"]}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")


def one_line(message: object) -> str:
    """The beginning of what a compiler says."""
    return " ".join(str(message).split())[:300]


def digest(path: Path) -> str:
    """SHA-256 of a file; empty if it is not there."""
    return sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def hashes() -> dict[str, str]:
    """SHA-256 of every file that the kernels come from."""
    shaders: set[Path] = set()
    in_c(SHADERS / "functions.glsl", shaders)
    return {path.relative_to(ROOT).as_posix(): digest(path) for path in sorted({*SOURCES.rglob("*.[ch]"), *shaders})}


def wanted() -> dict[str, list[str]]:
    """The levels to compile, with their flags: all, or this processor's best beside the one that asks what it is."""
    levels = LEVELS.get(platform.machine(), {"": []})
    if os.environ.get("AG_CPU_LEVELS") != "native" or not CPUINFO.is_file():
        return levels
    found = re.search(r"^flags\s*:(.*)$", CPUINFO.read_text("utf-8"), re.M)
    flags = set(found[1].split()) if found else set()
    best = next((level for level, needs in NEEDS.items() if level in levels and needs <= flags), "")
    return {level: levels[level] for level in dict.fromkeys(["", best])}


def is_built(out: Path) -> bool:
    """Whether all wanted kernels are there, whole, for this kind of machine, and come from the sources of now."""
    try:
        manifest = json.loads((out / "manifest.json").read_text("utf-8"))
        whole = all(digest(out / f"kernels{level}.so") == known for level, known in manifest["libraries"].items())
        whole = whole and wanted().keys() <= {*manifest["libraries"]}
        made = [manifest[key] for key in ("format", "machine", "sources", "left_out")]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # no manifest, a damaged or an older one
        return False
    return whole and made == [FORMAT, platform.machine(), hashes(), {}]


def update() -> str:
    """Compile what is not built; "" if all is there, or why not, in one line."""
    if is_built(OUT):
        return ""
    command = compiler()
    if not command:
        return "no C compiler; install with: apt install gcc"
    try:
        build(command, OUT)
    except (KernelError, OSError) as error:  # OSError: a compiler that cannot be started, a full disk
        return f"the kernels in C do not compile ({one_line(error)})"
    return ""


def main() -> int:
    begin = perf_counter()
    built, why = is_built(OUT), update()
    if not built and not why:
        made = sorted(OUT.glob("*.so"))
        size = sum(path.stat().st_size for path in made) / 1e6
        print(f"{', '.join(path.name for path in made)}: {size:.1f} MB in {perf_counter() - begin:.0f} s")
    if why:
        print(f"the CPU computes with numpy: {why}")
    return int(bool(why))


if __name__ == "__main__":
    sys.exit(main())
