"""Products on cooperative matrices, a card's matrix units, for ag_matmul_precision "high" and "medium".

A kernel is used only if a test on the device finds it right, as drivers had errors, and faster than the float32 one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np

from ag.engine.backends.shader.autotune import TunedBackend, choices_for, result_of, time_of, uploaded, warm_up
from ag.engine.backends.shader.manifest import Needs, kernel_state, lacking, manifest, required_subgroup
from ag.engine.backends.shader.plans import product_of
from ag.engine.backends.shader.tiles import Rule, Tile, Tiles
from ag.engine.backends.vulkan.kp import Manager, Properties
from ag.engine.buffer import Buffer
from ag.engine.primitive import Array, Params, Primitive
from ag.engine.shape import Shape
from ag.log import log

_BFLOAT16, _FLOAT16, _FLOAT32, _SUBGROUP = 1000141000, 0, 1, 3  # VkComponentTypeKHR, VkScopeKHR
_EXTREMES = 16  # bytes of shared memory for exponents
_SMALLEST = 16  # rows and columns; below, most of a matrix would be padding
_SUFFIX, _IN_FLOAT16 = "_coop", "_coop_f16"
_TERMS = {"high": 3, "medium": 1}  # products per product
_ROUNDING = {"high": 3 * 2.0**-16, "medium": 2.0**-7 + 2.0**-16}  # relative error of a product; less in float16
_SUMMING = 2.0**-22  # of every addition, twice float32's: not all matrix units round to nearest
_TESTED = ((64, 64, 64, 0, 0), (65, 33, 130, 0, 1), (130, 100, 36, 1, 0), (17, 1, 19, 1, 1), (200, 300, 132, 0, 0))
_SPREADS = (0, 40)  # of exponents along the inner axis: one operand's grow, the other's fall
_TIMED, _TURNS = 1024, 2
_USED, _WRONG, _SLOW = "used", "wrong", "slow"

Sizes = tuple[int, int, int]


@dataclass(frozen=True)
class CooperativeTile(Tile):
    """A workgroup's tile, with the part (down, across) of a subgroup, and a matrix's (m, n, k)."""

    shares: int = field(default=1, init=False)
    subgroup: int
    terms: int
    sizes: Sizes

    @property
    def subgroups(self) -> int:
        return self.rows // self.down * (self.cols // self.across)

    @property
    def threads(self) -> int:
        return self.subgroups * self.subgroup

    @property
    def shared_bytes(self) -> int:
        """Return the most shared memory of a workgroup: slices lie either way, and lines have 16 bytes of padding."""
        lines = sum(max(side * (self.depth + 8), self.depth * (side + 8)) for side in (self.rows, self.cols))
        matrices = 4 * self.subgroups * self.sizes[0] * self.sizes[1]
        return 2 * min(self.terms, 2) * lines + matrices + (_EXTREMES if self.terms == 1 else 0)

    @property
    def needs(self) -> Needs:
        return Needs(self.threads, self.shared_bytes, subgroup=self.subgroup)

    @property
    def fits(self) -> bool:
        """Return whether matrices fill the parts and invocations load equal shares."""
        m, n, k = self.sizes
        even = not (self.down % m or self.across % n or self.depth % k or n % 4)
        return even and not (self.rows * self.depth % (4 * self.threads) or self.cols * self.depth % (4 * self.threads))

    def constants(self) -> dict[str, int]:
        return {**super().constants(), "TERMS": self.terms, **dict(zip("MNK", self.sizes, strict=True))}


@dataclass(frozen=True)
class CooperativeTiles(Rule):
    """The rule of one device and precision: the largest tiles that give all units work, else the smallest."""

    tiles: tuple[CooperativeTile, ...]  # largest first
    units: int  # as of `Tiles`
    suffix: str = _SUFFIX

    def choose(self, rows: int, cols: int, count: int) -> CooperativeTile:
        for tile in self.tiles:
            if -(-rows // tile.rows) * -(-cols // tile.cols) * count >= self.units:
                return tile
        return self.tiles[-1]


def sizes_of(matrices: list[tuple[int, ...]], of: int = _BFLOAT16) -> Sizes | None:
    """Return a device's largest (m, n, k) of matrices of a type, usually bfloat16, with float32 sums."""
    types = (of, of, _FLOAT32, _FLOAT32, _SUBGROUP)
    found = [(m, n, k) for m, n, k, *rest in matrices if tuple(rest) == types and m <= 32 and n <= 32 and k <= 32]
    return max(found, key=lambda sizes: (sizes[0] * sizes[1] * sizes[2], sizes), default=None)


def _tiles(precision: str, sizes: Sizes, limits: Properties) -> tuple[CooperativeTile, ...]:
    terms = _TERMS[precision]
    depth = 32 if terms == 1 else max(16, sizes[2])
    tiles = (CooperativeTile(side, side, depth, down, 32, limits["subgroup_size"], terms, sizes)
             for side, down in ((128, 64), (64, 32)))
    return tuple(t for t in tiles if t.fits and not lacking(t.needs, limits))


