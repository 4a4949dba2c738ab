"""What the golden tests keep of a result: a hash of arrays, the bits of losses, and what a program costs.

Knows no workload and nothing inside `ag`.  The modules of the entries call it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np

import ag

Found = dict[str, Any]  # what JSON can hold, equal after a round trip


def hash_of(arrays: Mapping[str, Any]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names."""
    digest = sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def bits(losses: Iterable[Any]) -> list[str]:
    """Losses as hexadecimal numbers, which lose no bit."""
    return [float(loss).hex() for loss in losses]


def costs(captured: ag.CapturedStep, *args: Any) -> Found:
    """What one replay costs: numbers of the program, and how often it runs its kernels, the most frequent first."""
    program: Any = captured.program
    transfers: Any = getattr(getattr(program, "_backend", None), "transfers", None)
    if transfers is not None:  # an upload that met the end of a staging chunk would take two transfers: begin another
        transfers._room = transfers._room[0], transfers._chunks[0][1].size
    with ag.profile() as seen:
        captured(*args)
    calls = Counter(event.kernel for event in seen.events)
    return {"launches": program.launches, "barriers": getattr(program, "barriers", 0), "nbytes": program.nbytes,
            "transfers": calls.pop("transfer", 0), "calls": sorted(calls.values(), reverse=True)}
