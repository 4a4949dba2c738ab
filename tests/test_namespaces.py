"""What `ag` shows: the flat names and six namespaces, in which the same objects are found by subject."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

import ag

NAMESPACES = ("data", "io", "nn", "ops", "optim", "parallel")
INSIDE = {"autograd", "engine", "errors", "names", "tools", "version"}  # what is public in them is in `ag`


def home(thing: object) -> str:
    """The folder of `ag` in which something is defined."""
    return str(getattr(thing, "__module__", "")).split(".")[1]


def public(namespace: str) -> Iterator[tuple[str, object]]:
    """Names of a namespace other than of its files."""
    for name, thing in vars(getattr(ag, namespace)).items():
        if not name.startswith("_") and not inspect.ismodule(thing):
            yield name, thing


def test_ag_shows_its_public_names_and_the_namespaces() -> None:
    assert sorted(dir(ag)) == sorted([*ag.__all__, *NAMESPACES, "__version__"])


def test_nothing_else_is_an_attribute_but_folders_and_files() -> None:
    hidden = {name for name in vars(ag) if not name.startswith("_")} - set(dir(ag))
    assert hidden == INSIDE  # Python sets these when it imports what is in them
    assert all(isinstance(vars(ag)[name], ModuleType) for name in hidden)


@pytest.mark.parametrize("name", [name for name in ag.__all__ if home(getattr(ag, name)) in NAMESPACES])
def test_a_public_name_is_in_its_namespace(name: str) -> None:
    thing = getattr(ag, name)
    assert getattr(getattr(ag, home(thing)), name) is thing


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_namespace_holds_what_its_folder_defines(namespace: str) -> None:
    foreign = [name for name, thing in public(namespace) if home(thing) != namespace]
    assert not foreign


@pytest.mark.parametrize("namespace", ["data", "nn", "optim", "parallel"])
def test_a_class_behind_a_public_name_has_its_own_name_too(namespace: str) -> None:
    folder = getattr(ag, namespace)
    for name, thing in public(namespace):
        if inspect.isclass(thing):
            assert getattr(folder, thing.__name__) is thing, name
