"""What a captured step read and wrote in Python: attributes of layers and optimizers, names, tensors, gradients.

A recording has launches; what the step looked at on its way to them is noted here, so that a replay can tell whether
it would look at the same.  Attributes that it sets are set again after each replay.  What a log tells
(`ag.autograd.watched`) is compared only where that has something new; all else before every replay: names
(`ag.autograd.captured.meanings`), the items of containers, ``requires_grad``.  ``Tensor.grad`` is noted by itself, as
every step changes it.  Knows no layer and no launch; `ag.autograd.captured.call` makes it, `ag.autograd.watched` tells
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar
from weakref import ref

import numpy as np

from ag.autograd.captured.effects import Effects
from ag.autograd.captured.meanings import Meanings
from ag.autograd.captured.names import MOST, NameReader
from ag.autograd.captured.snapshots import MISSING, Contents, contents, has_other_items, same, shown, snapshot
from ag.autograd.captured.unchanged import HAS_CODE, is_quick, unchanged
from ag.autograd.tensor import Tensor
from ag.autograd.watched import CHANGES, Noted, Watched, start_noting
from ag.engine.buffer import Buffer
from ag.engine.program import Recording
from ag.errors import CaptureError

__all__ = ["Leaf", "Notes"]

T = TypeVar("T", bound=Noted)

# Objects of these types are set as they are: nobody can change them, or they are no part of the step.
_KEPT = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype, type, FunctionType,
         BuiltinFunctionType, MethodType, ModuleType, Watched, Tensor, Buffer)


class Leaf:
    """A tensor whose ``.grad`` the step read or set.

    Attributes
    ----------
    tensor : Tensor
    read : bool
        Whether it was read before it was set.
    initial : Tensor or None
        What it was when it was read.
    slot : Tensor or None
        What stood for it: every replay begins with the gradient of then in there.
    """

    def __init__(self, tensor: Any, read: bool) -> None:
        self.tensor = tensor
        self.read = read
        self.initial: Any = None
        self.slot: Any = None


class Notes:
    """What one thread read and wrote since `open`.

    Parameters
    ----------
    made : set of int
        Blocks (by ``id``) that were allocated since; what lies in them, and constants, are no state.

    Attributes
    ----------
    leaves : dict of int to Leaf
    effects : Effects
        Attributes that the step set.
    own_change : str or None
        What the step has changed itself of what it depends on, so that nothing of it can be replayed.
    """

    def __init__(self, made: set[int]) -> None:
        self._made = made
        self._reads: dict[tuple[int, str], tuple[ref[Watched], Any]] = {}
        self._contents: dict[tuple[int, str], list[Contents]] = {}  # of attributes that are lists or dicts
        self._flat: list[Contents] = []  # of names, and after the step of attributes, too: what every replay compares
        self._tensors: dict[int, tuple[ref[Noted], Buffer]] = {}
        self._trained: list[tuple[Noted, bool, str | None]] = []  # tensors that no op made: ``requires_grad``, name
        self._names = Meanings()
        self._reader = NameReader(Watched)
        self._slow: list[Contents] = []  # what of `_flat` no compiled code compares
        self.effects = Effects()
        self.own_change: str | None = None
        self.leaves: dict[int, Leaf] = {}
        self._position = CHANGES.position

    def _is_new(self, b: Buffer) -> bool:
        return id(b.block) in self._made or b.constant is not None

    def open(self, recording: Recording) -> None:
        """Begin to note what the thread of a recording does, as long as it is open."""
        recording.notes = self
        start_noting()

    # -------------------------------------------------------------------------------------- attributes and tensors

    def read(self, owner: Watched, name: str, value: object) -> None:
        """Note what an attribute was, unless the step set it itself."""
        key, kind = (id(owner), name), type(owner)
        if key in self._reads or key in self.effects:
            return
        self._reads.setdefault((id(owner), "__class__"), (ref(owner), snapshot(kind)))
        self._reader.told(kind, name)
        self._reader.values(value)
        self._note_names()
        self._reads[key] = ref(owner), snapshot(value)
        if name in object.__getattribute__(owner, "__dict__"):
            self._contents[key] = list(contents(value))

    def written(self, owner: Watched, name: str, value: object) -> None:
        """Note what an attribute becomes."""
        self.effects.note(owner, name, value)

    def names(self, functions: Sequence[object]) -> None:
        """Note what the names mean that functions read and that are not their own."""
        self._reader.values(*functions)
        self._note_names()

    def _note_names(self) -> None:
        for name in self._reader.new():
            if name.place is not None:
                self._names.add(name)
            self._flat += contents(name.value)

    def tensors(self, tensors: Sequence[Noted]) -> None:
        """Note where tensors lie that were there before."""
        for x in tensors:
            if id(x) not in self._tensors and not self._is_new(x.buffer):
                self._tensors[id(x)] = ref(x), x.buffer
                if x.node is None:
                    self._trained.append((x, x.requires_grad, x.name))

    def quickly(self, without: list[Tensor]) -> Callable[[], bool]:
        """What says whether surely all is as it was noted that no log tells, and tensors still without a gradient."""
        if not HAS_CODE:
            return bool
        tensors, flags, called = ([x[i] for x in self._trained] for i in range(3))
        attributes = vars(Tensor)
        slots = [(attributes["requires_grad"], tensors, flags), (attributes["name"], tensors, called),
                 (attributes["_grad"], without, [None] * len(without))]
        quick = [pair for pair in self._flat if is_quick(pair)]
        self._slow = [pair for pair in self._flat if not is_quick(pair)]
        return unchanged(slots, quick, *self._names.rows())

    def change(self, surely: bool = False) -> str | None:
        """What is not as it was noted, in words; None if all is. `surely`: what `quickly` has said."""
        position = CHANGES.position
        if position != self._position:
            changes = CHANGES.since(self._position)
            # None: the log was cut since, so anything that was noted may have changed
            noted: Iterator[tuple[int, str]] = iter(changes if changes is not None else [
                *self._reads, *((number, "buffer") for number in self._tensors)])
            for key in noted:
                if (found := self._changed(key)) is not None:
                    return found
            self._position = position
        return _other_items(self._slow) if surely else self._changed_now()

    def _changed_now(self) -> str | None:
        """`change` of what no log tells."""
        for tensor, was, name in self._trained:
            if tensor.requires_grad is not was:
                return f"requires_grad of {_called(tensor)} was {was} and is {tensor.requires_grad}"
            if tensor.name is not name and tensor.name != name:
                return f"the name of {_called(tensor)} was {name!r}"
        if (found := self._names.change()) is not None:
            return found
        return _other_items(self._flat)

    def _changed(self, key: tuple[int, str]) -> str | None:
        number, name = key
        if key in self._reads:
            owner, noted = self._reads[key]
            there = owner()
            if there is not None:
                try:
                    now = snapshot(object.__getattribute__(there, name))
                except AttributeError:
                    now = MISSING
                if not same(noted, now):
                    return f"{name} of {type(there).__name__} was {shown(noted)} and is {shown(now)}"
        elif name == "buffer" and number in self._tensors:
            x, buffer = self._tensors[number]
            moved = x()
            if moved is not None and moved.buffer is not buffer:
                return f"{_called(moved)} lies elsewhere, as an optimizer was made, or it was moved to another device"
        return None

    def close(self) -> None:
        """The step is over: let go of what belonged to objects that it made and dropped.

        Raises
        ------
        CaptureError
            If it did what no replay could: took from a source, set an attribute to what cannot be made again.
        """
        if (taken := self._reader.taken()) is not None:
            raise CaptureError(f"ag_capture: the step {taken}; a replay would not. Take it before the step, and pass "
                               f"it as an argument.")
        self._reader.modules()
        self._note_names()
        if self._reader.count >= MOST:
            raise CaptureError(f"ag_capture: the step, with what it calls, reads more than {MOST:,} names, too many to "
                               f"compare before every replay; let it reach fewer objects, or do not capture it.")
        for place, names in self._reader.missing():
            self._names.absent(place, names)
        known = self._reader.known()
        self.forget()
        self._names.close()
        before = -1
        while before != len(self._reads) + len(self.effects):  # what held an object may have died with another
            before = len(self._reads) + len(self.effects)
            self.effects.forget_the_dead()
            self._reads = {key: noted for key, noted in self._reads.items() if noted[0]() is not None}
            self._contents = {key: pairs for key, pairs in self._contents.items() if key in self._reads}
        self._flat += [pair for pairs in self._contents.values() for pair in pairs]
        self.effects.close(known, _KEPT)
        self.own_change = self._changed_now()

    def forget(self) -> None:
        """Let go of what had to be held as long as the step ran: nothing is read any more."""
        self._reader = NameReader(Watched)

    # -------------------------------------------------------------------------------------- gradients

    def grad_read(self, x: T, grad: T | None) -> T | None:
        """The gradient of `x`, or what stands for one of before the step."""
        if id(x) not in self.leaves and not self._is_new(x.buffer):
            leaf = self.leaves[id(x)] = Leaf(x, read=True)
            if grad is not None:
                backend = grad.buffer.backend
                slot = backend.alloc(grad.shape, grad.buffer.dtype)
                backend.assign(slot, grad.buffer)
                stand_in = type(x)(slot)
                leaf.initial, leaf.slot = grad, stand_in
                x.set_grad(stand_in)
                return stand_in
        return grad

    def grad_written(self, x: Noted) -> None:
        """The step sets the gradient of `x`."""
        if id(x) not in self.leaves and not self._is_new(x.buffer):
            self.leaves[id(x)] = Leaf(x, read=False)


def _other_items(pairs: list[Contents]) -> str | None:
    for container, items in pairs:
        if has_other_items(container, items):
            return f"a {type(container).__name__} that the step reads has other items"
    return None


def _called(x: Noted) -> str:
    return f"the parameter {x.name!r}" if x.name else f"a tensor of shape {x.shape}"
