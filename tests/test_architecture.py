"""Check the imports of every file against the table of tools/rooms.py, and that each broken rule is noticed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from rooms import CORE, DOOR, OUTSIDE, ROOMS, circles, module_of, picture, room_of, sources, violations

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "ag").rglob("*.py"))
MODULES = sources()


def inside(module: str, package: str) -> bool:
    """Return whether a module is a package or lies in it."""
    return module == package or module.startswith(package + ".")


def test_every_import_is_allowed() -> None:
    assert violations(MODULES) == []


def test_no_module_imports_itself_through_others() -> None:
    assert circles(MODULES) == []


def test_the_table_is_in_order_and_about_what_is_there() -> None:
    """A room comes after all that it may import, so there can be no circle of rooms; none is missing or gone."""
    known: set[str] = set()
    for room, allowed in ROOMS.items():
        assert set(allowed) <= known, f"{room} may import rooms that come later: {set(allowed) - known}"
        known.add(room)
    assert {room_of(module) for module in MODULES} - {None} == known
    assert all(f"ag.engine.{name}" in MODULES for name in CORE)


SEEDED = {  # module, a line to add, what is said
    "a higher room": ("ag.engine.kernels.matmul", "from ag.autograd.tape import backward", "may not"),
    "siblings": ("ag.engine.compile.graph", "from ag.engine.backends.cpu import backend", "may not"),
    "two backends": ("ag.engine.backends.cpu.backend", "import ag.engine.backends.vulkan.devices", "may not"),
    "what backends share and one of them": (
        "ag.engine.backends.shader.plans", "import ag.engine.backends.vulkan.devices", "may not"),
    "replicas and shards": ("ag.parallel.replicas.zero", "import ag.parallel.sharded.pipeline", "may not"),
    "for type checkers only": ("ag.engine.buffer", "if TYPE_CHECKING:\n    import ag.autograd.tensor", "may not"),
    "inside a function": ("ag.engine.arena", "def f():\n    import ag.nn.layer", "may not"),
    "the backend's base class and the compiler": ("ag.engine.backend", f"from {DOOR} import record", "may not"),
    "the compiler by another door": ("ag.capture.call", "from ag.engine.compile.graph import Graph", "only"),
    "another name of the door": ("ag.capture.call", f"from {DOOR} import PASSES", "only"),
    "another visitor": ("ag.capture.guards", f"from {DOOR} import record", "only"),
    "a backend by import instead of by name": ("ag.engine.device", "import ag.engine.backends.cpu.backend", "may not"),
    "a package from outside": ("ag.nn.layer", "import torch", "nobody"),
    "a package in another place": ("ag.ops.matmul", "import PIL", "only"),
}


@pytest.mark.parametrize("seed", SEEDED)
def test_a_violation_is_seen(seed: str) -> None:
    module, line, said = SEEDED[seed]
    wrong = violations({**MODULES, module: f"{MODULES[module]}\n{line}\n"})
    assert len(wrong) == 1 and wrong[0].startswith(module) and said in wrong[0]


def test_a_circle_is_seen() -> None:
    line = "if TYPE_CHECKING:\n    from ag.engine.backend import Backend\n"
    assert circles({**MODULES, "ag.engine.buffer": f"{MODULES['ag.engine.buffer']}\n{line}"}) == [
        ["ag.engine.backend", "ag.engine.buffer", "ag.engine.primitive", "ag.engine.program"]]


def test_what_may_be_imported_from_outside_is() -> None:
    assert all(re.search(rf"^\s*(import|from) {name}\b|import_module\(\"{name}\"\)", text, re.M)
               for name in OUTSIDE for text in ["\n".join(MODULES.values())])


def test_the_picture_shows_every_room() -> None:
    drawn = picture(MODULES)
    assert drawn.count("<rect") == len(ROOMS) + 1
    assert (ROOT / "docs" / "rooms.svg").read_text("utf-8") == drawn, "run `python tools/rooms.py docs/rooms.svg`"


def test_backends_have_no_names_above_the_device_registry() -> None:
    name = re.compile(r"(cpu|gpu|vulkan|numpy|kp)(:\d*)?")
    for path in FILES:
        if module_of(path) == "ag.engine.device" or inside(module_of(path), "ag.engine.backends"):
            continue
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(rf"[\"']{name.pattern}[\"']", text) else ():
            tested = isinstance(node, (ast.Compare, ast.MatchValue)) or (
                isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("startswith", "partition", "split")))
            for part in ast.walk(node) if tested else ():
                value = part.value if isinstance(part, ast.Constant) else None
                assert not (isinstance(value, str) and name.fullmatch(value)), (
                    f"{module_of(path)}:{node.lineno} decides by the backend's name {value!r}")


def test_the_package_has_these_parts() -> None:
    parts = {p.stem for p in (ROOT / "ag").iterdir() if p.name != "__pycache__"}
    assert parts == {"__init__", "__main__", "_later", "errors", "log", "names", "native", "version", "py", "engine",
                     "autograd", "capture", "ops", "nn", "optim", "data", "io", "parallel", "training", "tools"}
