"""Changes between two calls of a step that a replay must notice: what hypothesis draws for them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from machine.world import MOMENTS

Change = tuple[str, dict[str, Any]]  # an action and its arguments
GLOBALS = ("shift", "scale", "trouble", "weights", "new weights", "stage")
RATES = (
    ("lr", 0.01),
    ("lr", 0.0),
    ("weight_decay", 0.1),
    ("momentum", 0.25),
    ("momentum", 0.0),
    ("beta1", 0.5),
    ("beta2", 0.75),
    ("eps", 0.01),
    ("nesterov", True),
)
_MASKS, _NORMS = (("rate", 0.75), ("rate", 0.25)), (("momentum", 0.5), ("eps", 0.1))
SETTINGS: dict[str, tuple[tuple[str, Any], ...]] = {
    "dense": _MASKS,
    "plain": (),
    "norms": _NORMS,
    "shared": (),
    "tied": _MASKS,
    "tokens": (("dropout", 0.5), ("eps", 0.1)),
    "deep": (*_MASKS, *_NORMS),
    "images": (*_NORMS, ("stride", 1)),
    "custom": (*_MASKS, ("temperature", 2.0), ("slope", 0.5), ("activation", "tanh")),
    "checkpointed": (*_MASKS, ("eps", 0.1)),
    "counting": (("calls", 7),),
}  # of the layers of each kind of model


def changes(kind: str, optimizers: list[str], group: str = "") -> st.SearchStrategy[Change]:
    """A change of settings, of values or of objects, in a world with a model of this kind; "": any of them."""
    which, k = st.sampled_from(optimizers), st.integers(0, 5)
    value = st.sampled_from([0.25, 0.5, 0.75, 1.5])
    settings = [
        _drawn("set_rate", which=which, pair=st.sampled_from(RATES)),
        _drawn("mode", train=st.booleans()),
        _drawn("default_dtype", name=st.sampled_from(["f32", "f16"])),
        _drawn("default_device", other=st.sampled_from([True, True, False])),
        _drawn("freeze", k=k, frozen=st.sampled_from([True, True, False])),
        *[_drawn("set_global", name=st.sampled_from(["shift", "scale", "new weights", "stage"]), value=value)] * 2,
        *[_drawn("set_layer", pair=st.sampled_from(SETTINGS[kind]))] * (2 if SETTINGS[kind] else 0),
        *[_drawn("set_part", name=st.sampled_from(["gains", "shifts"]), value=value)] * (3 if kind == "custom" else 0),
    ]
    values = [
        _drawn("optimizer_step", which=which),
        _drawn("zero_grad", which=which),
        _drawn("assign", k=k, value=value),
        _drawn("assign_grad", k=k, how=st.sampled_from(["none", "ones", "twice"])),
        _drawn("change_batch", batch=st.just(0), how=st.sampled_from(["scale", "overwrite"]), value=st.integers(0, 6)),
        _drawn("seed", value=st.integers(0, 9)),
        _drawn("backward_elsewhere"),
        _drawn("draw"),
    ]
    objects = [
        _drawn("move", other=st.sampled_from([True, True, False])),
        _drawn("make_optimizer", which=st.sampled_from(["opt0", "opt1"]), kind=st.sampled_from(sorted(MOMENTS))),
        _drawn("copy_model"),
    ]
    groups = {"settings": settings, "values": values, "objects": objects, "": settings + values + objects}
    return st.one_of(groups[group])


def _drawn(action: str, /, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Change]:
    """An action with these arguments; a `pair` is its name and value."""

    def unpaired(drawn: dict[str, Any]) -> Change:
        name_and_value = dict(zip(("name", "value"), drawn.pop("pair", ()), strict=False))
        return action, drawn | name_and_value

    return st.fixed_dictionaries(arguments).map(unpaired)
