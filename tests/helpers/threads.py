"""Threads that change places as often as they can, so that a race shows."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable


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
