"""The architecture, checked on every file: who may import whom, what `import ag` loads, and how long files get.

`LAYERS` is the list of docs/architecture.md; imports point down it.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(p for p in (ROOT / "ag").rglob("*.py"))

# Modules of each layer; a package stands for everything in it.
LAYERS = [
    ["ag.errors", "ag.engine.shape", "ag.engine.window", "ag.engine.dtype", "ag.version"],
    ["ag.engine.primitive", "ag.engine.cpu_threads", "ag.engine.arena", "ag.engine.backends.vulkan.hazards"],
    # The stock-kp recorder copies with the copy kernel, so core_primitives is below the backends.
    ["ag.engine.buffer", "ag.engine.compile.copy_elimination", "ag.engine.compile.liveness", "ag.engine.compile.rematerialize", "ag.engine.compile.memory_plan", "ag.engine.kernels.fused", "ag.engine.compile.fuse_elementwise", "ag.engine.kernels.epilogue",
     "ag.engine.compile.pipeline", "ag.engine.backend", "ag.engine.kernels.elementwise",
     "ag.engine.kernels.convert", "ag.autograd.slice_gradient", "ag.autograd.loss_scale"],
    ["ag.engine.backends"],
    ["ag.engine.device", "ag.engine.devices", "ag.engine.random", "ag.autograd.tensor", "ag.autograd.create", "ag.autograd.tape", "ag.autograd.op", "ag.capture",
     "ag.autograd.gradcheck", "ag.engine.matmul_precision", "ag.autograd.activation_checkpoint", "ag.engine.profile"],
    ["ag.ops"],
    ["ag.nn", "ag.optim", "ag.data", "ag.io.safetensors_file", "ag.io.model_file", "ag.io.checkpoint"],
    ["ag.parallel", "ag.tools.probe", "ag.doctor"],
    ["ag"],
]
BACKENDS = 3  # device.py loads them by name; nothing above imports them

# What may be imported from outside the standard library, and where.
OUTSIDE = {
    "numpy": ["ag.engine.primitive", "ag.engine.cpu_threads", "ag.engine.kernels.elementwise", "ag.engine.kernels.fused", "ag.engine.kernels.epilogue", "ag.engine.kernels.convert", "ag.autograd.loss_scale",
              *(m for layer in LAYERS[3:8] for m in layer), "ag.__main__"],
    "kp": ["ag.engine.backends.vulkan"],
    "safetensors": ["ag.io.safetensors_file"],
    "PIL": ["ag.data.image_folder"],
    "tqdm": ["ag.parallel"],
    "mpi4py": ["ag.parallel.elastic.world"],
    "yaml": ["ag.parallel.elastic.config"],
}


def module_of(path: Path) -> str:
    """Dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


def inside(module: str, package: str) -> bool:
    """Whether a module is a package or lies in it."""
    return module == package or module.startswith(package + ".")


def layer_of(module: str) -> int:
    """Number of the layer that names the module, or the package it is in."""
    return next(i for i, layer in enumerate(LAYERS) if any(inside(module, m) for m in layer))


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports anywhere, also by name; those only for type checkers left out."""
    tree = ast.parse(path.read_text("utf-8"))
    only_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for part in block.body
        for node in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else str(node.module) for name in names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_point_down(path: Path) -> None:
    module = module_of(path)
    mine = layer_of(module)
    for name in imported(path):
        if inside(name, "ag"):
            theirs = layer_of(name)
            assert theirs <= mine, f"{module} (layer {mine}) imports {name} (layer {theirs})"
            by_name = module in ("ag.engine.device", "ag.engine.devices")
            assert theirs != BACKENDS or mine == BACKENDS or by_name, f"{module} imports {name}; ask ag.engine.device"
        elif name.split(".")[0] not in sys.stdlib_module_names:
            where = OUTSIDE[name.split(".")[0]]
            assert any(inside(module, m) for m in where), f"{module} imports {name}, which only {where} may"


def test_every_layer_exists() -> None:
    assert {m for layer in LAYERS for m in layer} <= MODULES


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


def test_files_are_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in [*FILES, *(ROOT / "shaders").iterdir()]
        if path.is_file() and (lines := len(path.read_text("utf-8").splitlines())) > 300
    }
    assert not long, f"files of more than 300 lines, to be split by meaning: {long}"


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
