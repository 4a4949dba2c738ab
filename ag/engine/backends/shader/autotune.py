"""Autotuning (AG_TUNE=1): choose tiles by measurement; and try each kind of tiles before a card uses it.

A choice follows from the cache file, the product's name and the class of shapes alone: like devices round alike.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import cache
from hashlib import sha256
from math import prod
from threading import RLock
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from ag.engine.backend import Backend, DeviceInfo
from ag.engine.backends.shader.cache_files import CacheError, cache_folder, read_cache, warn_once, write_cache
from ag.engine.backends.shader.manifest import Limits, files_of, in_tiles, lacking, manifest
from ag.engine.backends.shader.plans import Product, product_of
from ag.engine.backends.shader.tiles import FEWEST_THREADS, TILES, Rule, Tiles
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32
from ag.engine.kernels.matmul import matmul
from ag.engine.primitive import Array, Params, Primitive
from ag.engine.shape import Shape
from ag.errors import ArenaError, KernelError
from ag.log import log

_FORMAT = 1  # of the file of choices
_MOST_BYTES = 1 << 22  # of that file
_MOST_SECONDS = 1.5  # for a class; kinds of tiles that have not had their turn by then are not considered
_RUN_SECONDS = 2e-3  # of a run, in which launches follow each other, so that the submission costs little beside them
_RUNS = 3
_WARM_SECONDS = 0.1
_MOST_LAUNCHES = 200
_FIXED = "fixed"  # the kernels for software devices, which come in tiles of one kind
_SKINNY = "V"
_ROWS, _INNER, _COLS = 130, 36, 100  # of a trial: more than a tile of any kind has, and no multiple of one
_RIGHT, _WRONG = "right", "wrong"


Command = Any  # of a backend, and opaque here
Sequence = Any


class Stream(Protocol):
    def record(self, command: Command) -> None: ...
    def build(self, commands: list[Command]) -> Sequence: ...
    def play(self, sequences: list[Sequence]) -> None: ...
    def wait(self) -> None: ...


class TunedBackend(Backend):
    recorder: Stream

    @abstractmethod
    def command(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params,
                tiles: Rule | None = None) -> Command:
        """Return a launch's dispatch, in tiles by the device's rule or the given one; None for an empty grid."""


def uploaded(backend: TunedBackend, *arrays: Array) -> tuple[Buffer, ...]:
    buffers = tuple(backend.alloc(x.shape, F32) for x in arrays)
    for x, buffer in zip(arrays, buffers, strict=True):
        backend.upload(x, buffer)
    return buffers


def result_of(backend: TunedBackend, out: Buffer) -> Array:
    """Read the result of a trial, also while a step is recorded."""
    return np.frombuffer(backend._read_bytes(out.address, out.nbytes), np.float32).reshape(out.shape)


class Choices:
    """Choices by name for one kind of device, in a JSON file that later processes read."""

    def __init__(self, name: str, device: str, driver: str, kernels: str) -> None:
        self.lock = RLock()  # held from `get` to `keep`, so that two like devices do not measure the same
        self._name = name
        # The choices hold for this product, its driver's version and this hash of the kernels.
        self._holds_for = {"format": _FORMAT, "device": device, "driver": driver, "kernels": kernels}
        self._choices = self._read()

    def get(self, name: str) -> str | None:
        return self._choices.get(name)

    def keep(self, name: str, choice: str, possible: Collection[str]) -> str:
        """Add a choice and write the file; return the valid one, which another process may have written first."""
        self._choices |= self._read()
        if self._choices.get(name) not in possible:
            self._choices[name] = choice
        content = json.dumps({**self._holds_for, "choices": self._choices}, indent=1, sort_keys=True) + "\n"
        try:
            write_cache(self._name, content.encode())
        except CacheError as error:
            warn_once(error)
        return self._choices[name]

    def settled(self, name: str, possible: Collection[str], decide: Callable[[], str]) -> str:
        with self.lock:
            known = self.get(name)
            return known if known in possible and known is not None else self.keep(name, decide(), possible)

    def _read(self) -> dict[str, str]:
        try:
            content = read_cache(self._name, _MOST_BYTES)
            return {} if content is None else self._parsed(content)
        except CacheError as error:
            warn_once(error)
            return {}

    def _parsed(self, content: bytes) -> dict[str, str]:
        path = cache_folder() / self._name
        try:
            read = json.loads(content.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise CacheError(f"{path} cannot be read ({error}); its choices are measured again") from error
        if not isinstance(read, dict) or not isinstance(choices := read.pop("choices", None), dict):
            raise CacheError(f"{path} is no file of choices; its choices are measured again")
        if changed := [name for name, value in self._holds_for.items() if read.get(name) != value]:
            raise CacheError(f"{path} was made for another {changed[0]}; its choices are measured again")
        if not all(isinstance(choice, str) for choice in choices.values()):
            raise CacheError(f"{path} holds a choice that is no word; its choices are measured again")
        return choices


@cache
def choices_of(device: str, driver: str, kernels: str) -> Choices:
    """Return the choices for a kind of device: one object for all like devices of the process."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", device).strip("-")
    return Choices(f"{name or 'device'}.json", device, driver, kernels)


