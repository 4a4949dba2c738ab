"""The rooms of `ag`: which folder may import which, what really does, and a picture of it.

`python tools/rooms.py docs/rooms.svg` draws the picture of docs/architecture.md from the imports of the files.
`tests/test_architecture.py` holds the same imports against `ROOMS`.  Reads files as text; imports nothing of `ag`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

# Files of ag/engine that are its core; the others are its services, which bring devices and kernels together.
CORE = ("dtype", "shape", "arena", "interpreter", "primitive_types", "buffer", "primitive", "program", "target",
        "backend", "registry", "cpu_threads")
_ENGINE = ("errors", "core", "kernels", "services")
_COMPUTING = (*_ENGINE, "autograd", "ops")

# Every room with the rooms it may import; a room comes after all that it may import.
ROOMS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "core": ("errors",),
    "kernels": ("errors", "core"),
    "compile": ("errors", "core", "kernels"),
    "backends.cpu": ("errors", "core", "kernels"),
    "backends.shader": ("errors", "core", "kernels"),
    "backends.vulkan": ("errors", "core", "kernels", "backends.shader"),
    "services": ("errors", "core", "kernels"),  # backends are loaded by name, on first use
    "autograd": _ENGINE,
    "capture": (*_ENGINE, "autograd", "compile"),
    "ops": (*_ENGINE, "autograd"),
    "nn": _COMPUTING,
    "optim": _COMPUTING,
    "data": _COMPUTING,
    "io": (*_COMPUTING, "nn", "optim", "data"),
    "comm": (*_COMPUTING, "nn", "optim", "data", "io"),
    "replicas": (*_COMPUTING, "nn", "optim", "data", "io", "comm"),
    "sharded": (*_COMPUTING, "nn", "optim", "data", "io", "comm"),
    "trainer": (*_COMPUTING, "capture", "nn", "optim", "data", "io", "comm", "replicas", "sharded", "compile"),
    "elastic": (*_COMPUTING, "nn", "optim", "data", "io", "comm", "replicas", "sharded", "trainer"),
    "training": (*_COMPUTING, "nn", "optim", "data", "io", "comm", "trainer", "elastic"),
    "tools": (*_COMPUTING, "capture", "nn", "optim", "data", "io", "comm", "elastic"),
    "ag": (*_COMPUTING, "capture", "nn", "optim", "data", "io", "comm", "replicas", "sharded", "trainer", "elastic",
           "training", "tools"),
}
DOOR = "ag.engine.compile.pipeline"  # what others import of the compiler: `record`, and nothing else
VISITORS = ("ag.capture.call", "ag.parallel.trainer.host_optimizer")  # who does

# Packages from outside the standard library, and where they may be imported.
OUTSIDE: dict[str, tuple[str, ...]] = {
    "numpy": (),  # everywhere
    "safetensors": ("ag.io.safetensors_file",),
    "onnx": ("ag.io.onnx",),
    "google": ("ag.io.onnx",),  # of protobuf, which onnx needs
    "PIL": ("ag.data.image_folder",),
    "mpi4py": ("ag.parallel.comm.mpi",),
    "threadpoolctl": ("ag.parallel.comm.device_threads",),
    "tqdm": ("ag.parallel", "ag.training.fit"),
    "matplotlib": ("ag.training",),
    "sklearn": ("ag.training.estimators", "ag.training.metrics"),
    "yaml": ("ag.parallel.elastic.world",),
}


class Import(NamedTuple):
    """One module imports another, or a name of it."""

    source: str
    target: str
    name: str | None


def module_of(path: Path, root: Path = ROOT) -> str:
    """Dotted name of a file."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(root: Path = ROOT) -> dict[str, str]:
    """The text of every module of `ag`, by its name."""
    return {module_of(path, root): path.read_text("utf-8") for path in sorted((root / "ag").rglob("*.py"))}


def room_of(module: str) -> str | None:
    """The room of a module; None for the `__init__` of a folder of rooms, which only says what is in it."""
    _, *parts = module.split(".")
    if not parts or parts[0] in ("__main__", "_later"):
        return "ag"
    if parts[0] in ("errors", "log", "names", "native", "version"):
        return "errors"
    if parts[0] == "parallel":
        return parts[1] if len(parts) > 1 else "elastic"  # ag.parallel itself: the highest of its rooms
    if parts[0] != "engine":
        return parts[0]
    if len(parts) == 1 or parts[1:] == ["backends"]:
        return None
    if parts[1] == "backends":
        return f"backends.{parts[2]}"
    if parts[1] in ("kernels", "compile"):
        return parts[1]
    return "core" if parts[1] in CORE else "services"


