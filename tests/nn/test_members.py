"""Layers and parameters that no walk would reach, or that would hide each other, are refused by name."""

from __future__ import annotations

import copy
import pickle
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag


class Net(ag.Layer):
    """A layer with one proper child, and more by assignment."""

    def __init__(self, **attributes: object) -> None:
        super().__init__()
        self.body = ag.ag_linear(2, 2)
        for name, value in attributes.items():
            setattr(self, name, value)


@dataclass(slots=True)
class Slotted:
    """No layer, and no __dict__."""

    inside: object


class Listed(list[object]):
    """A list with an attribute."""

    inside: object = None


class Plain:
    """No layer."""

    def __init__(self, *inside: object) -> None:
        self.inside = inside

    def method(self) -> None:
        """Nothing."""


def local(layer: ag.Layer) -> Callable[[Any], Any]:
    return lambda x: layer(x)


def listed(layer: ag.Layer) -> Listed:
    found = Listed()
    found.inside = layer
    return found


CLASHES = [
    ({"block": {"out": ag.ag_linear(2, 2)}, "block_out": ag.ag_linear(2, 1)}, "block_out", "block and block_out"),
    ({"head": [ag.ag_linear(1, 1) for _ in range(11)], "head1": [ag.ag_linear(1, 1)]}, "head11", "head and head1"),
    ({"drops": [ag.ag_linear(1, 1)], "drops1": ag.ag_dropout(0.5)}, "drops1", "drops and drops1"),
    ({"expert": {1: ag.ag_linear(1, 1), "1": ag.ag_linear(1, 1)}}, "expert_1", "both in the attribute expert")]


@pytest.mark.parametrize(("attributes", "name", "both"), CLASHES)
def test_two_layers_under_one_name_are_refused(attributes: dict[str, object], name: str, both: str) -> None:
    for walk in (Net.parameters, Net.state_dict, Net.children, lambda net: net.to("cpu")):
        with expect_error("clash", ValueError, "Net", f"'{name}'", both):
            walk(Net(**attributes))


def test_one_layer_may_have_a_name_twice() -> None:
    layer = ag.ag_linear(1, 1)
    assert len(Net(head=[layer], head1=layer).parameters()) == 4


@pytest.mark.parametrize("hide", [
    lambda x: deque([x]), lambda x: {x}, lambda x: frozenset([x]), lambda x: UserDict(a=x),
    lambda x: SimpleNamespace(a=x), Plain, lambda x: partial(x), lambda x: partial(x.forward), lambda x: x.forward,
    lambda x: Plain(x).method, local, lambda x: np.array([x, None], object), lambda x: [{"a": deque([x])}], Slotted,
    listed, lambda x: lambda y, x=x: x(y), lambda x: Plain(Slotted([Plain(x)])), lambda x: {"a": x}.values(),
    lambda x: ChainMap({}, {"a": x}), lambda x: UserList([x]), lambda x: MappingProxyType({1: x}), lambda x: {x: 1},
    lambda x: iter([x]), lambda x: ag.no_grad()(local(x)), lambda x: ag.ag_capture(local(x)),
    lambda x: type("Holder", (), {"layer": x})()])
def test_a_hidden_layer_is_refused_unless_it_is_reached(hide: Callable[[object], object]) -> None:
    net = Net()
    net.more = hide(ag.ag_linear(2, 2))
    for walk in (Net.parameters, Net.state_dict, lambda net: net.to("cpu"), repr):
        with expect_error("hidden", TypeError, "Net", "'more", "Linear in it", "list, tuple or dict"):
            walk(net)
    net.more = hide(net.body)  # its own
    assert len(net.parameters()) == 2
    net.more, net.body.more = hide(net), hide(net)  # what contains a layer is no part of it
    assert len(net.parameters()) == len(net.body.parameters()) == 2
    net.more, net._more = None, hide(ag.ag_linear(2, 2))  # an underscore: no state
    assert len(net.parameters()) == 2


