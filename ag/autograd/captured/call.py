"""One call of a captured step, during which everything is noted: launches, what the step reads, what it leaves.

A step that does what a replay could not is refused here.  The call is compared with a program (`difference`), and its
results are those of an eager call; or a `CapturedProgram` is made of it.  Knows no replay; `ag.autograd.capture` makes
it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from threading import get_ident
from typing import Any
from weakref import ref

from ag.autograd.captured.arguments import Args, Arguments
from ag.autograd.captured.effects import Effects
from ag.autograd.captured.notes import Notes
from ag.autograd.captured.trace import Label, Left, Traced, first_difference, trace_of
from ag.autograd.tensor import Node, Tensor
from ag.autograd.watched import stop_noting
from ag.engine.buffer import Buffer, Device
from ag.engine.compile.pipeline import record
from ag.engine.program import OPEN, Recording
from ag.errors import CaptureError, TapeError

__all__ = ["ENDED", "RecordedCall", "filled"]


class RecordedCall:
    """One call of a step, which `record` makes; what happens to it afterwards, `undo` if that fails.

    Parameters
    ----------
    step : callable
    args : tuple of Tensor or numpy array
    backend : Device or None
        Who works for it; None: the first device that does something.
    recompute : bool
    reads : sequence of callable
        Functions whose names are watched.
    trial : bool
        Whether a step that does what a replay could not goes on as if it was not recorded, and is refused at its end.
    """

    recording: Recording
    notes: Notes

    def __init__(self, step: Callable[..., Any], args: Args, backend: Device | None,
                 recompute: bool, reads: Sequence[object], trial: bool) -> None:
        self.arguments = Arguments(args)
        self.tensors: list[Tensor] = []
        self._step, self._reads = step, reads
        self._record = partial(record, backend or self.arguments.device, self.arguments.on_upload, recompute, trial,
                               waits=not trial)

    def record(self) -> None:
        """Call the step.

        Raises
        ------
        CaptureError
            If the step does what a replay could not.
        """
        thread = get_ident()
        try:
            with self._record() as recording:
                self.recording = recording
                recording.made.update(self.arguments.labels)
                self.notes = Notes(recording.made)
                self.notes.names(self._reads)
                try:
                    self.notes.open(recording)
                    stand_ins = self.arguments.stand_ins()
                    output = self._step(*stand_ins)
                except BaseException:
                    self.put_back()
                    raise
        finally:
            OPEN.pop(thread, None)  # also if an interrupt came while `record` ended
            stop_noting()
        try:
            if recording.failure is not None:
                raise recording.failure
            self.structure = _structure(output, self.tensors)
            self.passed = [next((k for k, x in enumerate(stand_ins) if x is t), None) for t in self.tensors]
            del output
            self.trace = trace_of(recording, self._labels(), self._left())
            self.arguments.close(recording)
            if not recording.launches:
                raise CaptureError("ag_capture: the step launched nothing on a device, so there is nothing to replay; "
                                   "a captured step computes with tensors.")
            for i, t in enumerate(self.tensors):
                if t.node is not None:
                    t.node = ENDED
                if self.passed[i] is not None:
                    self.tensors[i] = Tensor(t.buffer)  # a stand-in that nobody keeps
            t = None  # type: ignore[assignment]
            self.notes.close()
            _refuse_kept([ref(x) for x in stand_ins], stand_ins)
        except BaseException:
            self.put_back()
            self.notes.forget()
            recording.compiled = None  # a circle, which would hold everything until the garbage is collected
            raise

    def _labels(self) -> dict[int, Label]:
        labels = dict(self.arguments.labels)
        for i, leaf in enumerate(self.notes.leaves.values()):
            if leaf.slot is not None:
                labels[id(leaf.slot.buffer.block)] = "gradient", i
        return labels

    def _left(self) -> list[Left]:
        """What the step returns, and the gradients that it leaves."""
        left: list[Left] = [("result", {"structure": self.structure}, [t.buffer for t in self.tensors])]
        for leaf in self.notes.leaves.values():
            left.append(("gradient", {}, [x.buffer for x in (leaf.tensor, leaf.tensor.peek_grad()) if x is not None]))
        return left

    def put_back(self) -> None:
        """Leave what the step did, as nothing is made of the recording."""
        self.recording.catch_up()
        for initial, slot in self.hand_back():
            initial.backend.assign(initial, slot)

    def hand_back(self) -> list[tuple[Buffer, Buffer]]:
        """Give gradients of before back to those who had them; returns where they were and are, if changed in place."""
        slots = [leaf for leaf in self.notes.leaves.values() if leaf.slot is not None]
        for leaf in slots:
            if leaf.tensor.grad is leaf.slot:
                leaf.tensor.set_grad(leaf.initial)
        return [(leaf.initial.buffer, leaf.slot.buffer) for leaf in slots]

    def difference(self, trace: list[Traced], effects: Effects) -> str | None:
        """What this call launched, or set, otherwise than another one, in words."""
        return first_difference(trace, self.trace) or effects.difference(self.notes.effects)

    def forget(self) -> bool:
        """If nothing of the call has run, leave everything as it was, for a program to do it; whether that is so."""
        if waits := self.recording.waits:
            self.undo()
            self.tensors.clear()
        return waits

    def undo(self) -> None:
        """Leave gradients as they were, if the launches that change them are not made: something failed before."""
        notes: Notes | None = getattr(self, "notes", None)
        if notes is not None and (self.recording.waits or self.recording.given_up):
            self.recording.give_up()
            for leaf in notes.leaves.values():
                leaf.tensor.set_grad(leaf.initial)

    def results(self, args: Args) -> Any:
        """What an eager call would return."""
        self.put_back()
        self.recording.compiled = None
        return filled(self.structure, [t if k is None else args[k]
                                        for t, k in zip(self.tensors, self.passed, strict=True)])


class _Ended(Node):
    """The node of a result: what it was computed from is known to the step alone."""

    __slots__ = ()

    def pull(self, total: Buffer) -> Any:
        raise TapeError("backward: the loss depends on a result of a captured step, whose record ends with the step; "
                        "call backward inside it.")

    def spend(self) -> None:
        """There is nothing to free."""


ENDED = _Ended("ag_capture", lambda *args: (), (), (), None, ())


def _refuse_kept(references: list[ref[Any]], stand_ins: list[Any]) -> None:
    """Raise if somebody holds one of the step's arguments; empties the list that held them."""
    stand_ins.clear()
    kept = next((x for r in references if (x := r()) is not None), None)
    if kept is not None:
        del kept
        gc.collect()  # a circle of references may be all that holds it
        kept = next((x for r in references if (x := r()) is not None), None)
    if kept is not None:
        raise CaptureError(f"ag_capture: the step keeps its argument of shape {kept.shape}, where a replay could not "
                           f"put that of another call; keep it outside the step.")


