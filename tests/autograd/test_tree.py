"""The structure of a sample tells apart all that a function could tell apart by looking at it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest

import ag
from ag.autograd.tree import opaque_type, tree_flatten, tree_map, tree_unflatten


class Own(np.ndarray):
    """A subclass, which may have attributes."""


class Words(list):  # type: ignore[type-arg]
    """A list that knows more than its items."""


@pytest.mark.parametrize(("one", "other"), [
    (0.0, -0.0), (np.float32(0), np.float32(-0.0)), (complex(1, 0.0), complex(1, -0.0)), (0, False), (1, 1.0),
    ({"w": [0.0]}, {"w": [-0.0]}), ({"w": 1}, OrderedDict(w=1)), ({0: 1}, {False: 1}), ({0.0: 1}, {-0.0: 1}),
    (np.zeros(2), np.zeros(2).view(Own)), ([1], (1,))])
def test_what_differs_has_another_structure(one: object, other: object) -> None:
    assert tree_flatten(one)[1] != tree_flatten(other)[1]
    for tree in (one, other):
        leaves, treedef = tree_flatten(tree)
        again = tree_unflatten(treedef, leaves)
        assert treedef == tree_flatten(tree)[1] == tree_flatten(again)[1] and type(again) is type(tree)


@pytest.mark.parametrize(("tree", "name"), [
    ({"x": np.zeros(2)}, None), (OrderedDict(x=1), None), ({(1, 2): 3.0}, None), ([1, (2.0, None)], None),
    (np.zeros(2).view(Own), "Own"), (np.ma.zeros(2), "MaskedArray"), ([Words([1])], "Words"),
    ({"x": defaultdict(int)}, "defaultdict"), (object(), "object")])
def test_what_has_more_than_its_items_is_opaque(tree: object, name: str | None) -> None:
    assert opaque_type(tree_flatten(tree)[1]) == name


def test_a_dict_that_cannot_be_made_of_pairs_becomes_a_dict() -> None:
    assert tree_map(lambda x: x + 1, defaultdict(int, x=np.zeros(1))) == {"x": np.ones(1)}


@pytest.mark.parametrize("rare", [
    {"w": -0.0}, OrderedDict(w=0.0), {"w": 0.0, "x": np.ones((3, 1)).view(Own)}])
def test_samples_that_differ_in_kind_are_not_trained_on_by_one_program(rare: dict[str, Any]) -> None:
    def scaled(model: Any, sample: Any) -> ag.Tensor:
        special = np.signbit(sample["w"]) or isinstance(sample, OrderedDict) or isinstance(sample["x"], Own)
        return model(sample["x"]) * (2.0 if special else 1.0)

    usual = {"x": np.ones((3, 1)), "w": 0.0}
    data = [type(rare)(usual | rare) if i in (4, 6) else usual for i in range(8)]
    a, b = (ag.dp_train(lambda: ag.ag_linear(3, 1), data, ag.ag_mse_loss, scaled, lambda s: np.ones((1, 1)), n_iter=8,
                        batch=1, shuffle=False, seed=1, devices=["cpu"], verbose=False, capture=capture).loss_history
            for capture in ("auto", False))
    assert np.array_equal(a, b)
