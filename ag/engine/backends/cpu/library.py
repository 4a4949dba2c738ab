"""Load the CPU's kernels in C, and plan launches as words that the library runs, eagerly and in a program:

    address of the kernel, number of words, whether to share it, pointers of the operands, numbers by name
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from math import copysign, prod
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, cast

from ag.engine.cpu_threads import available, callers, share_by
from ag.engine.dtype import BF16, BOOL, F16, F32, F64, I32, U32, DType
from ag.engine.kernels.elementwise import Chain
from ag.engine.primitive import Params, Primitive
from ag.engine.shape import Shape
from ag.errors import KernelError, ShapeError
from ag.version import DISTRIBUTION

LEVELS = {"plain": "", "v3": ".v3", "v4": ".v4"}  # of `AG_CPU`: the ending of their library
_BUILT, _ROOT = Path(__file__).parent / "built", Path(__file__).parents[4]
_BUILD = ("with a C compiler, run `python tools/cpu_kernels.py`" if (_ROOT / "tools" / "cpu_kernels.py").is_file() else
          f"install again: `pip install --force-reinstall --no-cache-dir {DISTRIBUTION}`")
# No file, or a library of another kind of processor; no JSON; not what a manifest says; a library without a kernel.
_DAMAGE = OSError, ValueError, LookupError, TypeError, AttributeError
_NOTED = "kernels: "  # how lines about them begin in the note that a build leaves
_TYPES: dict[str, tuple[DType, ...]] = {"float": (F32, BOOL), "number": (F32, BOOL, BF16, F16), "double": (F64,),
                                        "int32_t": (I32,), "uint32_t": (U32,), "word": (F32, I32, U32, BOOL),
                                        "void": (F32, I32, U32, BOOL)}
_WORD = {"int64_t": "q", "double": "d"}
# Elements; below, waking threads takes longer than they help, and so does giving Python's lock away.
SHARED_FROM = 1 << 14
PLANS_KEPT = 4096  # per kernel


class Number(NamedTuple):
    """A number, or a row of them, that a kernel is given by name."""

    name: str
    kind: str
    length: int


class Plan(NamedTuple):
    """A launch at certain shapes and parameters: everything but the addresses."""

    pack: Callable[..., bytes]  # the words up to the pointers, given these
    tail: bytes  # the words behind them
    work: int  # elements that are read, written or multiplied, about


class Ready(NamedTuple):
    """A launch whose result is made afresh, at certain shapes and parameters of what it is made of."""

    nbytes: int
    shape: Shape
    dtype: DType  # of the result, and how many bytes these take
    row: bytes  # the launch as words, with zeros for pointers


@dataclass(frozen=True)
class Kernel:
    address: int
    operands: tuple[str, ...]  # their names
    types: tuple[tuple[DType, ...], ...]  # what each operand may hold
    writes: tuple[bool, ...]  # which operands it writes
    numbers: tuple[Number, ...]
    # names and numbers whose product says how much there is to do; empty: the elements of the largest operand
    work: tuple[str, ...]
    reals: tuple[str, ...]  # numbers whose zeros differ by their signs, which a key of a dictionary would not tell
    functions: frozenset[str]  # what a chain may be made of
    plans: dict[object, Plan | None]  # those that were made, by shapes, types and parameters
    # likewise, by those of what launches compute with, for `ag.engine.backends.cpu.native`; None: no plan
    ready: dict[object, Ready | None]

    def plan(self, kinds: list[object], primitive: Primitive, params: Params) -> Plan | None:
        """Plan a launch, given shape and type of each operand; None if the kernel does not take one of them."""
        key = tuple(kinds) if not params else (*kinds, *self.key_of(primitive, params))
        found = self.plans.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            if len(self.plans) >= PLANS_KEPT:
                self.plans.clear()
            shapes, dtypes = cast("tuple[Shape, ...]", tuple(kinds[::2])), cast("tuple[DType, ...]", tuple(kinds[1::2]))
            found = self.plans[key] = self._planned(primitive, shapes, dtypes, params)
        return found

    def key_of(self, primitive: Primitive, params: Params) -> list[object]:
        key = [*map(params.__getitem__, primitive.params)]
        if self.reals and 0.0 in key:
            key += [copysign(1.0, params[x]) for x in self.reals if x in params and params[x] == 0.0]
        if "chain" in params:  # whose numbers may be zeros, too
            key.append(repr(params["chain"]))
        return key

    def _planned(self, primitive: Primitive, shapes: tuple[Shape, ...], dtypes: tuple[DType, ...],
                 params: Params) -> Plan | None:
        written = tuple([i < primitive.outputs or i in primitive.updates for i in range(len(shapes))])
        if (self.operands, self.writes) != (primitive.operands, written):
            raise KernelError(f"cpu: kernel {primitive.name} takes {self.operands} and writes {self.writes} of them, "
                              f"its primitive {primitive.operands} and {written}; they must be equal.")
        if any(dtype not in types for dtype, types in zip(dtypes, self.types, strict=True)):
            return None
        if any(function not in self.functions for function, *_ in cast(Chain, params.get("chain", ()))):
            return None
        moved = {dtype if BF16 in self.types[0] else dtype.wide
                 for dtype, types in zip(dtypes, self.types, strict=True) if I32 in types and F32 in types}
        if len(moved) > 1:
            return None  # it moves words, and converts 16 bits at most
        try:
            values: Params = {**params, **primitive.layout(*shapes, **params)}
        except ShapeError:  # more axes than layouts have; numpy takes any
            return None
        values["types"] = sum(dtype.code << 2 * i for i, dtype in enumerate(dtypes))
        words: list[object] = []
        for name, _, length in self.numbers:
            words += cast(Sequence[object], values[name])[:length] if length > 1 else [values[name]]
        form = "".join(_WORD[kind] * length for _, kind, length in self.numbers)
        work = prod(int(name) if name.isdigit() else cast(int, values[name]) for name in self.work) if self.work else (
            max(map(prod, shapes)))
        size = 3 + len(shapes) + len(words)
        return Plan(partial(Struct(f"=3q{len(shapes)}Q").pack, self.address, size, work >= SHARED_FROM),
                    Struct(f"={form}").pack(*words), work)


_UNKNOWN = Plan(bytes, b"", 0)


class Library:
    def __init__(self, folder: Path, manifest: dict[str, Any], wanted: str | None = None) -> None:
        plain = ctypes.CDLL(_whole(folder / "kernels.so"))
        plain.ag_level.restype = ctypes.c_int64
        # why they are not those for processors such as this one; empty if they are
        left_out, self.lacks = manifest.get("left_out", {}), ""
        if wanted is not None:
            if wanted and (plain.ag_level() < int(wanted[2:]) or wanted not in manifest["levels"]):
                raise KernelError(f"AG_CPU is {wanted[1:]!r}; this processor or the build has no such kernels. Unset "
                                  f"it to use the best that there are.")
            self._open(folder, wanted, manifest)
            return
        for level in [*(f".v{n}" for n in range(plain.ag_level(), 2, -1)), ""]:  # best first
            if level in left_out:
                self.lacks = self.lacks or f"kernels{level}.so was left out ({left_out[level]})"
            elif level in manifest["levels"]:
                try:
                    self._open(folder, level, manifest)
                    return
                except (OSError, AttributeError) as error:
                    if not level:
                        raise
                    self.lacks = self.lacks or f"kernels{level}.so cannot be loaded ({error})"
        raise ValueError(f"the manifest has the levels {list(manifest['levels'])}; '' must be one of them.")

    def _open(self, folder: Path, level: str, manifest: dict[str, Any]) -> None:
        path = _whole(folder / f"kernels{level}.so")
        free, held = ctypes.CDLL(path), ctypes.PyDLL(path)  # without Python's lock, and with it
        # makes the launch of a row of words, in the calling thread
        self._run, self._run_briefly, self.launch_briefly = free.ag_run_beside, held.ag_run, held.ag_launch
        for run, numbers in ((self._run, 3), (self._run_briefly, 2)):
            run.argtypes = [ctypes.c_char_p, *[ctypes.c_int64] * numbers]
            run.restype = None
        self.launch_briefly.argtypes, self.launch_briefly.restype = [ctypes.c_char_p], None
        # `launch_at` and `run_at`: addresses of what makes a launch, and what makes all of a program, in this process;
        # 0 if they are elsewhere
        self.launch_at, self.run_at = _address(held.ag_launch), _address(held.ag_run)
        self.pool_at = _address(free.ag_run_beside)  # address of what makes a program with several threads
        functions = frozenset(manifest["functions"])
        self.kernels = {name: _kernel(free, name, entry, functions) for name, entry in manifest["kernels"].items()}
        self.level = level  # for which processors they are; empty: for all

    @cached_property
    def halves(self) -> dict[str, tuple[bool, ...]]:
        """Return for kernels which of their operands may have 16 bits."""
        found = {name: tuple([BF16 in types for types in kernel.types]) for name, kernel in self.kernels.items()}
        return {name: which for name, which in found.items() if any(which)}

    def run(self, words: bytes, launches: int, work: int) -> None:
        """Make launches, one after the other; those of much work by as many threads as the calling one may have."""
        if work < SHARED_FROM:
            self._run_briefly(words, launches, 1)
        else:
            self._run(words, launches, available(), callers())


def _whole(path: Path) -> str:
    """The path of a library; one whose end is missing would end the process when it is opened."""
    with path.open("rb") as file:
        head = file.read(64)
    if len(head) == 64 and head[:5] == b"\x7fELF\x02":  # of 64 bits, as all are for which there are wheels
        begins, *_, size, count = Struct("=40xQI5H").unpack_from(head)  # the table of sections, which is the end
        if path.stat().st_size < begins + size * count:
            raise OSError(f"{path}: its end is missing")
    return str(path)


def _address(function: object) -> int:
    return cast(int, ctypes.cast(cast(Any, function), ctypes.c_void_p).value)


def _kernel(library: ctypes.CDLL, name: str, entry: dict[str, list[dict[str, str]]],
            functions: frozenset[str]) -> Kernel:
    operands, numbers = entry["operands"], entry["numbers"]
    moved = (BF16, F16) if any(n["name"] == "types" for n in numbers) else ()
    return Kernel(
        _address(getattr(library, f"ag_{name}")), tuple(o["name"] for o in operands),
        tuple(_TYPES[o["type"]] + moved * (o["type"] == "void") for o in operands),
        tuple(bool(o["writes"]) for o in operands),
        tuple(Number(n["name"], n["type"], int(n["count"])) for n in numbers),
        tuple(map(str, entry["work"])), tuple(n["name"] for n in numbers if n["type"] == "double"), functions, {}, {})


class Found(NamedTuple):
    """The kernels of a folder, and what is lacking of them."""

    library: Library | None  # none: the CPU computes with numpy
    lacks: str = ""  # why it does, or does not compute as quickly as it could; empty if nothing is to be said
    remedy: str = ""  # what to do about that

    @property
    def line(self) -> str:
        return f"cpu: {self.lacks}; {self.remedy}." if self.lacks else ""


@lru_cache(maxsize=1)
def found() -> Found:
    """Load the kernels of this installation, of the level that `AG_CPU` names; ``numpy`` loads none."""
    wanted = os.environ.get("AG_CPU", "")
    if wanted == "numpy":
        return Found(None)
    if wanted and wanted not in LEVELS:
        raise KernelError(f"AG_CPU is {wanted!r}; it may be 'numpy', for a CPU device without kernels in C, or the "
                          f"level of these: {', '.join(map(repr, LEVELS))}. Unset it to use the best that were built.")
    loaded = load(_BUILT, LEVELS.get(wanted))
    if wanted and loaded.library is None:
        raise KernelError(f"AG_CPU is {wanted!r}, and {loaded.lacks}; {loaded.remedy}.")
    if loaded.library is not None:
        share_by(loaded.library.pool_at)
    return loaded


def library() -> Library | None:
    """The kernels of this installation; None if there are none, or `AG_CPU` is ``numpy``."""
    return found().library


def load(folder: Path, level: str | None = None) -> Found:
    """Load a folder's kernels of a level, or the best that run here; none that were not built, or are stale."""
    if not (folder / "manifest.json").is_file():
        note = folder.parent / "not_built.txt"  # of native_build.py
        lines = note.read_text("utf-8").splitlines() if note.is_file() else []
        whys = [line.removeprefix(_NOTED) for line in lines if line.startswith(_NOTED)] or ["they were not compiled"]
        return _none(f"no kernels in C are there ({whys[0]})")
    try:
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        if changed := [name for name, digest in manifest["sources"].items() if (_ROOT / name).is_file()  # a checkout
                       and sha256((_ROOT / name).read_bytes()).hexdigest() != digest]:
            return _none(f"{changed[0]} changed after the kernels were built")
        kernels = Library(folder, manifest, level)
    except _DAMAGE as error:
        return _none(f"the compiled kernels cannot be loaded ({type(error).__name__}: {error})")
    if not kernels.lacks:
        return Found(kernels)
    return Found(kernels, f"{kernels.lacks}, so the CPU computes with kernels{kernels.level}.so, more slowly", _BUILD)


def _none(why: str) -> Found:
    return Found(None, f"{why}, so the CPU computes with numpy, more slowly", _BUILD)
