"""A replay in one call of compiled code, where nothing about a call is unusual; without a compiler there is none.

`replay.c`, which says what it is given and what is unusual, does what `ag.autograd.capture` and
`ag.autograd.captured.program` do, and leaves to them whatever it does not know.  Knows no op and no layer; a captured
step asks its program for one when Python has replayed that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from ag.autograd.tape import CONTEXT as OF_TAPE
from ag.autograd.tensor import Tensor
from ag.engine.backend import Backend
from ag.engine.device import CONTEXT as OF_DEVICE
from ag.engine.program import OPEN

__all__ = ["HAS_CODE", "replay"]

try:
    _code: Any = import_module(f"{__package__}._replay")
except ImportError:
    _code = None
HAS_CODE = _code is not None

Changes = Sequence[Callable[[], "str | None"]]
Calls = Sequence[Callable[[], None]]


def replay(thread: int, kinds: Sequence[tuple[Any, ...]], trusted: object, program: Any, surely: Callable[[], bool],
           guards: Changes, change: Callable[[bool], str | None], check: Callable[[Any], None] | None,
           grads: Sequence[tuple[Tensor, object]], before: Calls, after: Calls) -> Callable[[tuple[Any, ...]], Any]:
    """What replays a program for arguments, or gives NotImplemented; all settings must be those of now."""
    settings = tuple([(variable, variable.get(None)) for variable in (*OF_DEVICE, *OF_TAPE)])
    same = ((Backend.settings, "precision", Backend.settings.precision),)
    left = tuple([tuple([x[i] for x in grads]) for i in range(2)])
    found: Callable[[tuple[Any, ...]], Any] = _code.Replay(
        thread, OPEN, settings, same, tuple(kinds), trusted, program, surely, tuple(guards), change, check, left,
        tuple(before), tuple(after), program.program.run, program.results, vars(Tensor)["_grad"])
    return found
