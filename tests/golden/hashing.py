"""Hashes of arrays, sketches of what they hold, the bits of losses, and the costs of a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np

import ag

Found = dict[str, Any]  # equal after a round trip through JSON
WAVES = 3  # numbers of a sketch, besides the one of the sizes


class Digest(str):
    """A hash in hexadecimal, with a sketch of the hashed arrays for machines that round in another way.

    Attributes
    ----------
    sketch : list of float
        The logarithms of the arrays' root mean squares, and the scaled elements, each summed with fixed weights.
    """

    sketch: list[float]


def hash_of(arrays: Mapping[str, Any]) -> Digest:
    """Hash names, types, shapes and bytes by SHA-256, in the order of the names."""
    digest, sketch = sha256(), np.zeros(1 + WAVES)
    for number, name in enumerate(sorted(arrays)):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
        sketch += _sketched(number, array)
    found = Digest(digest.hexdigest())
    found.sketch = [float(f"{x:.7g}") for x in sketch]
    return found


def _sketched(number: int, array: np.ndarray) -> np.ndarray:
    """Sketch one array; any element that differs by its own size moves some number by about the array's share of it."""
    flat = np.nan_to_num(np.asarray(array, np.float64).ravel())
    size = float(np.sqrt(np.square(flat).sum()))
    if size == 0.0:
        return np.zeros(1 + WAVES)
    places = np.arange(1.0, flat.size + 1)
    waves = [flat @ np.cos(places * (k + 1 + number) + k) / size for k in range(WAVES)]
    return np.array([np.log2(size) * np.cos(number), *waves])


def computed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state without its settings, which no step computes."""
    return {name: x for name, x in state.items() if name.rpartition(".")[2] != "settings"}


def bits(losses: Iterable[Any]) -> list[str]:
    """Write losses as hexadecimal numbers, which lose no bit."""
    return [float(loss).hex() for loss in losses]


def costs(captured: ag.CapturedStep, *args: Any) -> Found:
    """Count what one replay costs, and how often it runs each kernel, the most frequent first."""
    program: Any = captured.program
    transfers: Any = getattr(getattr(program, "_backend", None), "transfers", None)
    if transfers is not None:  # an upload that met the end of a staging chunk would take two transfers: begin another
        transfers._room = transfers._room[0], transfers._chunks[0][1].size
    with ag.profile() as seen:
        captured(*args)
    calls = Counter(event.kernel for event in seen.events)
    return {"launches": program.launches, "barriers": getattr(program, "barriers", 0), "nbytes": program.nbytes,
            "transfers": calls.pop("transfer", 0), "calls": sorted(calls.values(), reverse=True)}
