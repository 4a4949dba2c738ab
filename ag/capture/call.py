"""One recorded call of a captured step: its launches, what it reads, and what it leaves.

In its trace of launches a value that was read in Python shows as another number, and a branch as another launch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import zip_longest
from operator import is_
from typing import Any, NamedTuple
from weakref import ref

from ag.autograd.tape import Node
from ag.autograd.tensor import Tensor, type_name
from ag.autograd.tree import TreeDef, classes_in, sequence_of, tree_flatten, tree_unflatten
from ag.autograd.watched import start_noting, stop_noting
from ag.capture.arguments import Args, Arguments, Label
from ag.capture.guards import Effects, Notes, equal
from ag.engine.buffer import Buffer, Device
from ag.engine.compile.pipeline import record
from ag.engine.primitive import Params
from ag.engine.program import Recording
from ag.errors import CaptureError, TapeError

Left = tuple[str, Params, Sequence[Buffer]]  # what a step leaves, like a launch: kind, parameters, buffers
_LEVELS = 100  # of containers in a result


class NotCapturedError(Exception):
    """Says, before the step runs, why it must run uncaptured."""


class RecordedCall:
    """One call of a step: `record` makes it; if that or anything later fails, call `undo`."""

    caught = False  # whether the step went on after a refusal

    def __init__(self, step: Callable[..., Any], leaves: Args, tree: TreeDef | None, backend: Device | None,
                 recompute: bool, reads: Sequence[object], trial: bool, args: Args = ()) -> None:
        self.arguments, self._tree = Arguments(leaves), tree
        self._ids = {*map(id, leaves), *map(id, args)}  # of what the caller holds
        self.tensors: list[Tensor] = []
        self._trial = trial
        self._step, self._reads = step, reads  # `reads`: functions whose names are guarded
        self.recording: Recording = record(backend or self.arguments.device, self.arguments.on_upload, recompute, trial,
                                           waits=not trial)
        self.notes = Notes(self.recording.made)

    def record(self) -> None:
        """Call the step; raises a `CaptureError` if a replay could not do the same."""
        recording = self.recording
        try:
            with recording:
                for slot in self.arguments.targets():
                    recording.claim(slot.block)
                self.notes.names([*self._reads, *(classes_in(self._tree) if self._tree is not None else ())])
                if self.arguments.has_arrays and (asked := self.notes.asked_type) is not None:
                    raise NotCapturedError(asked)
                try:
                    recording.notes = self.notes
                    start_noting()
                    placeholders = self.arguments.placeholders()
                    given = placeholders if self._tree is None else tree_unflatten(self._tree, placeholders)
                    output = self._step(*given)
                    if self.arguments.raised is not None:
                        recording.failure = recording.failure or CaptureError(
                            f"ag_capture: the step catches an error that numpy raised for the values of its arguments "
                            f"({self.arguments.raised}), and a replay would not; look for it outside.")
                except BaseException as error:
                    self.put_back()
                    is_other = isinstance(error, Exception) and not isinstance(error, CaptureError)
                    if is_other and recording.failure is not None and not self._trial:
                        raise recording.failure from error  # of which C code has made another error
                    raise
        finally:
            recording.close()  # also after an interrupt in `__exit__`
            self.arguments.is_recorded = False
            stop_noting()
        try:
            if recording.failure is not None:
                self.caught = True
                raise recording.failure
            if self._tree is not None:
                _refuse_changed(given, self._tree, placeholders)
            del given
            self.structure = _structure(output, self.tensors)
            self.passed = [next((k for k, x in enumerate(placeholders) if x is t), None) for t in self.tensors]
            del output
            self.trace = trace_of(recording, self._labels(), self._left())
            self.arguments.close(recording, [leaf.initial.buffer for leaf in self.notes.leaves.values()
                                             if leaf.initial is not None])
            self._refuse_set([x for x in placeholders if isinstance(x, Tensor)])
            if not recording.launches:
                raise CaptureError("ag_capture: the step launched nothing on a device, so there is nothing to replay; "
                                   "a captured step computes with tensors.")
            for i, t in enumerate(self.tensors):
                if t.node is not None:
                    t.node = ENDED
                if self.passed[i] is not None:
                    self.tensors[i] = Tensor(t.buffer)  # in place of the placeholder
            t = None  # type: ignore[assignment]
            if self.arguments.has_arrays and (asked := self.notes.asked_type) is not None:
                raise CaptureError(f"ag_capture: {asked}")
            self.notes.close(self._ids)
            _refuse_kept([ref(x) for x in placeholders], placeholders)
        except BaseException:
            self.put_back()
            self.notes.forget()
            raise

    def _refuse_set(self, arguments: list[Tensor]) -> None:
        for x in arguments:
            if x.requires_grad or x.peek_grad() is not None or x.name != self.arguments.name_of(x):
                raise CaptureError(f"ag_capture: the step sets name, requires_grad or grad of its argument of shape "
                                   f"{x.shape}, and a replay would not; set it outside.")
        for x in self.tensors:
            is_set = x.name is not None or x.peek_grad() is not None or (x.requires_grad and x.node is None)
            if is_set and id(x.buffer.block) in self.recording.made and not any(x is y for y in arguments):
                raise CaptureError(f"ag_capture: the step sets name, requires_grad or grad of its result of shape "
                                   f"{x.shape}, and those of replays would have none; set it outside.")

    def _labels(self) -> dict[int, Label]:
        labels = dict(self.arguments.labels)
        for i, leaf in enumerate(self.notes.leaves.values()):
            if leaf.slot is not None:
                labels[id(leaf.slot.buffer.block)] = "gradient", i
        return labels

    def _left(self) -> list[Left]:
        """List the result of the step and the gradients that it leaves, like launches."""
        left: list[Left] = [("result", {"structure": self.structure}, [t.buffer for t in self.tensors])]
        for leaf in self.notes.leaves.values():
            left.append(("gradient", {}, [x.buffer for x in (leaf.tensor, leaf.tensor.peek_grad()) if x is not None]))
        return [*left, *self.arguments.described()]

    def put_back(self) -> None:
        """Make the effects of the step real, as no program will run."""
        self.recording.catch_up()
        self.recording.close()  # which would refuse what follows
        for initial, slot in self.hand_back():
            initial.backend.assign(initial, slot)

    def hand_back(self) -> list[tuple[Buffer, Buffer]]:
        """Restore older gradients to their tensors; return their buffers, each with its slot."""
        slots = [leaf for leaf in self.notes.leaves.values() if leaf.slot is not None]
        for leaf in slots:
            if leaf.tensor.grad is leaf.slot:
                leaf.tensor.set_grad(leaf.initial)
        return [(leaf.initial.buffer, leaf.slot.buffer) for leaf in slots]

    def difference(self, trace: list[Traced], effects: Effects) -> str | None:
        return first_difference(trace, self.trace) or effects.difference(self.notes.effects)

    def forget(self) -> bool:
        """If no launch has run, undo the call for a program to run instead; return whether it was undone."""
        if waits := self.recording.waits:
            self.undo()
            self.tensors.clear()
        return waits

    def undo(self) -> None:
        """After a failure, drop launches that have not run, and restore the gradients that they would change."""
        if self.recording.waits or self.recording.given_up:
            self.recording.give_up()
            for leaf in self.notes.leaves.values():
                leaf.tensor.set_grad(leaf.initial)

    def results(self, args: Args) -> Any:
        self.put_back()
        return filled(self.structure, [t if k is None else args[k]
                                        for t, k in zip(self.tensors, self.passed, strict=True)])


class _Ended(Node):
    """The node of a result of a captured step, where the record ends."""

    __slots__ = ()

    def pull(self, total: Buffer) -> Any:
        raise TapeError("backward: the loss depends on a result of a captured step, whose record ends with the step; "
                        "call backward inside it.")

    def spend(self) -> None:
        """Do nothing."""


ENDED = _Ended("ag_capture", lambda *args: (), (), (), None, ())


def _refuse_changed(args: Any, tree: TreeDef, leaves: Sequence[object]) -> None:
    now, changed = tree_flatten(tuple(args))
    if changed != tree or not all(map(is_, now, leaves)):
        raise CaptureError("ag_capture: the step changes a list, dict or dataclass among its arguments, and a replay "
                           "would not; return what is new, or change it outside.")


def _refuse_kept(references: list[ref[Any]], placeholders: list[Any]) -> None:
    """Raise if one of the step's arguments is still alive; empties the list that held them."""
    placeholders.clear()
    kept = next((x for r in references if (x := r()) is not None), None)
    if kept is not None:
        del kept
        gc.collect()  # perhaps only a reference cycle holds it
        kept = next((x for r in references if (x := r()) is not None), None)
    if kept is not None:
        raise CaptureError(f"ag_capture: the step keeps its argument of shape {kept.shape}, where a replay could not "
                           f"put that of another call; keep it outside the step.")


