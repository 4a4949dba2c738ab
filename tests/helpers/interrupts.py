"""Do something in the middle of a call, at one of the places where Python would run the handler of a signal.

Or let threads change places as often as they can, so that a race shows.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

# Python looks for signals when a function begins, after a call, and when it jumps back; nowhere else, so that what a
# `with` statement has locked is let go of again.
LOOKS = ("RESUME", "CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")


@cache
def looks_after(code: CodeType) -> dict[int, bool]:
    """Map the offset of each instruction to whether Python looks for signals after it."""
    return {i.offset: i.opname.startswith(LOOKS) for i in dis.get_instructions(code)}


@contextmanager
def at_place(number: int, do: Callable[[], None], within: Callable[[FrameType], bool]) -> Iterator[list[int]]:
    """Call `do` where Python looks for signals for the `number`-th time; yields how often it did.

    Only calls are counted for whose frame `within` is true.
    """
    seen = [0]

    def trace(frame: FrameType, kind: str, _: object) -> Any:
        if not within(frame):
            return None
        frame.f_trace_opcodes = True
        last = -1

        def inside(frame: FrameType, kind: str, _: object) -> Any:
            nonlocal last
            if kind == "opcode":
                if looks_after(frame.f_code).get(last):
                    seen[0] += 1
                    if seen[0] == number:
                        sys.settrace(None)
                        do()
                last = frame.f_lasti
            return inside

        return inside

    previous = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks only now whether somebody wants them
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(previous)


def in_threads(work: Callable[[int], None], numbers: Iterable[int]) -> None:
    """Call `work` with each number in a thread of its own, all at once."""
    threads = [threading.Thread(target=work, args=(number,)) for number in numbers]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
