"""A recorded step that can be replayed: its guards, its launches, and what it leaves behind.

Results share program memory, copied on write; gradients are made when read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import is_, itemgetter
from typing import cast
from weakref import ref

from ag.autograd.half import SCALES
from ag.autograd.tape import CONTEXT
from ag.autograd.tensor import PendingGrad, Tensor, grads_of, plain_tensor
from ag.capture.arguments import Args
from ag.capture.call import ENDED, RecordedCall, filled
from ag.engine.arena import Block, now
from ag.engine.backend import Backend
from ag.engine.buffer import LATEST, Buffer, Device, copy_on_write, copy_out, note_written
from ag.engine.dtype import U32, DType
from ag.engine.program import Program, Recording
from ag.engine.shape import Shape
from ag.errors import CaptureError
from ag.native import code as _code

HAS_CODE = _code is not None

Replay = Callable[[Args], object]  # returns what a call with these arguments does, or NotImplemented

_NONE = repeat(None)
_SMALL = 4096  # results of up to so many bytes are copied at once


class CapturedProgram:
    """A recorded call that can be replayed, by `thread` alone, or by any if that is 0; it uses up the call."""

    def __init__(self, call: RecordedCall, thread: int) -> None:
        recording, notes = call.recording, call.notes
        self.trace, self.effects, self._structure = call.trace, notes.effects, call.structure
        self._arguments, self._notes, self._guards = call.arguments, notes, [*recording.guards.values()]
        self.backend, self._thread = cast(Device, recording.backend), thread
        self.own_change = notes.own_change  # by the step, such as a counter, in words: it cannot be replayed
        if not SCALES:  # a loss scale that is made later changes gradients and steps
            notes.watch(SCALES)
        results = _Results(recording)
        self._slots = [leaf for leaf in notes.leaves.values() if leaf.slot is not None]  # with a gradient of before
        self._without = [leaf.tensor for leaf in notes.leaves.values() if leaf.read and leaf.slot is None]
        changed = {id(b.block) for launch in recording.launches for b in launch.written}
        self._copied_back = [leaf for leaf in self._slots if id(leaf.slot.buffer.block) in changed]
        changed_in_place = [(initial, slot) for initial, slot in call.hand_back() if id(slot.block) in changed]
        # Gradients that every replay sets; an older one that is still in place stays.
        leaves = [leaf.tensor for leaf in notes.leaves.values()
                  if leaf.slot is None or leaf.tensor.grad is not leaf.initial]
        grads = [x.grad for x in leaves]
        number = {id(g): i for i, g in enumerate(grads) if g is not None}
        shared = [number.get(id(t)) for t in call.tensors]
        tracked = [t.node is not None for t in call.tensors]
        found = [None if g is None else results.find(g) for g in grads]
        outputs = [results.find(t) for t in call.tensors]
        grads.clear()
        call.tensors.clear()
        for x in leaves:
            x.set_grad(None)
        try:
            self.program = recording.finished()
        except CaptureError:
            recording.catch_up()
            _copy(changed_in_place)
            for x, result in zip(leaves, found, strict=True):
                x.set_grad(Tensor(result()) if callable(result) else result)
            raise
        if recording.waits:  # the launches have not run yet
            self.program.run()
        _copy(changed_in_place)
        self._grads = [(x, _Pending(x, result(), thread) if callable(result) else result)
                       for x, result in zip(leaves, found, strict=True)]
        self._makers: list[Callable[[Args], Tensor]] = []
        for result, position, argument, needs_grad in zip(outputs, shared, call.passed, tracked, strict=True):
            if argument is not None:
                self._makers.append(itemgetter(argument))
            elif position is not None:
                self._makers.append(partial(_grad_of, leaves[position]))
            elif callable(result):
                self._makers.append(partial(_result, self.program, result(), thread, needs_grad))
            else:
                self._makers.append(partial(_itself, result))
        self._only = self._makers[0] if self._structure == 0 else None  # makes a result that is one tensor
        slots = [*self._arguments.targets(), *(leaf.slot.buffer for leaf in self._slots)]
        written = [b for launch in recording.launches for b in launch.written]
        self._blocks = [*dict.fromkeys([b.block for b in (*written, *slots)])]
        self.sharers: list[tuple[Block, Sequence[object]]] = []  # of each block after the last call
        self._changed = _stretches([b for b in written if id(b.block) not in recording.made])
        self._writes = _Writes(self._changed)
        self._leaves = [x for x, _ in self._grads]
        for x, grad in self._grads:
            x.set_grad(grad)
        recording.waits = False
        for leaf in notes.leaves.values():
            leaf.initial = None
        self._share()
        self._holds = notes.compiled(self._without)

    def change(self) -> str | None:
        """Describe what has changed of what the recording depends on; None if it holds."""
        holds = self._holds()
        if not holds and not all(map(is_, grads_of(self._without), _NONE)):
            return "a gradient is there that was not"
        for leaf in self._slots:
            if (grad := leaf.tensor.peek_grad()) is None:
                return "a gradient that was there is not"
            b, slot = grad.buffer if isinstance(grad, Tensor | PendingGrad) else None, leaf.slot.buffer
            if b is None or b.backend is not slot.backend or b.dtype is not slot.dtype or b.shape != slot.shape:
                return "a gradient is of another kind"
        for guard in self._guards:
            if (found := guard()) is not None:
                return found
        return self._notes.change(holds)

    def check(self, args: Args) -> None:
        """Raise, before anything runs, if a value of an array is not allowed, or an argument is known to the step."""
        if not self._notes.known.isdisjoint(map(id, args)):
            raise CaptureError("ag_capture: the step can reach one of its arguments by itself.")
        for x in args:
            if isinstance(x, Tensor) and self._changes(x.buffer):
                raise CaptureError("ag_capture: the step changes one of its arguments.")
        self._arguments.check(args)

    def look(self) -> None:
        self._arguments.look()

    def _changes(self, buffer: Buffer) -> bool:
        used = [b for b in self._changed if b.block is buffer.block]
        grads = [leaf.tensor.peek_grad() for leaf in self._slots]
        return any(b.overlaps(buffer) for b in (*used, *[g.buffer for g in grads if g is not None])
                   if b.block is buffer.block)

    def replay(self, args: Args) -> object:
        for leaf in self._slots:
            self.backend.assign(leaf.slot.buffer, leaf.tensor.peek_grad().buffer)
        changed = [(leaf, leaf.tensor.grad) for leaf in self._copied_back] if self._copied_back else []
        others = [leaf for leaf, grad in zip(self._grads, grads_of(self._leaves), strict=True)
                  if grad is not leaf[1]] if self._grads else []
        for x, _ in others:
            x.set_grad(None)
        copied = False
        for block, sharers in self.sharers:
            if block.sharers is not sharers:  # more than unread gradients, which may be overwritten
                copy_out(block)
                copied = True
        if copied:
            others = self._grads  # of which those that were not read were copied, too
        self._writes.note()
        self.program.run(self._arguments.given(args))
        for leaf, before in changed:
            self.backend.assign(before.buffer, leaf.slot.buffer)
        for x, grad in others:
            x.set_grad(grad)
        if copied:
            self._share()
        self.effects.repeat()
        return self.results(args)

    def compiled_replay(self, trusted: object, args: Args) -> Replay | None:
        """Return a compiled replay, or None, of calls with such arguments and with settings and context as now."""
        if not HAS_CODE or self._slots or self._arguments.recipes:
            return None
        context = tuple([(variable, variable.get(None)) for variable in CONTEXT])
        same = ((Backend.settings, "precision", Backend.settings.precision),)
        return cast(Replay, _code.Replay(
            self._thread, context, same, tuple(self._arguments.kinds(args)), trusted, self, self._holds,
            tuple(self._guards), self._notes.change if self._notes.slow else None,
            self.check if self._arguments.checks or self._notes.known else None,
            tuple([tuple([x[i] for x in self._grads]) for i in range(2)]),
            frozenset([b.block for b in self._changed]), (self._writes.note,),
            (self.effects.repeat,) if self.effects else (), self.program.run,
            None if self._structure is None else self.results, vars(Tensor)["_grad"]))

    def results(self, args: Args) -> object:
        """Return the result of the call: new tensors, or older ones where the eager call returns these."""
        if self._only is not None:
            return self._only(args)
        return filled(self._structure, [make(args) for make in self._makers])

    def _share(self) -> None:
        for _, grad in self._grads:
            if type(grad) is _Pending:
                grad.share()
        self.sharers = [(block, block.sharers) for block in self._blocks]

    def close(self) -> None:
        """Close the program; unread gradients are copied out of its memory."""
        for _, grad in self._grads:
            if type(grad) is _Pending:
                grad.copy()
        self.program.close()


def _copy(pairs: list[tuple[Buffer, Buffer]]) -> None:
    for target, source in pairs:
        target.backend.assign(target, source)


def _stretches(buffers: list[Buffer]) -> list[Buffer]:
    """Cover the same memory by as few buffers as possible."""
    joined: list[Buffer] = []
    for b in sorted(buffers, key=lambda b: b.address):
        start, end = b.address, b.address + b.nbytes
        if joined and joined[-1].block is b.block and start <= joined[-1].address + joined[-1].nbytes:
            last = joined.pop()
            start, end = last.address, max(end, last.address + last.nbytes)
        joined.append(Buffer(b.backend, b.block, start, ((end - start) // U32.itemsize,), U32))
    return joined


class _Writes:
    """`note_written` of the same buffers for every run of a program: quicker, as nothing is looked up."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        note_written(*buffers)
        self._places = [(b.block.changes, (b.address, b.shape, b.dtype.itemsize)) for b in buffers
                        if b.block.changes is not None]

    def note(self) -> None:
        time = now()
        for changes, place in self._places:
            changes.last = changes.places[place] = time
        LATEST.last = time


