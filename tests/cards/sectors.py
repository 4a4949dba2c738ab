"""Count the memory that kernels touch, in sectors of 32 bytes per 32 invocations side by side, as a card fetches them.

Launches are so large that edges do not count, and `interpreter.py` runs some workgroups.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from cards.interpreter import Array, Workgroup, parsed

from ag.engine.backends.shader import plans
from ag.engine.backends.shader.manifest import spirv_of
from ag.engine.backends.shader.tiles import TILES, Rate, Tiles
from ag.engine.backends.vulkan.spirv import with_functions
from ag.engine.kernels.optimizer import places_of
from ag.engine.primitive import PRIMITIVES
from ag.engine.shape import Window

SECTOR, LANES = 32, 32
UNITS = 132  # of the card whose choices count: how many elements an invocation takes
SHARED, ROOM = 48 << 10, 164 << 10  # and how many bytes of shared memory a workgroup may have, and a unit has


class Count(NamedTuple):
    touched: int
    fewest: int


class Launch(NamedTuple):
    """A primitive on operands, its outputs first, with its parameters, in tiles of a kind if it has any."""

    primitive: str
    operands: list[Array]
    params: dict[str, Any]
    tile: str = "L2"


def planned(launch: Launch) -> plans.Plan:
    rule = Tiles(UNITS, ((launch.tile, Rate(1.0)),), launch.tile, shared=SHARED, room=ROOM, threads=1024,
                 kept=32)
    return plans.planned(PRIMITIVES[launch.primitive], tuple(x.shape for x in launch.operands),
                           tuple(launch.params.items()), rule, True)


def run(launch: Launch, most: int | None = None, order: Callable[[int], Iterable[int]] = range
        ) -> tuple[list[Array], Workgroup]:
    """The operands afterwards and what was touched, by all workgroups in an order, or by the `most` in the middle."""
    plan = planned(launch)
    entry = plans.manifest()["kernels"][plan.kernel]
    names = [constant["name"] for constant in entry["spec"]]
    size = plan.spec[names.index("THREADS")] if "THREADS" in names else prod(entry["local_size"])
    buffers = [np.ascontiguousarray(x).view(np.uint32).reshape(-1).copy() for x in launch.operands]
    spirv = spirv_of(plan.file)
    if plan.functions:
        spirv = inlined(with_functions(spirv, plan.functions))
    group = Workgroup(parsed(spirv, plan.spec), size,
                      plan.push([0] * len(buffers)), buffers)
    x, y, z = plan.grid
    count = x * y * z
    first, end = (0, count) if most is None else (max(0, (count - most) // 2), min(count, (count + most) // 2))
    for i in order(count) if most is None else range(first, end):
        group.run((i % x, i // x % y, i // x // y), plan.grid)
    return [words.view(x.dtype).reshape(x.shape) for words, x in zip(buffers, launch.operands, strict=True)], group


def inlined(spirv: bytes) -> bytes:
    """Put functions in the place of calls, as drivers do."""
    with TemporaryDirectory() as folder:
        made = Path(folder, "kernel.spv")
        made.write_bytes(spirv)
        passes = "--inline-entry-points-exhaustive", "--eliminate-dead-functions"
        subprocess.run(["spirv-opt", *passes, made, "-o", made], check=True)
        return made.read_bytes()


def counted(group: Workgroup) -> dict[int, Count]:
    """By the number of the operand, the sectors of all accesses."""
    found: dict[int, Count] = {}
    for access in group.accesses:
        at, lanes = np.broadcast_to(access.at, access.lanes.shape), access.lanes
        touched = fewest = 0
        for start in range(0, len(lanes), LANES):
            here = at[start : start + LANES][lanes[start : start + LANES]]
            if here.size:
                words = np.unique(here[:, None] + np.arange(0, access.nbytes, 4))
                touched += len(np.unique(words // SECTOR))
                fewest += -(-4 * len(words) // SECTOR)
        before = found.get(access.binding, Count(0, 0))
        found[access.binding] = Count(before.touched + touched, before.fewest + fewest)
    return found


def ratio(launch: Launch, most: int = 2) -> float:
    """Return the sectors that a launch touches, relative to the fewest, over all operands."""
    counts = counted(run(launch, most)[1]).values()
    return sum(c.touched for c in counts) / sum(c.fewest for c in counts)


_RNG = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


def key() -> Array:
    return np.arange(4, dtype=np.uint32)


def product(ta: bool, tb: bool, tile: str = "L2", batched: bool = False) -> Launch:
    a, b = (32, 256) if ta else (256, 32), (256, 32) if tb else (32, 256)
    if batched:
        return Launch("batched_matmul", [normal(1, 4, 256, 256), normal(4, *a), normal(4, *b)],
                      {"ta": ta, "tb": tb, "chunk": 32}, tile)
    return Launch("matmul", [normal(256, 256), normal(*a), normal(*b)], {"ta": ta, "tb": tb}, tile)


def attention(samples: int, first: bool, gradient: bool) -> Launch:
    """Attention with two heads of 32 features, or its gradient; samples first, as if they were heads, or last."""
    heads, batch = (2 * samples, 1) if first else (2, samples)
    wide, rows = [normal(32 * heads, 128, batch) for _ in range(7)], [normal(heads, 128, batch) for _ in range(2)]
    params = {"heads": heads, "causal": False, "factor": 0.2, "rate": 0.0}
    if gradient:
        return Launch("attention_grad", [*wide, *rows, key()], params)
    return Launch("attention", [wide[0], rows[0], *wide[1:4], key()], params)


def convolution(which: str, window: Window, channels: int = 32, features: int = 32, tile: str = "L2") -> Launch:
    """A convolution of 16 images, or one of its gradients; element by element where these have few planes."""
    x, w = normal(channels, 16, 16, 16), normal(features, channels, *window.kernel)
    g = normal(features, 16, 16, 16)
    if which == "conv2d":
        return Launch(which, [g, x, w], {"window": window, "groups": 1}, tile)
    if which == "conv2d_input_grad":
        return Launch(which, [x, w, g], {"window": window, "groups": 1, "image": (16, 16)}, tile)
    pieces = np.zeros((16, *w.shape), np.float32)
    return Launch(which, [pieces, x, g], {"window": window, "groups": 1, "chunk": 256}, tile)


def ids(count: int, most: int) -> Array:
    """Numbers of words, or of classes; the same each time, as it depends on them what is touched."""
    return np.random.default_rng(1).integers(0, most, count).astype(np.int32)


def cross_entropy(by_ids: bool) -> Launch:
    """The loss of 512 columns of 64 classes, and its gradient."""
    columns = [normal(1, 512), normal(64, 512), normal(64, 512)]
    if by_ids:
        return Launch("softmax_cross_entropy_ids", [*columns, ids(512, 64)], {"factor": 1.0})
    return Launch("softmax_cross_entropy", [*columns, normal(64, 512) ** 2], {"factor": 1.0})


def adam() -> Launch:
    n, one = 1 << 21, np.ones(1, np.float32)
    settings = np.array([1e-3, 0.1, 0.001, 1e-8, 0.0, 0.9, 0.999], np.float32)
    state = np.zeros(1 + 6, np.float32)
    return Launch("adam_update", [normal(n), normal(n), normal(n) ** 2, state, settings, places_of([n]), normal(n),
                                  one, 0 * one, normal(n)], {"start": 0, "first": 0, "count": 1, "last": True})


def sgd() -> Launch:
    n, one = 1 << 21, np.ones(1, np.float32)
    settings = np.array([1e-3, 0.9, 0.0, 0.0], np.float32)
    return Launch("sgd_update", [normal(n), normal(n), np.zeros(2, np.float32), settings, normal(n), one, 0 * one,
                                 normal(n)],
                  {"last": True})


WINDOWS = {(3, 3): Window((3, 3), (1, 1), (1, 1)), (1, 1): Window((1, 1))}
FEW = {"conv2d": "features", "conv2d_input_grad": "channels"}  # what the result has few of, where it is made directly
LAUNCHES: dict[str, Callable[[], Launch]] = {
    **{f"matmul {'nt'[ta]}{'nt'[tb]}": lambda ta=ta, tb=tb: product(bool(ta), bool(tb))
       for ta in (0, 1) for tb in (0, 1)},
    **{f"matmul in {tile}": lambda tile=tile: product(False, False, tile) for tile in TILES if tile != "L2"},
    **{f"{name}, 16 samples {'first' if first else 'last'}":
       lambda name=name, first=first: attention(16, first, name != "attention")
       for name in ("attention", "attention_grad") for first in (True, False)},
    "permute, to 16 samples first": lambda: Launch(
        "permute", [normal(16, 64, 128), normal(64, 128, 16)], {"axes": (2, 0, 1)}, "S"),
    **{f"batched_matmul {'nt'[ta]}{'nt'[tb]}": lambda ta=ta, tb=tb: product(bool(ta), bool(tb), batched=True)
       for ta in (0, 1) for tb in (0, 1)},
    **{f"{which} {size[0]} x {size[1]}": lambda which=which, size=size: convolution(which, WINDOWS[size])
       for size in ((3, 3), (1, 1)) for which in ("conv2d", "conv2d_input_grad", "conv2d_weight_grad")},
    **{f"{which}_direct {size[0]} x {size[1]}":
       lambda which=which, size=size: convolution(which, WINDOWS[size], **{FEW[which]: 2})
       for size in ((3, 3), (1, 1)) for which in FEW},
    "layer_norm": lambda: Launch("layer_norm", [normal(256, 512), normal(1, 512), normal(1, 512), normal(256, 512),
                                                normal(256, 1), normal(256, 1)], {"eps": 1e-5}),
    "layer_norm_grad": lambda: Launch("layer_norm_grad", [
        *(normal(256, 512) for _ in range(3)), normal(256, 1), normal(1, 512), normal(1, 512) ** 2], {"eps": 1e-5}),
    "norm_sums": lambda: Launch("norm_sums", [
        *(normal(16, 1) for _ in range(2)), normal(16, 4096), normal(16, 4096), normal(16, 1), normal(16, 1) ** 2],
        {"eps": 1e-5, "chunk": 4096}),
    "rms_norm": lambda: Launch("rms_norm", [normal(256, 512), normal(1, 512), normal(256, 512), normal(256, 1)],
                               {"eps": 1e-6}),
    "rms_norm_grad": lambda: Launch("rms_norm_grad", [
        *(normal(256, 512) for _ in range(3)), normal(256, 1), normal(1, 512) ** 2], {"eps": 1e-6}),
    "rms_norm_sums": lambda: Launch("rms_norm_sums", [
        normal(16, 1), normal(16, 4096), normal(16, 4096), normal(1, 4096) ** 2], {"eps": 1e-6, "chunk": 4096}),
    "normalize": lambda: Launch("normalize", [
        normal(16, 4096), normal(16, 4096), *(normal(16, 1) for _ in range(3)), normal(16, 1) ** 2], {"eps": 1e-5}),
    "batch_norm_grad": lambda: Launch("batch_norm_grad", [
        *(normal(16, 4096) for _ in range(3)), normal(16, 1), normal(16, 1), normal(16, 1) ** 2, normal(16, 1),
        normal(16, 1)], {"eps": 1e-5}),
    "softmax": lambda: Launch("softmax", [normal(1, 256, 512), normal(1, 256, 512)], {"axis": 1}),
    "sum": lambda: Launch("sum", [normal(1, 1, 512), normal(1, 256, 512)], {"axis": 1, "chunk": 256, "scale": 1.0}),
    "softmax_cross_entropy": lambda: cross_entropy(False),
    "softmax_cross_entropy_ids": lambda: cross_entropy(True),
    "take": lambda: Launch("take", [normal(64, 512, 1), normal(64, 4096, 1), ids(512, 4096)], {"wraps": False}),
    "scatter_add": lambda: Launch("scatter_add", [normal(64, 1024, 1), normal(64, 512, 1), ids(512, 1024)],
                                  {"length": 1024, "first": 0, "last": 512, "wraps": False}),
    "adam_update": adam,
    "sgd_update": sgd,
}
