"""Layers and parameters that no walk would reach, or that would hide each other, are refused by name."""

from __future__ import annotations

from collections import UserDict, deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
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


class Plain:
    """No layer."""

    def __init__(self, *inside: object) -> None:
        self.inside = inside

    def method(self) -> None:
        """Nothing."""


def local(layer: ag.Layer) -> Callable[[Any], Any]:
    return lambda x: layer(x)


CLASHES = [
    ({"block": {"out": ag.ag_linear(2, 2)}, "block_out": ag.ag_linear(2, 1)}, "block_out", "block and block_out"),
    ({"head": [ag.ag_linear(1, 1) for _ in range(11)], "head1": [ag.ag_linear(1, 1)]}, "head11", "head and head1"),
    ({"drops": [ag.ag_linear(1, 1)], "drops1": ag.ag_dropout(0.5)}, "drops1", "drops and drops1")]


@pytest.mark.parametrize(("attributes", "name", "both"), CLASHES)
def test_two_layers_under_one_name_are_refused(attributes: dict[str, object], name: str, both: str) -> None:
    for walk in (Net.parameters, Net.state_dict, Net.children, lambda net: net.to("cpu")):
        with expect_error("clash", ValueError, "Net", f"'{name}'", both, "rename"):
            walk(Net(**attributes))


def test_one_layer_may_have_a_name_twice() -> None:
    layer = ag.ag_linear(1, 1)
    assert len(Net(head=[layer], head1=layer).parameters()) == 4


@pytest.mark.parametrize("hide", [
    lambda x: deque([x]), lambda x: {x}, lambda x: frozenset([x]), lambda x: UserDict(a=x),
    lambda x: SimpleNamespace(a=x), Plain, lambda x: partial(x), lambda x: partial(x.forward), lambda x: x.forward,
    lambda x: Plain(x).method, local, lambda x: np.array([x, None], object), lambda x: [{"a": deque([x])}]])
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