def choices_for(info: DeviceInfo) -> Choices:
    """Return the choices for a device with the kernels that make products in tiles."""
    names = sorted(name for name, entry in manifest()["kernels"].items() if in_tiles(entry))
    content = [repr(TILES).encode(), *(file.read_bytes() for name in names for file in files_of(name))]
    return choices_of(info.description, f"{info.vendor} {info.driver}", sha256(b"".join(content)).hexdigest())


class Tune:
    """Choose the quickest tiles for products of one device; measure when a class of shapes is first met."""

    def __init__(self, backend: TunedBackend, rule: Tiles, limits: Limits) -> None:
        self._backend = backend
        self._rule = rule  # without measurements
        self._rules = {_FIXED: rule} if rule.fixed else {}
        self._rules |= {kind: replace(rule, forced=kind, fixed=False) for kind, tile in TILES.items()
                        if not lacking(tile.needs, limits)}
        self._classes: dict[str, Tiles] = {}
        self._choices = choices_for(backend.info)

    def rule(self, primitive: Primitive, shapes: tuple[Shape, ...], params: Params) -> Tiles:
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
        """Return the quickest rule's name and keep it in the file; the table's if there is no memory to measure."""
        begin = perf_counter()
        usual = self._rule.choose(product.rows, product.cols, product.count)
        first = next(kind for kind in self._rules if kind == _FIXED or TILES[kind] in (usual, usual.turned()))
        seconds: dict[str, float] = {}
        try:
            numbers = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
            buffers = uploaded(self._backend, *(np.resize(numbers, shape) for shape in shapes))
            warm_up(self._backend.recorder, self._backend.command(primitive, buffers, params, self._rules[first]))
            for kind in sorted(self._rules, key=lambda kind: kind != first):
                if perf_counter() - begin < _MOST_SECONDS or not seconds:
                    command = self._backend.command(primitive, buffers, params, self._rules[kind])
                    seconds[kind] = time_of(self._backend.recorder, command)
        except ArenaError as error:
            log.warning("%s: tiles for %s are not measured, for want of memory (%s).", self._backend.name, name, error)
            return first
        log.info("%s: tiles for %s take %s", self._backend.name, name,
                 ", ".join(f"{kind} {1e6 * s:.0f} us" for kind, s in seconds.items()))
        return self._choices.keep(name, min(seconds, key=seconds.__getitem__), self._rules)


def class_of(product: Product) -> str:
    """Name a class of products that share a choice: their sizes up to powers of two, and how operands lie."""
    rows, cols, inner, count = (1 << (n - 1).bit_length() for n in (product.rows, product.cols, product.inner,
                                                                     product.count))
    return f"{rows}x{inner} {inner}x{cols} {product.looks} {count}"


def warm_up(recorder: Stream, command: Command) -> None:
    """Run a launch until an idle card has raised its clock; else the first of several would seem slow."""
    if command is not None:
        sequence, end = recorder.build([command._replace(kernel="")]), perf_counter() + _WARM_SECONDS
        while perf_counter() < end:
            _timed(recorder, sequence)


