"""The names on the pages of the reference. Operations are derived from what is public: a new one needs no line there.

`tools/site_pages.py` fills the pages in with it; tests/docs/test_site.py reads them so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType

import ag

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
NAME = re.compile(r"^::: ag\.([\w.]+)$", re.M)
PLACE = "<!-- all operations -->"
NAMESPACES = {name: getattr(ag, name) for name in ("nn", "ops", "optim", "data", "io", "parallel", "training")}
_FILE = "training.estimators."  # whose names are public without it, but loaded so late that only the file shows them


def operations() -> list[str]:
    """The public functions of `ag.ops` that no page names, in the order in which `ag` lists them."""
    named = {name for path in FOLDER.glob("*.md") for name in NAME.findall(path.read_text("utf-8"))}
    return [name for name in ag.__all__
            if name not in named and getattr(getattr(ag, name), "__module__", "").startswith("ag.ops.")]


def functions_by_name() -> str:
    """A table of what is in `ag.ops` alone: calls, and the first sentence about each."""
    prefixed = {id(getattr(ag, name)) for name in ag.__all__}
    listed = [name for name, function in sorted(vars(ag.ops).items())
              if not name.startswith("_") and not isinstance(function, ModuleType) and id(function) not in prefixed]
    return "\n".join(["| | |", "|---|---|", *(called("ops", name) for name in listed)])


def layers_by_name() -> str:
    """A table of the layers that no page describes."""
    named = {*NAME.findall((FOLDER / "layers.md").read_text("utf-8"))}
    known = {id(found(name)) for name in named}
    listed = [name for name in dir(ag.nn) if name[0].isupper() and id(getattr(ag.nn, name)) not in known]
    return "\n".join(["| | |", "|---|---|", *(called("nn", name) for name in listed)])


def called(space: str, name: str) -> str:
    """Make a row of a table: how a function or class is called, and the first sentence about it."""
    function = getattr(NAMESPACES[space], name)
    call = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}"
                     for p in signature(function).parameters.values())
    first = str(function.__doc__).strip().partition("\n\n")[0].partition("Reference:")[0]
    text = first.replace("|", "\\|").replace("\n", " ")
    return f"| `{space}.{name}({call})` | {' '.join(text.split())} |"


def filled(page: str) -> str:
    """A page with a line for each operation where they belong."""
    page = page.replace("<!-- layers by name -->", layers_by_name()) if "<!-- layers" in page else page
    if PLACE not in page:  # reading all pages takes time
        return page
    page = page.replace("<!-- functions by name -->", functions_by_name())
    return page.replace(PLACE, "\n\n".join(f"::: ag.{name}" for name in operations()))


def public_names() -> Iterator[tuple[str, object]]:
    """Everything public without the leading ``ag.``: the names of `ag`, of its namespaces, and of modules in those."""
    yield from ((name, getattr(ag, name)) for name in ag.__all__)
    for space, module in NAMESPACES.items():
        for name in dir(module):
            thing = getattr(module, name)
            if isinstance(thing, ModuleType):
                yield from ((f"{space}.{name}.{inner}", getattr(thing, inner)) for inner in thing.__all__)
            else:
                yield f"{space}.{name}", thing


def found(name: str) -> object:
    """What a name on a page stands for; a file that nothing has loaded yet is."""
    thing: object = ag
    for part in name.split("."):
        if isinstance(thing, ModuleType) and not hasattr(thing, part):
            import_module(f"{thing.__name__}.{part}")
        thing = getattr(thing, part)
    return thing


def shown(name: str) -> str:
    """How users write a name of a page."""
    return name.replace(_FILE, "training.")


def other_names(name: str) -> list[str]:
    """The other names of a public object, in the namespaces, such as nn.Linear of ag_linear."""
    public = found(name)
    return [f"{space}.{other}" for space, module in NAMESPACES.items() for other in sorted(vars(module))
            if not other.startswith("_") and vars(module)[other] is public
            and f"{space}.{other}" != shown(name) and other != name]


def names(name: str) -> list[str]:
    """List all names of a public object, the ordinary one first: nn.Linear, then ag_linear."""
    return [*other_names(name), shown(name)]


def first_sentence(thing: object) -> str:
    """What a description begins with; of a constant, which has none, the value."""
    if not callable(thing):
        return f"`{thing!r}`"
    return " ".join((thing.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")


def row(name: str, page: str = "") -> str:
    """Make a row of a table: the names, linked to their description on a page, and what the object is."""
    first, *more = names(name)
    also = "".join(f"<br>`{other}`" for other in more)
    return f"| [`{first}`]({page}#ag.{name}){also} | {first_sentence(found(name))} |"


def rows(lines: list[str]) -> str:
    """Make a table of rows."""
    return "\n".join(["| names | what it is |", "|---|---|", *lines])


def summary(page: str) -> str:
    """Put a table of all names of a page before the first description."""
    first = NAME.search(page)
    if first is None:
        return page
    lines = [row(name) for name in NAME.findall(page)]
    return f"{page[:first.start()]}{rows(lines)}\n\n{page[first.start():]}"


def table() -> str:
    """Make the table of all public names."""
    lines = {}
    for path in sorted(FOLDER.glob("*.md")):
        for name in NAME.findall(filled(path.read_text("utf-8"))):
            lines[names(name)[0].lower(), name] = row(name, path.name)
    there = set(re.findall("`([^`]+)`", "".join(lines.values())))
    for name, thing in public_names():  # an op without an `ag_` name is a value of a table, which no page can quote
        bare = name.partition(".")[2]
        is_there = name in there or (bare in there and getattr(ag, bare, None) is thing)  # ag.gather is no ops.gather
        if name.startswith(("ops.", "nn.")) and not is_there:
            lines[name.lower(), name] = f"| `{name}` | {first_sentence(thing)} |"
    return rows([lines[key] for key in sorted(lines)])
