"""A replay in one call of compiled code, where nothing about a call is unusual; without a compiler there is none.

`replay.c`, which says what it is given and what is unusual, does what `ag.autograd.capture` and
`ag.autograd.captured.program` do, and leaves to them whatever it does not know.  Knows no op and no layer; a captured
step asks its program for one when Python has replayed that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Protocol, cast

from ag.autograd.captured.arguments import Args
from ag.autograd.tape import CONTEXT as OF_TAPE
from ag.autograd.tensor import Tensor
from ag.engine.backend import Backend
from ag.engine.device import CONTEXT as OF_DEVICE
from ag.engine.program import OPEN, Program

__all__ = ["HAS_CODE", "Replay", "replay"]

try:
    _code: ModuleType | None = import_module(f"{__package__}._replay")
except ImportError:
    _code = None
HAS_CODE = _code is not None

Replay = Callable[[Args], object]  # what a call with these arguments returns, or NotImplemented
Changes = Sequence[Callable[[], "str | None"]]
Calls = Sequence[Callable[[], None]]


class Replayed(Protocol):
    """What is asked of a program."""

    program: Program

    def results(self, args: Args) -> object: ...


def replay(thread: int, kinds: Sequence[tuple[object, ...]], trusted: object, program: Replayed,
           surely: Callable[[], bool], guards: Changes, change: Callable[[bool], str | None],
           check: Callable[[Args], None] | None, grads: Sequence[tuple[Tensor, object]], before: Calls, after: Calls,
           returns_none: bool) -> Replay:
    """What replays a program for arguments, or gives NotImplemented; all settings must be those of now."""
    assert _code is not None
    settings = tuple([(variable, variable.get(None)) for variable in (*OF_DEVICE, *OF_TAPE)])
    same = ((Backend.settings, "precision", Backend.settings.precision),)
    left = tuple([tuple([x[i] for x in grads]) for i in range(2)])
    return cast(Replay, _code.Replay(
        thread, OPEN, settings, same, tuple(kinds), trusted, program, surely, tuple(guards), change, check, left,
        tuple(before), tuple(after), program.program.run, None if returns_none else program.results,
        vars(Tensor)["_grad"]))
