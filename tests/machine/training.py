"""Actions with `dp_train`: the subject captures and has two replicas, the twin does neither."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
from machine.actions import action
from machine.world import World

import ag

Sample = dict[str, Any]


class Net(ag.Layer):
    """A model whose samples may ask for dropout."""

    def __init__(self) -> None:
        self.inner, self.noise, self.outer = ag.ag_linear(3, 4, "tanh"), ag.ag_dropout(0.5), ag.ag_linear(4, 2)
        self.temperature, self.calls = 1.0, 0

    def forward(self, s: Sample) -> ag.Tensor:
        h = self.inner(s["x"]) * self.temperature
        if s["counted"]:
            self.calls += 1
            h = h * min(1.0, self.calls / 16)
        return self.outer(self.noise(h) if s["drop"] else h) * s["weight"]


def _samples(habit: str) -> list[Sample]:
    rng = np.random.default_rng(1)
    return [
        {
            "x": rng.normal(size=(3, 1)).astype(np.float32),
            "y": np.array([i % 2]),
            "weight": 1.0,
            "seen": 0,
            "counted": habit == "counts in a layer",
            "drop": habit == "dropout" or (habit == "dropout for some" and i % 3 > 0),
        }
        for i in range(8)
    ]


def _nothing(st: Any, data: list[Sample]) -> None:
    pass


def _set_weights(st: Any, data: list[Sample]) -> None:
    for p in (p for model in st.models for p in model.parameters().values()):
        if st.step == 1:
            p.data = np.full(p.shape, 9.0)
        assert st.step < 1 or p.numpy().min() > 5.0, f"weights set to 9 by the callback are {p.numpy().ravel()}"


def _set_attribute(st: Any, data: list[Sample]) -> None:
    for model in st.models:
        model.temperature = 1.0 + st.step


def _set_mode(st: Any, data: list[Sample]) -> None:
    for model in st.models:
        (ag.ag_eval if st.step == 1 else ag.ag_train)(model)


def _set_rate(st: Any, data: list[Sample]) -> None:
    for model in st.models:
        model.noise.rate = 0.25


def _change_numbers(st: Any, data: list[Sample]) -> None:
    for s in data:
        s["weight"] = 1.0 + st.step


def _change_arrays(st: Any, data: list[Sample]) -> None:
    for s in data:
        s["x"] *= 0.5
        s["y"][...] = 1 - s["y"]


def _freeze(st: Any, data: list[Sample]) -> None:
    for model in st.models:
        model.inner.W.requires_grad = st.step % 2 == 1


CALLBACKS: dict[str, Callable[[Any, list[Sample]], None]] = {
    "sets weights": _set_weights,
    "sets an attribute": _set_attribute,
    "sets the mode": _set_mode,
    "sets a rate": _set_rate,
    "changes numbers": _change_numbers,
    "changes arrays": _change_arrays,
    "freezes": _freeze,
}
HABITS = ["", "dropout", "dropout for some", "class weights", "augments", "counts", "decides", "counts in samples",
          "counts in a layer", *CALLBACKS]
READING = ["class weights", "decides"]  # those that read values of samples in Python


@action
def train(world: World, habit: str, capture: bool, replicas: int, micro_batch: int, accumulate: int) -> Any:
    """`dp_train`, with a habit."""
    if world.dtype != "f32":
        return None  # all optimizers of a device share one loss scale, which trial calls move
    data, rng, class_weights = _samples(habit), np.random.default_rng(0), [1.0, 5.0]
    calls = count()  # which a captured step does not watch
    ordered = habit in ("augments", "counts")  # it matters which sample comes first

    def forward(model: Net, s: Sample) -> ag.Tensor:
        if habit == "augments":
            s = {**s, "x": ag.ag_tensor(s["x"]) * rng.uniform(0.5, 2.0)}
        if habit == "counts in samples":
            s["seen"] += 1
        out = model(s) * (1.0 + s["seen"])
        if habit == "decides" and s["x"][0, 0] > 0:
            out = out * 2.0
        return out * (1.0 + next(calls) % 3) if ordered else out

    def loss(out: ag.Tensor, t: Any) -> ag.Tensor:
        found = ag.ag_softmax_cross_entropy_loss(out, t)
        return found * class_weights[int(t[0])] if habit == "class weights" else found

    mine = world.captured and not ordered
    n = replicas if mine else 1
    devices = [world.device, "cpu:1" if world.device == "cpu" else world.device][:n]
    result = ag.dp_train(
        Net,
        data,
        loss,
        forward,
        lambda s: s["y"],
        devices=devices,
        n_iter=4,
        lr=0.05,
        micro_batch=micro_batch * replicas // n,
        accumulate=accumulate,
        seed=3,
        shuffle=habit != "dropout for some",  # the first sample draws nothing
        verbose=False,
        capture="auto" if world.captured and capture else False,
        callback=lambda st: CALLBACKS.get(habit, _nothing)(st, data),
    )
    if ordered:  # not to the bit, as the trial calls of `dp_train` draw and count, too
        return next(calls) >= 4 * micro_batch * replicas * accumulate
    return np.asarray(result.loss_history), {k: p.numpy() for k, p in result.params.items()}