def time_of(recorder: Stream, command: Command) -> float:
    """Return the median time of a launch in a few runs; 0 if it does nothing."""
    if command is None:
        return 0.0
    unnamed = command._replace(kernel="")  # so that a profile does not list it
    once = _timed(recorder, recorder.build([unnamed]))  # includes the warm-up
    launches = max(1, min(_MOST_LAUNCHES, int(_RUN_SECONDS / once)))
    sequence = recorder.build([unnamed] * launches)
    return sorted(_timed(recorder, sequence) for _ in range(_RUNS))[_RUNS // 2] / launches


def _timed(recorder: Stream, sequence: Sequence) -> float:
    recorder.wait()
    begin = perf_counter()
    recorder.play([sequence])
    recorder.wait()
    return perf_counter() - begin


def tried(backend: TunedBackend, usual: Tiles) -> Tiles:
    """Return the rule without the kinds of tiles whose products are wrong, as MoltenVK's before 1.3 silently were."""
    if backend.info.kind == "cpu":  # software drivers run our tests
        return usual
    wrong = [kind for kind, rule in _kinds(usual) if _verdict(backend, kind, rule) == _WRONG]
    if not wrong:
        return usual
    where = f"{backend.info.name} ({backend.info.description}, driver {backend.info.driver})"
    log.warning("%s: a product in tiles of kind %s came out wrong in a trial, so they are not used; a newer driver may "
                "mend that.", where, ", ".join(wrong))
    rates = tuple((kind, rate) for kind, rate in usual.rates if kind not in wrong)
    if usual.forced in wrong:
        raise KernelError(f"matmul: a product in tiles of kind {usual.forced}, which AG_MATMUL_TILE names, comes out "
                          f"wrong on {where}; unset it, or use another driver.")
    if usual.fixed or not rates:
        if usual.fixed or _verdict(backend, _FIXED, replace(usual, fixed=True)) == _WRONG:
            raise KernelError(f"matmul: products come out wrong in all kinds of tiles on {where}; install "
                              f"a newer driver, or use the device 'cpu'.")
        return replace(usual, fixed=True, threads=FEWEST_THREADS)
    return replace(usual, rates=rates, skinny=usual.skinny and _SKINNY not in wrong, threads=FEWEST_THREADS)


def wrong_now(backend: TunedBackend, rule: Tiles) -> list[str]:
    """List the kinds of tiles of a rule whose products are wrong at this moment, whatever was kept."""
    return [kind for kind, only in _kinds(rule) if not _is_right(backend, only)]


def _kinds(usual: Tiles) -> Iterator[tuple[str, Tiles]]:
    """Yield each kind that a rule may choose, with a rule that chooses it alone."""
    if usual.fixed:
        yield _FIXED, usual
        return
    names = [usual.forced] if usual.forced else [kind for kind, _ in usual.rates] + [_SKINNY] * usual.skinny
    for kind in names:
        yield kind, replace(usual, forced=kind)


def _verdict(backend: TunedBackend, kind: str, rule: Tiles) -> str:
    """Return the kept verdict on a kind of tiles; try it once per driver."""
    return choices_for(backend.info).settled(f"trial {kind}", (_RIGHT, _WRONG),
                                             lambda: _RIGHT if _is_right(backend, rule) else _WRONG)


def _is_right(backend: TunedBackend, rule: Tiles) -> bool:
    rng = np.random.default_rng(0)  # for small whole numbers, whose sums are exact in any order
    a, b = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((_ROWS, _INNER), (_INNER, _COLS)))
    buffers = uploaded(backend, np.full((_ROWS, _COLS), np.nan, np.float32), a, b)
    command = backend.command(matmul, buffers, {"ta": False, "tb": False}, rule)
    assert command is not None  # as there are elements
    backend.recorder.record(command._replace(kernel=""))  # so that a profile does not list it
    return bool(np.array_equal(result_of(backend, buffers[0]), a @ b))