@cache
def import_statements(text: str) -> list[ast.Import | ast.ImportFrom]:
    """All of a module."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]


def imports(modules: Mapping[str, str]) -> Iterator[Import]:
    """Every import of the modules, wherever it stands: in functions, and for type checkers only, too."""
    for source, text in modules.items():
        for node in import_statements(text):
            if isinstance(node, ast.Import):
                yield from (Import(source, alias.name, None) for alias in node.names)
            else:
                assert node.level == 0 and node.module, f"{source}: write imports in full"
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    yield Import(source, whole, None) if whole in modules else Import(source, node.module, alias.name)


def violations(modules: Mapping[str, str]) -> list[str]:
    """What breaks a rule, as sentences."""
    wrong = []
    for source, target, name in imports(modules):
        mine = room_of(source)
        if target.split(".")[0] != "ag":
            package = target.split(".")[0]
            where = OUTSIDE.get(package)
            if package not in sys.stdlib_module_names and (where is None or (where and not source.startswith(where))):
                wrong.append(f"{source} imports {target}, which only {where or 'nobody'} may")
            continue
        theirs = room_of(target)
        if mine is None or theirs in (None, mine):
            if mine is None and theirs is not None:
                wrong.append(f"{source} imports {target}; the __init__ of a folder of rooms imports nothing")
            continue
        if theirs not in ROOMS[mine]:
            wrong.append(f"{source} ({mine}) imports {target} ({theirs}), which {mine} may not")
        elif theirs == "compile" and (target != DOOR or name != "record" or source not in VISITORS):
            wrong.append(f"{source} imports {name or target} of the compiler; only {' and '.join(VISITORS)} may, and "
                         f"only {DOOR}.record")
    return wrong


def circles(modules: Mapping[str, str]) -> list[list[str]]:
    """Sets of modules that import each other in a circle: strongly connected components (Tarjan 1972)."""
    arrows: dict[str, list[str]] = {module: [] for module in modules}
    for source, target, _ in imports(modules):
        if target in arrows and target != source:
            arrows[source].append(target)
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in arrows[module]:
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            start = stack.index(module)
            if len(stack) - start > 1:
                components.append(sorted(stack[start:]))
            del stack[start:]

    for module in arrows:
        if module not in number:
            visit(module)
    return components


# ---------------------------------------------------------------------------------------------- the picture

_WIDTH, _HEIGHT, _GAP, _FLOOR = 156, 32, 18, 76
_ABOUT = {
    "errors": "errors, names", "core": "engine: core", "services": "engine: services", "kernels": "engine/kernels",
    "compile": "engine/compile", "backends.cpu": "engine/backends/cpu", "backends.shader": "engine/backends/shader",
    "backends.vulkan": "engine/backends/vulkan",
    "comm": "parallel/comm", "replicas": "parallel/replicas", "sharded": "parallel/sharded",
    "trainer": "parallel/trainer", "elastic": "parallel/elastic",
}


def floors(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Rooms on floors: each one above all that it imports."""
    level: dict[str, int] = {}
    for room in ROOMS:  # in order: what a room may import comes before it
        level[room] = 1 + max((level[other] for other in arrows.get(room, ())), default=-1)
    return [[room for room in ROOMS if level[room] == k] for k in range(max(level.values()) + 1)]


def picture(modules: Mapping[str, str]) -> str:
    """The rooms as SVG: lowest floor at the bottom, an arrow from each room to those it imports.

    Arrows that follow from others are left out: where a imports b, and b imports c, the one from a to c.
    """
    arrows: dict[str, set[str]] = {}
    for source, target, _ in imports(modules):
        a, b = room_of(source), room_of(target) if target.startswith("ag") else None
        if a and b and a != b:
            arrows.setdefault(a, set()).add(b)
    above = {room: set(arrows.get(room, ())) for room in ROOMS}
    for room in ROOMS:
        above[room] |= {far for near in arrows.get(room, ()) for far in above[near]}
    shown = {a: {b for b in arrows.get(a, ()) if not any(b in above[c] for c in arrows[a] if c != b)} for a in ROOMS}
    levels = floors(arrows)
    width = max(len(level) for level in levels) * (_WIDTH + _GAP) + _GAP
    height = len(levels) * _FLOOR + _GAP
    place = {}
    for k, level in enumerate(levels):
        left = (width - len(level) * (_WIDTH + _GAP) + _GAP) / 2
        for i, room in enumerate(level):
            place[room] = left + i * (_WIDTH + _GAP), height - (k + 1) * _FLOOR + _GAP
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
             f'font-size="12"><defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
             f'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>'
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for a, others in shown.items():
        for b in sorted(others):
            (x1, y1), (x2, y2) = place[a], place[b]
            lines.append(f'<path d="M{x1 + _WIDTH / 2:g} {y1 + _HEIGHT:g} L{x2 + _WIDTH / 2:g} {y2:g}" stroke="#667" '
                         f'fill="none" marker-end="url(#tip)"/>')
    for room, (x, y) in place.items():
        lines.append(f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="#eef3fb" '
                     f'stroke="#456"/><text x="{x + _WIDTH / 2:g}" y="{y + 21:g}" text-anchor="middle">'
                     f'{_ABOUT.get(room, room)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(sources()), "utf-8")