def _rebuilt(x: Any, leaf: Callable[[Any], Any], levels: int = _LEVELS) -> Any:
    """Make containers like those of a step's result, with what `leaf` returns in place of everything else."""
    if not levels:
        raise CaptureError(f"ag_capture: the step returns containers nested more than {_LEVELS} deep, or one that "
                           f"contains itself, which a replay cannot make; return fewer levels.")
    if not isinstance(x, (tuple, list, dict)):
        return leaf(x)
    items = [_rebuilt(item, leaf, levels - 1) for item in (x.values() if isinstance(x, dict) else x)]
    if isinstance(x, dict):
        made = copy(x)
        made.update(zip(x, items, strict=True))
        return made
    try:
        return sequence_of(type(x), items)
    except TypeError as error:
        raise CaptureError(f"ag_capture: the step returns a {type(x).__name__}, which a replay cannot make of its "
                           f"items ({error}); return a list, a tuple or a dict.") from None


def _structure(output: object, tensors: list[Tensor]) -> Any:
    """Replace the tensors of a step's result by numbers, and append each to a list, once."""
    def number(x: object) -> int | None:
        if isinstance(x, Tensor):
            if not any(x is t for t in tensors):
                tensors.append(x)
            return next(i for i, t in enumerate(tensors) if t is x)
        if x is not None:
            raise CaptureError(f"ag_capture: the step returns a {type_name(x)}; a replay can only return tensors (in "
                               f"tuples, lists or dicts) or None.")
        return None

    return _rebuilt(output, number)