def _structure(output: object, tensors: list[Tensor]) -> Any:
    """What a step returns, with numbers in the place of tensors, which are appended to a list."""
    if isinstance(output, Tensor):
        tensors.append(output)
        return len(tensors) - 1
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*(_structure(x, tensors) for x in output))
    if isinstance(output, (list, tuple)):
        items = [_structure(x, tensors) for x in output]
        try:
            return type(output)(items)
        except TypeError as error:
            raise CaptureError(f"ag_capture: the step returns a {type(output).__name__}, which a replay cannot make of "
                               f"its items ({error}); return a list, a tuple or a dict.") from None
    if isinstance(output, dict):
        return _with(output, [_structure(x, tensors) for x in output.values()])
    if output is not None:
        raise CaptureError(f"ag_capture: the step returns a {type(output).__name__}; a replay can only return tensors "
                           f"(in tuples, lists or dicts) or None.")
    return None


def filled(structure: Any, tensors: list[Tensor]) -> Any:
    """The other way round."""
    if isinstance(structure, int):
        return tensors[structure]
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(filled(x, tensors) for x in structure))
    if isinstance(structure, (list, tuple)):
        return type(structure)(filled(x, tensors) for x in structure)
    if isinstance(structure, dict):
        return _with(structure, [filled(x, tensors) for x in structure.values()])
    return None


def _with(items: dict[object, object], values: list[object]) -> dict[object, object]:
    """A dict of the same type and keys with other values."""
    made = copy(items)
    made.update(zip(items, values, strict=True))
    return made
