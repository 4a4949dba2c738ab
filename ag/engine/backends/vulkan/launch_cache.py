"""Repeat launches in compiled code: `ag/native/launch.c` follows the recipes noted here.

Eager launches of equal shapes and parameters differ only in their operands' addresses: a few push constants, and the
ranges read and written.  The first one goes through Python and leaves a recipe.  C takes 4 us for a launch, Python 10.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from ag.engine.arena import OFFSET_BITS, Block
from ag.engine.backend import Backend
from ag.engine.backends.vulkan.pipelines import Kernels
from ag.engine.backends.vulkan.plans import Plan, manifest
from ag.engine.backends.vulkan.stream.commands import Command
from ag.engine.backends.vulkan.stream.recorder import Recorder
from ag.engine.buffer import Buffer, note_written
from ag.engine.dtype import F32
from ag.engine.interpreter import recording_here
from ag.engine.primitive import PRIMITIVES, Params, Primitive
from ag.native import code as _code

_KEPT = 4096  # kinds of launches of one primitive
_ALIGNED, _ELSEWHERE = 0, 4  # addresses that stand for all multiples of 16 bytes, and for all others

Ready = tuple[None, int, tuple[int, ...], object, tuple[object, object]]


class LaunchCache:
    def __init__(self, kernels: Kernels, recorder: Recorder, lock: AbstractContextManager[bool]) -> None:
        self._kernels, self._tiles, self._recorder, self._lock = kernels, kernels.tiles, recorder, lock
        made = manifest()["kernels"]
        known = {name: PRIMITIVES[name] for name in made if name in PRIMITIVES}
        self._reals = {name: {c["name"] for c in made[name]["push"] if c["type"] == "float"} for name in known}
        self._table: dict[str, tuple[dict[object, Ready | None], tuple[str, ...]]] = {
            name: ({}, p.params) for name, p in known.items()
            if p.outputs == 1 and not p.updates and "chain" not in p.params and "bfloat" not in p.params}

    def launch(self, backend: Backend, slowly: Callable[..., object]) -> object:
        """Return a compiled launch that falls back to `slowly`; without the extension, `slowly` itself."""
        if _code is None:
            return slowly
        same = (backend.settings, "precision", "highest"), (self._kernels, "tiles", self._tiles)
        return _code.Launch(backend, self._table, backend.settings, slowly, note_written, Buffer, Block,
                            OFFSET_BITS, 0, self._record, Command, same)

    def _record(self, command: Command) -> None:
        with self._lock:
            self._recorder.record(command)

    def learn(self, primitive: Primitive, operands: tuple[Buffer, ...], params: Params, out: object) -> None:
        """Note the recipe of a launch, for the next of its kind."""
        entry = self._table.get(primitive.name)
        if entry is None or not isinstance(out, Buffer) or recording_here() is not None or (
                self._kernels.tiles != self._tiles):
            return
        ready, names = entry
        key = (*[x for b in operands for x in (b.shape, b.dtype)], *[params[name] for name in names if name in params])
        if key in ready:
            return
        if len(ready) >= _KEPT:
            ready.clear()
        zero = any(params.get(name) == 0 for name in self._reals[primitive.name])  # 0.0 and -0.0 are equal keys
        plain = all(b.dtype is F32 or not b.dtype.is_float for b in operands) and out.dtype is operands[0].dtype
        ready[key] = None
        if plain and not zero and len(params) == len(names) and out.shape == primitive.shape(
                *[b.shape for b in operands], **params):
            shapes = (out.shape, *[b.shape for b in operands])
            rows = (self._recipe(self._kernels.plan(primitive, shapes, params, (_ALIGNED,))),
                    self._recipe(self._kernels.plan(primitive, shapes, params, (_ELSEWHERE,))))
            ready[key] = None, out.nbytes, out.shape, out.dtype, rows

    def _recipe(self, plan: Plan) -> object:
        """Return the parts of a command that stay; None if compiled code cannot make it."""
        around = plan.around
        if around is None or not plan.grid[0] or not plan.sizes:
            return None
        before, _, after = around
        return (plan.kernel, self._kernels.bound(plan), before, after, plan.grid, plan.sizes, bytes(plan.writes),
                plan.seconds, not self._kernels.makes_parts, (0, 0))
