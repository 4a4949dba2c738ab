"""The two worlds side by side: an action is carried out in both, and what can be seen is compared to the bit.

The subject may refuse by a named error: then it takes over the twin's state.  Anything else is a `Divergence`.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from machine.steps import Spec
from machine.world import Call, Refused, Seen, array_of

NAMED = "AgError"
LATE = ("interrupted_step",)  # the twin is not interrupted
STEPS = ("step", "in_thread", "two_threads")  # actions that call one


History = list[tuple[str, dict[str, Any]]]  # actions with their arguments


class Divergence(AssertionError):  # noqa: N818  (it is what is looked for)
    """The subject is not what the twin is, and did not say so."""


class Peer:
    """The process of one world."""

    def __init__(self, device: str, role: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("peer.py")), device, role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def send(self, *request: object) -> None:
        pickle.dump(request, self._process.stdin)  # type: ignore[arg-type]
        self._process.stdin.flush()  # type: ignore[union-attr]

    def receive(self) -> Call:
        answer: Call = pickle.load(self._process.stdout)  # type: ignore[arg-type]
        return answer

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]


class Pair:
    """A subject, which captures if `captured`, and its twin; actions named in `without` are left out."""

    def __init__(self, device: str, captured: bool = True, without: tuple[str, ...] = ()) -> None:
        self.device, self.captured, self.without = device, captured, without
        self._begin()
        self.actions: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()  # named errors of the subject, by their first words
        self.history: History = []  # since the last restart
        self.found: list[str] = []  # divergences
        self.broken = False  # since the last restart
        self.has: dict[str, Any] = {}  # what there is in the worlds: steps, optimizers, ...
        self._seeds = 0

    def _begin(self) -> None:
        self.subject = Peer(self.device, "subject" if self.captured else "twin")
        self.twin = Peer(self.device, "twin")

    def close(self) -> None:
        self.twin.close()
        self.subject.close()

    def do(self, name: str, /, look: bool = True, **arguments: Any) -> None:
        """Carry out an action in both worlds, and compare."""
        if name == "restart":
            if self.broken:  # what it left in its process might be found again
                self.close()
                self._begin()
            self.history, self.broken = [], False
        if name in self.without:
            return
        self.history.append((name, arguments if look else {**arguments, "look": False}))
        self.actions[name] += 1
        theirs, mine = self._both(name, arguments, look)
        if "AssertionError" in theirs.kinds + mine.kinds:
            raise self._divergence(f"twin: {theirs.error or 'fine'}; subject: {mine.error or 'fine'}")
        if theirs.error == mine.error:
            self._compare(theirs, mine)
            if mine.error and name in STEPS:
                self._quiet("forget_arguments")
            return
        if not mine.error:
            raise self._divergence(f"the subject does {name} and the twin says {theirs.error}")
        accepted = (
            NAMED in mine.kinds or "read-only" in mine.error or (name in LATE and "KeyboardInterrupt" in mine.kinds)
        )
        if not accepted:
            raise self._divergence(f"the subject says {mine.error}; the twin {theirs.error or 'does it'}")
        self.refused[_words(mine.error)] += 1
        self._resync()
        if mine.stale is not None:
            self._quiet("capture_again", i=mine.stale)

    def _both(self, name: str, arguments: dict[str, Any], look: bool) -> tuple[Call, Call]:
        try:
            self.twin.send(name, arguments, look)
            self.subject.send(name, arguments, look)
            mine, theirs = self.subject.receive(), self.twin.receive()
        except (EOFError, BrokenPipeError):
            raise self._divergence(f"the process of a world has ended in {name}, or before it") from None
        self.has = theirs.has
        return theirs, mine

    def _quiet(self, name: str, /, look: bool = False, **arguments: Any) -> Call:
        """An action of the machine itself; the twin's answer."""
        theirs, mine = self._both(name, arguments, look)
        if theirs.error or mine.error:
            raise self._divergence(f"{name}: twin {theirs.error or 'fine'}; subject {mine.error or 'fine'}")
        return theirs

    def _resync(self) -> None:
        """The subject becomes what the twin is; both go on with other random numbers."""
        self.twin.send("nothing", {}, True)
        theirs = self.twin.receive()
        self.subject.send("adopt", {"seen": theirs.seen, "python": theirs.python}, False)
        mine = self.subject.receive()
        if mine.error:
            raise self._divergence(f"after a refusal the subject cannot be set right: {mine.error}")
        self.twin.send("forget_all", {}, False)
        self.twin.receive()
        self._seeds += 1
        self._compare(*self._both("seed", {"value": 1000 + self._seeds}, True))

    def _compare(self, theirs: Call, mine: Call) -> None:
        differ = _differences(dict(theirs.result or ()), dict(mine.result or ()), "returned")
        refused = [x for x in differ if isinstance(x[2], Refused)]
        differ = [x for x in differ if not isinstance(x[2], Refused)]
        if theirs.seen is not None and mine.seen is not None:
            for found in _differences(theirs.seen, mine.seen):
                (refused if isinstance(found[2], Refused) else differ).append(found)
        if differ:
            raise self._divergence("; ".join(_said(*x) for x in differ[:6]) + f" ({len(differ)} in all)")
        if refused:
            self.refused.update(_words(f"read later: {x[2].error}") for x in refused[:1])
            self._resync()

    def _divergence(self, what: str) -> Divergence:
        self.broken = True
        self.found.append((what, self.history))
        return Divergence(f"{self.device}: {what}\n{written(self.history)}")