def test_a_layer_that_a_class_has_is_refused() -> None:
    class Shared(Net):
        head = ag.ag_linear(2, 2)

    class Default(Net):
        def forward(self, x: Any, layer: ag.Layer = Shared.head) -> ag.Tensor:
            return layer(x)

    for cls, name in ((Shared, "'head'"), (Default, "'forward'")):
        with expect_error("class", TypeError, cls.__name__, name, "__init__"):
            cls().parameters()


@pytest.mark.parametrize("hide", [lambda x: deque([x]), Slotted, lambda x: lambda y, x=x: x(y), lambda x: [{1: (x,)}]])
def test_a_hidden_layer_has_the_mode_of_the_model(hide: Callable[[object], object]) -> None:
    dropout = ag.ag_dropout(0.5)
    net = Net(_more=hide(dropout))
    assert not net.eval().training and not dropout.training and net.train().training and dropout.training


def test_deep_models_are_walked_copied_and_pickled() -> None:
    model: ag.Layer = ag.ag_linear(1, 1)
    for i in range(300):
        model = ag.ag_residual(model) if i % 2 else ag.ag_sequential(model)
    model.extra = model.body.layers  # an inner layer twice
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert len(twin.parameters()) == 2 and not twin.eval().body.training and repr(twin).count("\n") >= 300
        assert twin.extra[0] is twin.body.layers[0]
    assert len({*map(id, (model.W for _, model in model.modules() if isinstance(model, ag.nn.Linear)))}) == 1
    lists: object = ag.ag_linear(1, 1)
    for _ in range(1000):
        lists = [lists]
    assert len(Net(more=lists).parameters()) == 4


def test_deep_models_are_saved_for_a_factory(tmp_path: Path) -> None:
    def made() -> ag.Layer:
        model: ag.Layer = ag.ag_linear(1, 1)
        for _ in range(600):
            model = ag.ag_sequential(model)
        return model

    ag.ag_save_model(model := made(), tmp_path / "m")
    with expect_error("no description", ag.CheckpointError, "ag_load_model", "model_fn"):
        ag.ag_load_model(tmp_path / "m")
    again = ag.ag_load_model(tmp_path / "m", made).state_dict()
    assert all(np.array_equal(x, again[name]) for name, x in model.state_dict().items())


def test_copies_are_made_of_every_part() -> None:
    net = Net(other=[ag.ag_linear(2, 2)])
    net._parent, net.again, net.other[0].slot = [net], net.other[0], Slotted(net.body.b)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), copy.copy(net)):
        assert twin.again is twin.other[0] and twin.other[0].slot.inside is twin.body.b and len(twin.parameters()) == 4
        assert (twin.body is net.body) is (twin._parent[0] is net)


def test_a_hidden_parameter_is_refused() -> None:
    with expect_error("hidden", TypeError, "'more'", "deque with a parameter in it"):
        Net(more=deque([ag.ag_param([1.0])])).parameters()
    net = Net(more=deque([ag.ag_tensor([1.0])]))
    net.step = ag.optimizer_adam(net.body)
    net.scaled = partial(ag.ag_mul, net.body.b)
    assert len(net.parameters()) == 2


def test_a_layer_that_children_leave_out_is_refused() -> None:
    model = ag.ag_sequential(ag.ag_linear(1, 1))
    model.extra = ag.ag_linear(1, 1)
    with expect_error("left out", TypeError, "Sequential", "'extra'", "children()"):
        model.parameters()


def test_a_sibling_that_is_used_does_not_disturb_a_models_description() -> None:
    net = Net(other=ag.ag_linear(2, 2))
    net.other.first = net.body.forward
    assert len(net.parameters()) == 4 and "18" not in repr(net) and "[12 parameters]" in repr(net)


def test_a_list_in_itself_and_a_layer_in_itself_are_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with expect_error("list", ValueError, "list that contains itself"):
        Net(more=endless).parameters()
    net = Net()
    net.body.parent = net
    with expect_error("layer", ValueError, "contains one that contains it", "weakref"):
        net.parameters()
