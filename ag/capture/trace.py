"""Traces: what two recordings of a step must share for a replay of the first to stand for the second.

A trace lists launches with parameters, and labels each operand: an argument, a number, an older gradient, memory of
the model, or memory made in the step.  A value read in Python shows as another number, a branch as another launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from ag.capture.snapshots import equal
from ag.engine.buffer import Buffer
from ag.engine.primitive import Params
from ag.engine.program import Recording

Label = tuple[object, ...]  # stands for a buffer in every recording of the step
Left = tuple[str, Params, Sequence[Buffer]]  # what a step leaves, like a launch: kind, parameters, buffers


class Traced(NamedTuple):
    """One launch, without its buffers."""

    name: str
    params: Params
    operands: tuple[Label, ...]


def trace_of(recording: Recording, labels: Mapping[int, Label], left: Sequence[Left] = ()) -> list[Traced]:
    """Trace the launches of a recording before it is compiled, and what it leaves; `labels` go by ids of blocks."""
    made: dict[int, int] = {}
    constants = recording.backend.constants.values() if recording.backend is not None else ()
    numbers = {id(c.block): c.constant for c in constants}  # also for views, which do not carry it

    def label(b: Buffer) -> Label:
        place = id(b.block)
        if b.constant is not None or place in numbers:
            what: Label = ("number", numbers.get(place, b.constant))
        elif place in labels:
            what = labels[place]
        elif place in recording.made:
            what = "made", made.setdefault(place, len(made)), b.address - b.block.address
        else:
            what = "state", b.address
        return *what, b.shape, b.dtype.name

    made_of: list[Left] = [(x.primitive.name, x.params, x.buffers) for x in recording.launches]
    return [Traced(name, params, tuple([label(b) for b in buffers])) for name, params, buffers in (*made_of, *left)]


def first_difference(was: Sequence[Traced], now: Sequence[Traced]) -> str | None:
    """Describe the first difference of two traces, or None."""
    for i, (a, b) in enumerate(zip_longest(was, now)):
        if a is None or b is None:
            extra, when = (a, "only in the recording") if b is None else (b, "only now")
            return f"launch {i}, {extra.name}, is there {when}"
        if a.name != b.name:
            return f"launch {i} was {a.name} and is {b.name}"
        for name in a.params.keys() | b.params.keys():
            if not equal(a.params.get(name), b.params.get(name)):
                return f"launch {i}, {a.name}, had {name}={a.params.get(name)!r} and has {name}={b.params.get(name)!r}"
        for k, (x, y) in enumerate(zip_longest(a.operands, b.operands)):
            if x is None or y is None or not all(map(equal, x, y)):
                return f"launch {i}, {a.name}, worked on {_shown(x)} and works on {_shown(y)} (operand {k})"
    return None


def _shown(label: Label) -> str:
    kind, what, *_, shape, dtype = label
    if kind == "number":
        return f"the number {what!r}"
    named = {"argument": f"argument {what}", "state": "a tensor from outside the step",
             "gradient": "a gradient of before"}
    return f"{named.get(str(kind), 'a tensor made in the step')} of shape {shape} and type {dtype}"
