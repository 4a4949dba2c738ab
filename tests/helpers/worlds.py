"""Several ranks in one process: threads that make the same call, each with its place in a group."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ag.parallel.comm.comm import Comm
from ag.parallel.comm.threads import thread_comms


def outcomes(size: int, work: Callable[[Comm], Any], timeout: float = 20.0) -> list[Any]:
    """What `work(comm)` returns on each rank, or the error that it raises there; all run at once."""

    def tried(comm: Comm) -> Any:
        try:
            return work(comm)
        except BaseException as error:  # noqa: BLE001 - it is what the test looks at
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(tried, thread_comms(size, timeout)))