class _Pending(PendingGrad):
    """An unread gradient in program memory; it is copied before the memory is overwritten."""

    def __init__(self, leaf: Tensor, buffer: Buffer, thread: int) -> None:
        self._leaf, self.buffer, self._shares = leaf, buffer, False
        self._thread = thread

    def tensor(self) -> Tensor:
        return Tensor(copy_on_write(self.buffer, self._thread))

    def share(self) -> None:
        """Be told before the memory is written."""
        if not self._shares:
            self.buffer.block.sharers = [*self.buffer.block.sharers, ref(self)]
            self._shares = True

    def copy(self) -> None:
        self._shares = False
        if self._leaf.peek_grad() is self:
            device = self.buffer.backend
            apart = device.alloc(self.buffer.shape, self.buffer.dtype)
            device.assign(apart, self.buffer)
            self._leaf.set_grad(Tensor(apart))


class _Results:
    """Finds results after all tensors were freed, in the outputs of the launches that made them."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._made: dict[int, tuple[int, int]] = {id(x.buffers[k].block): (i, k) for i, x in enumerate(
            recording.launches) if x.fresh for k in range(x.primitive.outputs)}
        self._wanted: list[tuple[int, int]] = []
        recording.results = self._wanted

    def find(self, t: Tensor) -> Tensor | Callable[[], Buffer]:
        """Return a tensor from before the step, or where the program leaves its values, without holding it."""
        b, place = t.buffer, id(t.buffer.block)
        if place in self._made:
            if self._made[place] not in self._wanted:
                self._wanted.append(self._made[place])
            return partial(self._output, self._made[place], b.address - b.block.address, b.shape, b.dtype)
        return (lambda: b) if place in self._recording.made else t

    def _output(self, made: tuple[int, int], offset: int, shape: Shape, dtype: DType) -> Buffer:
        """Return a part of an output of the program, or of a launch of a recording that was not compiled."""
        i, k = made
        outputs = self._recording.outputs
        base = outputs[self._wanted.index(made)] if outputs else self._recording.launches[i].buffers[k]
        return base if (offset, shape, dtype) == (0, base.shape, base.dtype) else base.view(
            shape, offset // dtype.itemsize, dtype)


def _grad_of(leaf: Tensor, args: Args) -> Tensor:
    return cast(Tensor, leaf.grad)


def _itself(tensor: Tensor, args: Args) -> Tensor:
    return tensor


def _result(program: Program, buffer: Buffer, thread: int, needs_grad: bool, args: Args) -> Tensor:
    if buffer.block.nbytes > _SMALL:
        lent = copy_on_write(buffer, thread)
    elif program.quick_copy is not None and Backend.settings.events is None:
        lent = program.quick_copy(buffer)  # at once, as most are held until the next call
    else:
        lent = program.copied(buffer)
    return plain_tensor(lent, ENDED) if needs_grad else plain_tensor(lent)
