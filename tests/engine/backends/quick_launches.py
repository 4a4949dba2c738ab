"""Launches in compiled code, on every device: test_launch_cache.py and cpu/test_launch.py try them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from helpers.interrupts import in_threads

import ag
from ag.engine.arena import now
from ag.engine.backend import Backend
from ag.engine.buffer import copy_on_write, fix
from ag.engine.dtype import F32
from ag.engine.primitive import PRIMITIVES

CASES: dict[str, tuple[str, tuple[tuple[int, ...], ...], dict[str, object]]] = {  # primitive, shapes, parameters
    "an operand": ("exp", ((3, 5),), {}),
    "two": ("add", ((3, 5), (3, 5)), {}),
    "broadcast": ("mul", ((3, 5), (3, 1)), {}),
    "no axes": ("add", ((), ()), {}),
    "five": ("normalize", ((6, 4), (6, 1), (6, 1), (6, 1), (6, 1)), {"eps": 1e-5}),
    "a number": ("scale", ((7,),), {"factor": -2.5}),
    "parameters": ("sum", ((3, 5),), {"axis": 0, "chunk": 3, "scale": 0.5}),
    "flags": ("matmul", ((3, 4), (3, 5)), {"ta": True, "tb": False}),
    "a shape": ("expand", ((3, 1),), {"shape": (3, 5), "factor": 2.0}),
}


def check_writes(device: Any) -> None:
    """Writes are right and noted: into new memory, an operand, memory that a program has lent, and a constant."""
    add = PRIMITIVES["add"]
    for _ in range(2):  # as the second launch of a kind is looked up
        x, y, out = device.of(3, 5), device.of(3, 5), device.of(3, 5)
        wanted = device.download(device.launch(add, x, y)).tobytes()
        before = now()
        assert device.launch(add, x, y, into=out) is out and out.changed_since(before) and not x.changed_since(before)
        assert device.download(out).tobytes() == wanted
        assert device.launch(add, x, y, into=y) is y and y.changed_since(before)
        assert device.download(y).tobytes() == wanted
        holder = copy_on_write(x, threading.get_ident())
        kept = device.download(holder)
        device.launch(add, out, out, into=x)
        assert np.array_equal(device.download(holder), kept)
        fix(y)
        with pytest.raises(ag.ArenaError, match="is a constant"):
            device.launch(add, x, x, into=y)


def check_threads(launch: Any, backend: Backend, rounds: int) -> None:
    """Threads that launch at once find their own numbers."""
    add, wrong = PRIMITIVES["add"], list[int]()

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(rounds):
            n = int(rng.integers(1, 50))
            x = backend.alloc((n,), F32)
            backend.upload(np.full(n, number, np.float32), x)
            if not (backend.download(launch(add, launch(add, x, x), x)) == 3 * number).all():
                wrong.append(number)

    in_threads(work, range(1, 6))
    assert not wrong