class Cooperative:
    """Choose and test the kernels of one device; `usual` is its rule for float32 kernels."""

    def __init__(self, backend: TunedBackend, manager: Manager, usual: Tiles) -> None:
        self._backend, self._usual, self._limits = backend, usual, manager.get_device_properties()
        matrices = manager.cooperative_matrices()
        self._sizes = sizes_of(matrices)
        self._sizes_in_float16 = sizes_of(matrices, _FLOAT16) if manager.features()["float16"] else None
        self._rules: dict[tuple[str, str], CooperativeTiles | None] = {}
        self._told: set[str] = set()

    def rule(self, primitive: Primitive, shapes: tuple[Shape, ...], params: Params,
             precision: str) -> CooperativeTiles | None:
        """Return the rule for a launch; None if it runs in float32.  A new kernel is tested first."""
        found = product_of(primitive, shapes, tuple(params.items()), self._usual)
        if found is None or min(found.rows, found.cols) < _SMALLEST:
            return None
        key = primitive.name, precision
        if key not in self._rules:
            self._rules[key], why = self._tested(primitive, precision)
            if why and why not in self._told:
                self._told.add(why)
                log.warning("%s: %s runs in float32 although the precision is %r: %s.", self._backend.name,
                            primitive.name, precision, why)
        return self._rules[key]

    def _tested(self, primitive: Primitive, precision: str) -> tuple[CooperativeTiles | None, str]:
        suffix, sizes, types = _SUFFIX, self._sizes, "bfloat16"
        if precision == "medium" and sizes is None:
            suffix, sizes, types = _IN_FLOAT16, self._sizes_in_float16, "bfloat16 or float16"
        state = kernel_state(primitive.name + suffix)
        if state != "compiled":
            why = f"its kernel was left out of the build with {manifest()['compiler']}"
            return None, "" if state == "none" else why
        tiles = () if sizes is None else _tiles(precision, sizes, self._limits)
        if not tiles:
            return None, (f"{self._backend.info.description} ({self._backend.info.driver}) has no cooperative matrices "
                          f"of {types} that are of use")
        rule = CooperativeTiles(tiles, self._usual.units, suffix)
        name = f"{primitive.name} {precision}"
        if size := required_subgroup(tiles[0].needs, self._limits):
            name += f" in subgroups of {size}"
        if suffix == _IN_FLOAT16:
            name += " in float16"
        verdict = choices_for(self._backend.info).settled(name, (_USED, _WRONG, _SLOW),
                                                          lambda: self._verdict(primitive, precision, rule))
        return (rule, "") if verdict == _USED else (None, f"the kernel on cooperative matrices was {verdict} in a test")

    def _verdict(self, primitive: Primitive, precision: str, rule: CooperativeTiles) -> str:
        batched = "chunk" in primitive.params
        rng = np.random.default_rng(0)
        for (rows, inner, cols, ta, tb), spread in product(_TESTED, _SPREADS):
            batch = (2,) if batched else ()
            scale = 2.0 ** rng.integers(-spread, spread + 1, inner)
            a = rng.standard_normal((*batch, rows, inner)) * scale
            b = rng.standard_normal((*batch, cols, inner)) / scale
            a = np.ascontiguousarray(a.swapaxes(-1, -2) if ta else a, np.float32)
            b = np.ascontiguousarray(b if tb else b.swapaxes(-1, -2), np.float32)
            params = {"ta": bool(ta), "tb": bool(tb), **({"chunk": 64} if batched else {})}
            allowed = _ROUNDING[precision] + (_TERMS[precision] * inner + 1) * _SUMMING
            if not self._is_right(primitive, a, b, params, rule, allowed):
                return _WRONG
        shape = (4, _TIMED // 2, _TIMED // 2) if batched else (_TIMED, _TIMED)
        x = rng.standard_normal(shape, np.float32)
        params = {"ta": False, "tb": False, **({"chunk": _TIMED} if batched else {})}
        buffers = self._buffers(primitive, x, x, params)
        recorder = self._backend.recorder
        commands = [self._backend.command(primitive, buffers, params, tiles) for tiles in (rule, self._usual)]
        warm_up(recorder, commands[1])
        in_turn = [[time_of(recorder, command) for command in commands] for _ in range(_TURNS)]
        seconds = [min(turn[i] for turn in in_turn) for i in range(2)]
        log.info("%s: %s of %d takes %.0f us in %s precision and %.0f us in float32", self._backend.name,
                 primitive.name, _TIMED, 1e6 * seconds[0], precision, 1e6 * seconds[1])
        return _USED if seconds[0] < seconds[1] else _SLOW

    def _is_right(self, primitive: Primitive, a: Array, b: Array, params: Params, rule: CooperativeTiles,
                  allowed: float) -> bool:
        """Return whether the kernel is within `allowed` of the float64 reference, relative to sums of magnitudes."""
        out, *_ = buffers = self._buffers(primitive, a, b, params)
        expected, magnitudes = np.empty(out.shape), np.empty(out.shape)
        primitive.reference(expected, a.astype(float), b.astype(float), **params)
        primitive.reference(magnitudes, abs(a).astype(float), abs(b).astype(float), **params)
        recorder = self._backend.recorder
        command = self._backend.command(primitive, buffers, params, rule)
        if command is not None:
            recorder.record(command)
        return bool(np.all(abs(result_of(self._backend, out) - expected) <= allowed * magnitudes))  # False for NaN

    def _buffers(self, primitive: Primitive, a: Array, b: Array, params: Params) -> tuple[Buffer, ...]:
        shape = primitive.shape(a.shape, b.shape, **params)
        return uploaded(self._backend, np.full(shape, np.nan, np.float32), a, b)
