"""Arguments of captured steps: trees, the same object twice, names, and what a step may not do with them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

import ag
from ag.autograd.tree import tree_map


@dataclass
class Batch:
    x: Any
    y: Any
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any
    more: dict[str, Any] = field(default_factory=dict)


class Pair(NamedTuple):
    x: Any
    y: Any


TREES: dict[str, tuple[Callable[..., tuple[Any, ...]], Callable[..., Any]]] = {
    "a dict": (lambda x, y: ({"x": x, "y": y, "k": 2.0},), lambda d: d["x"] * d["k"] + d["y"]),
    "an ordered dict": (lambda x, y: (OrderedDict(x=x, y=y),),
                        lambda d: d["x"] - d["y"] if isinstance(d, OrderedDict) else d["x"]),
    "a list": (lambda x, y: ([x, (y, None)],), lambda s: s[0] + s[1][0]),
    "a dataclass": (lambda x, y: (Batch(x, y, 3.0),), lambda b: b.x * b.scale + b.y),
    "a frozen one with slots": (lambda x, y: (Frozen(x, {"y": y}, {"z": x}),), lambda b: b.x + b.y["y"] * b.more["z"]),
    "a named tuple": (lambda x, y: (Pair(x, y), y), lambda p, y: p.x + p.y * y),
    "the same twice": (lambda x, y: (x, x, y), lambda a, b, y: a * b + (y if a is b else -y)),
    "the same in two places": (lambda x, y: ({"q": x, "k": x}, y),
                               lambda d, y: d["q"] + (y if d["q"] is d["k"] else -y)),
    "others in these places": (lambda x, y: ({"q": x, "k": y}, y), lambda d, y: d["q"] + (y if d["k"] is y else -y)),
}
KINDS = {"tensors": lambda a: ag.ag_tensor(a), "arrays": lambda a: a}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tree", TREES)
def test_trees(device: str, tree: str, kind: str) -> None:
    pack, function = TREES[tree]
    with ag.ag_device(device):
        def step(*args: Any) -> ag.Tensor:
            return function(*args) + ag.ag_sum(scale)

        scale = ag.ag_tensor([1.0, 2.0])
        wrap = KINDS[kind]
        captured = ag.ag_capture(lambda *args: step(*args) if kind == "tensors" else as_tensors(function, args, scale))
        for k in range(10):
            args = pack(wrap(np.full((2, 3), k + 1.0, "f")), wrap(np.full((2, 3), 0.5 * k, "f")))
            expected = step(*args) if kind == "tensors" else as_tensors(function, args, scale)
            np.testing.assert_array_equal(captured(*args).numpy(), expected.numpy())
        assert captured._in_vain == 0 and len(captured._programs) == 1


def as_tensors(function: Callable[..., Any], args: tuple[Any, ...], scale: ag.Tensor) -> ag.Tensor:
    """The function of the tensors of arrays; one array is one tensor."""
    made: dict[int, ag.Tensor] = {}

    def tensor(x: Any) -> Any:
        return made.setdefault(id(x), ag.ag_tensor(x))

    return function(*tree_map(tensor, args)) + ag.ag_sum(scale)


def test_a_call_with_one_object_twice_is_another_than_with_two(device: str) -> None:
    def step(q: ag.Tensor, k: ag.Tensor) -> ag.Tensor:
        return ag.ag_sum(q * k) * (1.0 if q is k else 10.0)

    with ag.ag_device(device):
        captured = ag.ag_capture(step)
        for i in range(12):
            a, b = ag.ag_tensor([1.0 + i]), ag.ag_tensor([2.0 + i])
            for args in ((a, a), (a, b), (b, b)):
                assert captured(*args).item() == step(*args).item()
        assert len(captured._programs) == 2


def test_names_of_tensors(device: str) -> None:
    def step(x: ag.Tensor) -> ag.Tensor:
        return ag.ag_sum(x) * (1.0 if x.name == "real" else -1.0)

    with ag.ag_device(device):
        captured = ag.ag_capture(step)
        for i in range(12):
            for name in ("real", "fake", None):
                x = ag.ag_tensor([1.0 + i])
                x.name = name
                assert captured(x).item() == step(x).item()
        assert len(captured._programs) == 3


def test_numbers_in_a_tree_have_a_program_each(device: str) -> None:
    def step(batch: dict[str, Any]) -> ag.Tensor:
        return batch["x"] * batch["k"]

    with ag.ag_device(device):
        captured = ag.ag_capture(step)
        for i in range(8):
            for k in (1.0, 2.0, True, "ab"):
                if k != "ab":
                    x = ag.ag_tensor([1.0 + i])
                    assert captured({"x": x, "k": k}).item() == step({"x": x, "k": k}).item()
        assert len(captured._programs) == 3  # 1.0 and True are equal and not the same


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "counts": lambda d: d.update(seen=d["seen"] + 1),
    "adds": lambda d: d.update(new=d["x"] * 2.0),
    "removes": lambda d: d.pop("seen"),
    "swaps": lambda d: d.update(x=d["y"], y=d["x"]),
    "appends": lambda d: d["list"].append(1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_that_changes_its_arguments_is_refused(device: str, change: str) -> None:
    def step(batch: dict[str, Any]) -> ag.Tensor:
        CHANGES[change](batch)
        return batch["x"] + batch["y"]

    with ag.ag_device(device), pytest.raises(ag.CaptureError, match="changes a list, dict or dataclass"):
        ag.ag_capture(step)({"x": ag.ag_tensor([1.0]), "y": ag.ag_tensor([2.0]), "seen": 0, "list": []})


@pytest.mark.parametrize("form", ["tensor", "view"])
def test_an_argument_that_the_step_also_has_is_refused(device: str, form: str) -> None:
    with ag.ag_device(device):
        layer = ag.ag_batch_norm(3)

        def step(x: Any, mean: ag.Tensor) -> ag.Tensor:
            return ag.ag_sum(layer(x)) + ag.ag_sum(mean)

        captured, x = ag.ag_capture(step), np.random.default_rng(0).normal(size=(3, 8)).astype("f")
        with pytest.raises(ag.CaptureError, match="also uses without being given it"):
            captured(x, layer.running_mean)
        other = layer.running_mean.detach()
        for _ in range(4):
            captured(x, other)


def test_a_tree_that_cannot_be_compared_is_refused() -> None:
    for wrong, said in (({"x": object()}, "holds a object"), (Batch(1.0, {1, 2}), "holds a set")):
        with pytest.raises(ag.CaptureError, match=said):
            ag.ag_capture(lambda batch: ag.ag_tensor([1.0]) * 2.0)(wrong)


def test_arguments_that_a_step_keeps_are_refused(device: str) -> None:
    kept: list[Any] = []
    with ag.ag_device(device), pytest.raises(ag.CaptureError, match="keeps its argument"):
        ag.ag_capture(lambda d: (kept.append(d["x"]), d["x"] * 2.0)[1])({"x": ag.ag_tensor([1.0])})


KNOWN = ag.ag_tensor([5.0])
TABLE = {"known": KNOWN}


def by_global(x: ag.Tensor) -> bool:
    return x is KNOWN


def in_a_list(x: ag.Tensor) -> bool:
    return any(x is y for y in [*TABLE.values()])


def by_id(x: ag.Tensor) -> bool:
    return id(x) == id(KNOWN)


@pytest.mark.parametrize("asks", [by_global, in_a_list, by_id], ids=lambda asks: asks.__name__)
def test_a_step_that_asks_whether_an_argument_is_one_it_knows(asks: Callable[[Any], bool]) -> None:
    def step(x: ag.Tensor) -> ag.Tensor:
        return x * (2.0 if asks(x) else 1.0)

    captured, other = ag.ag_capture(step), ag.ag_tensor([3.0])
    with pytest.raises(ag.CaptureError, match="reach one of its arguments by itself"):
        captured(KNOWN)
    assert [captured(other).item() for _ in range(4)] == [3.0] * 4
    assert [captured(x).item() for x in (other, KNOWN, other, KNOWN)] == [3.0, 10.0, 3.0, 10.0]  # uncaptured, if known


@pytest.mark.parametrize("count", [2, 8, 9, 40])
def test_many_arguments_of_which_two_are_one(count: int) -> None:
    def step(*args: ag.Tensor) -> ag.Tensor:
        return ag.ag_sum(args[0] * args[-1]) * (1.0 if args[0] is args[-1] else 10.0)

    captured = ag.ag_capture(step)
    for i in range(10):
        args = [ag.ag_tensor([float(i + k)]) for k in range(count)]
        for given in (args, [*args[:-1], args[0]], args):
            assert captured(*given).item() == step(*given).item()
    assert len(captured._programs) == 2