def filled(structure: Any, tensors: list[Tensor]) -> Any:
    """Fill tensors into a result with numbers; the inverse of `_structure`."""
    return _rebuilt(structure, lambda number: None if number is None else tensors[number])


class Traced(NamedTuple):
    name: str
    params: Params
    operands: tuple[Label, ...]


def trace_of(recording: Recording, labels: Mapping[int, Label], left: Sequence[Left] = ()) -> list[Traced]:
    """Trace the launches of a recording before it is compiled, and what it leaves; `labels` go by ids of blocks."""
    made: dict[int, int] = {}
    constants = recording.backend.constants.items() if recording.backend is not None else ()
    # also for views, which do not carry it; arrays by what stands for them
    numbers = {id(c.block): key[0] if c.constant is None else c.constant for key, c in constants}

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
                return f"launch {i}, {a.name}, worked on {_shown_label(x)} and works on {_shown_label(y)} (operand {k})"
    return None


def _shown_label(label: Label) -> str:
    kind, what, *_, shape, dtype = label
    if kind == "number":
        return f"the number {what!r}"
    named = {"argument": f"argument {what}", "state": "a tensor from outside the step",
             "gradient": "a gradient of before"}
    return f"{named.get(str(kind), 'a tensor made in the step')} of shape {shape} and type {dtype}"
