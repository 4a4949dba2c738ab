"""The architecture, checked on every file: what `import ag` loads, who knows backends by name, how long files get."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(p for p in (ROOT / "ag").rglob("*.py"))

def module_of(path: Path) -> str:
    """Dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


def inside(module: str, package: str) -> bool:
    """Whether a module is a package or lies in it."""
    return module == package or module.startswith(package + ".")


def test_backends_have_no_names_above_the_device_registry() -> None:
    name = re.compile(r"(cpu|gpu|vulkan|numpy|kp)(:\d*)?")
    for path in FILES:
        if module_of(path) == "ag.engine.device" or inside(module_of(path), "ag.engine.backends"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            tested = isinstance(node, (ast.Compare, ast.MatchValue)) or (
                isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("startswith", "partition", "split")))
            for part in ast.walk(node) if tested else ():
                value = part.value if isinstance(part, ast.Constant) else None
                assert not (isinstance(value, str) and name.fullmatch(value)), (
                    f"{module_of(path)}:{node.lineno} decides by the backend's name {value!r}")


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), f"{path.name} has no docstring"


def code_lines(path: Path) -> int:
    """Lines of a file without its docstrings."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        return len(text.splitlines())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    strings = [node.body[0] for node in ast.walk(ast.parse(text))
               if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None]
    return len(text.splitlines()) - sum((s.end_lineno or s.lineno) - s.lineno + 1 for s in strings)


def test_files_are_short() -> None:
    long = {str(path.relative_to(ROOT)): lines for path in [*FILES, *(ROOT / "shaders").iterdir()]
            if path.is_file() and (lines := code_lines(path)) > 300}
    assert not long, f"files of more than 300 lines of code, to be split by meaning: {long}"


# ---------------------------------------------------------------------------------------------- import ag


def run(code: str) -> str:
    """Output of a fresh interpreter."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_loads_no_driver_and_no_optional_package() -> None:
    loaded = run("import ag, sys; print(*sys.modules)").split()
    assert "ag" in loaded
    assert not {"kp", "mpi4py", "PIL", "torch", "matplotlib", "yaml"} & set(loaded)
    assert not [m for m in loaded if inside(m, "ag.engine.backends")]


def test_importing_is_quick() -> None:
    # processor time, in units of numpy's: neither a slow nor a busy machine must fail this
    code = ("from time import process_time as now; a = now(); import numpy; b = now(); import ag; "
            "print((now() - b) / (b - a))")
    assert statistics.median(float(run(code)) for _ in range(5)) < 6  # 2 where nothing else runs
