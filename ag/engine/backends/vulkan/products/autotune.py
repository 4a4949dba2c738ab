"""Autotuning (AG_TUNE=1): the quickest tiles for a product of matrices, measured when a class of shapes is first met.

The table in `ag.engine.backends.vulkan.products.tiles` holds what others published; this measures on the device itself,
for a second or two per class at most, and `ag.engine.backends.vulkan.products.autotune_cache` keeps the result, so that
a later process measures nothing.  Two kinds of tiles may round differently.  So the choice follows from the cache file
and the class of shapes alone, and a product has the same bits eagerly and captured; without AG_TUNE no file is read.
Knows products only by the sizes in their layout.  The Vulkan backend asks before it plans a launch.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from statistics import median
from time import perf_counter
from typing import Protocol

import numpy as np

from ag.engine.backend import DeviceInfo
from ag.engine.backends.vulkan.kp_types import Properties
from ag.engine.backends.vulkan.limits import lacking
from ag.engine.backends.vulkan.plans import Product, product_of, products_hash
from ag.engine.backends.vulkan.products.autotune_cache import Choices, choices_of
from ag.engine.backends.vulkan.products.tiles import TILES, Rule, Tiles
from ag.engine.backends.vulkan.stream.commands import Command, Recorded
from ag.engine.backends.vulkan.stream.recorder import Recorder
from ag.engine.backends.vulkan.transfers import Transfers
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32, DType
from ag.engine.primitive import Array, Params, Primitive
from ag.engine.shape import Shape
from ag.errors import ArenaError
from ag.log import log

__all__ = ["Tune", "TunedBackend", "choices_for", "class_of", "seconds_of", "warm_up"]

_MOST_SECONDS = 1.5  # for a class; kinds of tiles that have not had their turn by then are not considered
_RUN_SECONDS = 2e-3  # of a run, in which launches follow each other: what a submission costs is little beside it
_RUNS = 3
_WARM_SECONDS = 0.1
_MOST_LAUNCHES = 200
_NUMBERS = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
_FIXED = "fixed"  # the kernels for software devices, which come in tiles of one kind


class TunedBackend(Protocol):
    """What is needed of a Vulkan backend to try kernels on its device."""

    name: str
    info: DeviceInfo
    recorder: Recorder
    transfers: Transfers

    def alloc(self, shape: Shape, dtype: DType) -> Buffer: ...

    def upload(self, array: Array, into: Buffer) -> None: ...

    def download(self, buffer: Buffer) -> Array: ...

    def command(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params,
                tiles: Rule | None = None) -> Command | None: ...


class Tune:
    """The measured choices of one device.

    Parameters
    ----------
    backend : VulkanBackend
    rule : Tiles
        What is used without measurements.
    limits : Properties
        The device's.
    """

    def __init__(self, backend: TunedBackend, rule: Tiles, limits: Properties) -> None:
        self._backend = backend
        self._rule = rule
        self._rules = {_FIXED: rule} if rule.fixed else {}
        self._rules |= {kind: replace(rule, forced=kind, fixed=False) for kind, tile in TILES.items()
                        if not lacking(tile.needs, limits)}
        info = backend.info
        self._classes: dict[str, Tiles] = {}
        self._choices = choices_of(info.description, f"{info.vendor} {info.driver}", products_hash())

    def rule(self, primitive: Primitive, shapes: tuple[Shape, ...], params: Params) -> Tiles:
        """The rule for a launch; measures if its class is new."""
        product = product_of(primitive, shapes, tuple(params.items()), self._rule)
        if product is None or not all(prod(shape) for shape in shapes):
            return self._rule
        name = class_of(product)
        if name not in self._classes:
            with self._choices.lock:
                choice = self._choices.get(name)
                if choice not in self._rules:
                    choice = self._measured(name, primitive, shapes, params, product)
            self._classes[name] = self._rules.get(choice, self._rule)
        return self._classes[name]

    def _measured(self, name: str, primitive: Primitive, shapes: tuple[Shape, ...], params: Params,
                  product: Product) -> str:
        """The quickest rule's name, kept in the file; what the table says if there is no room to measure."""
        begin = perf_counter()
        usual = self._rule.choose(product.rows, product.cols, product.count)
        first = next(kind for kind in self._rules if kind == _FIXED or TILES[kind] in (usual, usual.turned()))
        seconds: dict[str, float] = {}
        try:
            buffers = tuple(self._backend.alloc(shape, F32) for shape in shapes)
            for buffer in buffers:
                self._backend.upload(np.resize(_NUMBERS, buffer.shape), buffer)
            warm_up(self._backend.recorder, self._backend.command(primitive, buffers, params, self._rules[first]))
            for kind in sorted(self._rules, key=lambda kind: kind != first):
                if perf_counter() - begin < _MOST_SECONDS or not seconds:
                    command = self._backend.command(primitive, buffers, params, self._rules[kind])
                    seconds[kind] = seconds_of(self._backend.recorder, command)
        except ArenaError as error:
            log.warning("%s: tiles for %s are not measured, for want of memory (%s).", self._backend.name, name, error)
            return first
        log.info("%s: tiles for %s take %s", self._backend.name, name,
                 ", ".join(f"{kind} {1e6 * s:.0f} us" for kind, s in seconds.items()))
        return self._choices.keep(name, min(seconds, key=seconds.__getitem__), self._rules)


def choices_for(info: DeviceInfo) -> Choices:
    """What was measured on this kind of device, with its driver and our kernels."""
    return choices_of(info.description, f"{info.vendor} {info.driver}", products_hash())


def class_of(product: Product) -> str:
    """Products that share a choice: those of about the same sizes, whose operands are found alike."""
    rows, cols, inner, count = (1 << (n - 1).bit_length() for n in (product.rows, product.cols, product.inner,
                                                                     product.count))
    return f"{rows}x{inner} {inner}x{cols} {product.looks} {count}"


def warm_up(recorder: Recorder, command: Command | None) -> None:
    """Let a card that had nothing to do raise its clock, by which the first of several would be found slow."""
    if command is not None:
        sequence, end = recorder.build([command._replace(kernel="")]), perf_counter() + _WARM_SECONDS
        while perf_counter() < end:
            _timed(recorder, sequence)


def seconds_of(recorder: Recorder, command: Command | None) -> float:
    """How long a launch takes: the median of a few runs; nothing where there is nothing to do."""
    if command is None:
        return 0.0
    unnamed = command._replace(kernel="")  # so that a profile does not list it
    once = _timed(recorder, recorder.build([unnamed]))  # not quite: it warms up, too
    launches = max(1, min(_MOST_LAUNCHES, int(_RUN_SECONDS / once)))
    sequence = recorder.build([unnamed] * launches)
    return median(_timed(recorder, sequence) for _ in range(_RUNS)) / launches


def _timed(recorder: Recorder, sequence: Recorded) -> float:
    recorder.wait()
    begin = perf_counter()
    recorder.play([sequence])
    recorder.wait()
    return perf_counter() - begin