def written(history: History) -> str:
    """The actions as lines of Python, with what a `Spec` has besides its defaults."""
    return "\n".join(f"    {name}({', '.join(f'{k}={_brief(v)}' for k, v in a.items())})" for name, a in history)


def _brief(x: Any) -> str:
    if not isinstance(x, Spec):
        return repr(x)
    changed = {k: v for k, v in x._asdict().items() if v != Spec._field_defaults[k]}
    return f"Spec({', '.join(f'{k}={v!r}' for k, v in changed.items())})"


def reduced(device: str, history: History, seconds: float = 60.0) -> tuple[str, History]:
    """Leave out actions while the rest diverges; return the divergence and the rest. Each try has worlds of its own."""
    end, what, k = perf_counter() + seconds, "", len(history) - 1
    while k > 0 and perf_counter() < end:
        shorter = history[:k] + history[k + 1 :]
        if found := replayed(device, shorter):
            what, history = found
            k = min(k, len(history))
        k -= 1
    return what, history


def replayed(device: str, history: History) -> tuple[str, History] | None:
    """Carry out these actions in a new pair: the divergence, and the actions until there; None if there is none."""
    pair = Pair(device)
    try:
        for name, arguments in history:
            pair.do(name, **arguments)
    except (Divergence, EOFError) as error:
        return str(error).partition("\n    restart")[0], list(pair.history)
    finally:
        pair.close()
    return None


def _differences(theirs: Seen, mine: Seen, prefix: str = "") -> list[tuple[str, Any, Any]]:
    if set(theirs) != set(mine) and not any(isinstance(x, Refused) for x in mine.values()):
        return [(f"{prefix} names", sorted(theirs), sorted(mine))]
    absent = next((x for x in mine.values() if isinstance(x, Refused)), None)
    return [(prefix + k, theirs[k], mine.get(k, absent)) for k in theirs if theirs[k] != mine.get(k, absent)]


def _said(name: str, theirs: Any, mine: Any) -> str:
    return f"{name} is {_short(mine)} instead of {_short(theirs)}"


def _short(x: Any) -> str:
    if isinstance(x, tuple) and len(x) == 4:
        return f"{x[0]} {x[2]} {np.array2string(array_of(x).ravel()[:6], precision=5)}"
    return repr(x)


def _words(error: str) -> str:
    """An error without its numbers and names, to be counted."""
    return " ".join(error.replace(";", "").split()[:9])
