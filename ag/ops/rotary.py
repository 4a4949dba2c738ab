"""Rotary positions of queries and keys, on [heads * features, time, batch]; both turn in one launch.

An angle is exact at any position.  The gradient is the turn back, by the same kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import signature
from math import ceil, floor, log, pi
from typing import Any, cast, overload

import numpy as np

from ag.autograd.op import Cotangents, Ids, Need, Result, Run, composed, operands_on_one_device, part_of
from ag.autograd.operands import number_given, to_buffer
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike
from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import I32, U32
from ag.engine.kernels import attention as kernels
from ag.engine.kernels.convert import array_to_upload
from ag.engine.primitive import Array
from ag.engine.shape import counts, true_or_false, whole_number
from ag.errors import DeviceError, DtypeError, ShapeError

__all__ = ["rope"]

Scaling = Mapping[str, object]
Scaled = tuple[Array, float]  # frequencies, and the factor of what turns
Turn = dict[str, Any]  # parameters of the kernels
Saved = tuple[Buffer, Buffer, Turn]  # positions, frequencies


@overload
def rope(
    q: TensorLike, k: None = None, positions: int | ArrayLike = 0, base: float = 10000.0, interleaved: bool = False,
    heads: int = 1, rotary_dim: int | None = None, scaling: Scaling | None = None) -> Tensor: ...
@overload
def rope(
    q: TensorLike, k: TensorLike, positions: int | ArrayLike = 0, base: float = 10000.0, interleaved: bool = False,
    heads: int = 1, rotary_dim: int | None = None, scaling: Scaling | None = None) -> tuple[Tensor, Tensor]: ...
@composed
def rope(
    q: TensorLike, k: TensorLike | None = None, positions: int | ArrayLike = 0, base: float = 10000.0,
    interleaved: bool = False, heads: int = 1, rotary_dim: int | None = None, scaling: Scaling | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Turn pairs of each head's features by angles that grow with the position, of queries, or of queries and keys.

    Pair i of a head turns by ``position * base ** (-2 * i / rotary_dim)``; large positions are as exact as small ones.
    Reference: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding".

    Parameters
    ----------
    q, k : Tensor of shape (heads * d, time) or (heads * d, time, batch)
        `k` may have fewer heads, of as many features each.
    positions : int or integers of shape (), (time,), (time, 1) or (time, batch), optional
        One number is the position of the first time.  A tensor stays on the device, so a captured step may move it.
    interleaved : bool, optional
        Whether neighbours are a pair, as in GPT-J, and not ``i`` and ``i + rotary_dim / 2``, as in Llama and GPT-NeoX.
    rotary_dim : int, optional
        How many of a head's features turn, an even number; the others stay.  Default: all.
    scaling : dict, optional
        ``rope_scaling`` of a model of Hugging Face whose ``"rope_type"`` is ``"linear"``, ``"llama3"`` or ``"yarn"``.

    Returns
    -------
    Tensor, or two of them if `k` is given

    Examples
    --------
    >>> turned = ag.ops.rope([[1.0, 1.0], [0.0, 0.0]])
    >>> [round(x, 2) for x in turned.numpy()[:, 1].tolist()]
    [0.54, 0.84]
    """
    if not counts(heads):
        raise ValueError(f"rope: heads is {heads!r}; it must be a whole number of at least 1.")
    backend, given, _ = operands_on_one_device("rope", (q,) if k is None else (q, k))
    dim = _head_features([x.shape for x in given], int(heads))
    rotary = dim if rotary_dim is None else whole_number("rope", "rotary_dim", rotary_dim)
    if rotary % 2 or not 2 <= rotary <= dim:
        raise ValueError(f"rope: {rotary} of a head's {dim} features would turn; an even number in 2..{dim} is "
                         f"required. Give rotary_dim, or another number of heads.")
    offset, places = _places(positions, given[0], backend)
    if not isinstance(scaling, Mapping | None):
        raise TypeError(f"rope: scaling is a {type(scaling).__name__}; a dict such as rope_scaling of a model of "
                        f"Hugging Face is required.")
    table, factor = _frequencies(rotary, _above_0("base", base), None if scaling is None else tuple(scaling.items()))
    turn: Turn = {"dim": dim, "rotary": rotary, "interleaved": true_or_false("rope", "interleaved", interleaved),
                  "offset": offset, "factor": factor}
    if len(given) == 1:
        return _turned(given[0], places, turn, table, [])
    more = [given[1].buffer]
    return _turned(given[0], places, turn, table, more), _turned_along(given[1], places, turn, table, more)


@part_of("rope")
def _turned(run: Run, x: Buffer, positions: Ids, turn: Turn, table: Array, more: list[Buffer]) -> Result[Saved]:
    """Turn `x`, and in the same launch what is in `more`, which is replaced by the result."""
    frequencies, whole = x.backend.constant(table, U32), _with_batch(x)
    if more:
        out, more[0] = run(kernels.rope_pair, whole, _with_batch(more[0]), positions, frequencies, **turn, way=1.0)
    else:
        out = run(kernels.rope, whole, positions, frequencies, **turn, way=1.0)
    return out.view(x.shape), (positions, frequencies, turn)


@part_of("rope")
def _turned_along(run: Run, x: Buffer, positions: Ids, turn: Turn, table: Array, made: list[Buffer]) -> Result[Saved]:
    """The result for `x` that another launch has `made`."""
    return made.pop().view(x.shape), (positions, x.backend.constant(table, U32), turn)


@_turned.vjp
@_turned_along.vjp
def _turned_back(run: Run, g: Buffer, saved: Saved, need: Need, *_settings: object) -> Cotangents:
    positions, frequencies, turn = saved
    return run(kernels.rope, _with_batch(g), positions, frequencies, **turn, way=-1.0).view(g.shape), None


def _with_batch(x: Buffer) -> Buffer:
    return x.view((*x.shape, 1)) if x.ndim == 2 else x


def _head_features(shapes: list[tuple[int, ...]], heads: int) -> int:
    """Features of a head; an error if the operands do not fit."""
    shown = " and ".join(f"{name} is {shape}" for name, shape in zip("qk", shapes, strict=False))
    if any(len(shape) not in (2, 3) or shape[1:] != shapes[0][1:] for shape in shapes):
        raise ShapeError(f"rope: {shown}; (features, time) or (features, time, batch) is required, of both the same "
                         f"times and batch.")
    dim = shapes[0][0] // heads
    if shapes[0][0] % heads or not dim or shapes[-1][0] % dim:
        raise ShapeError(f"rope: {shown}; the features of q must divide into {heads} heads, and those of k into heads "
                         f"of that size.")
    return dim


def _places(positions: object, x: Tensor, backend: Device) -> tuple[int, Tensor]:
    """The offset of positions that count, and positions on the device: one to be added, or one for each time."""
    if isinstance(positions, (int, np.integer)) and not isinstance(positions, bool):
        offset = int(positions)
        if not -1 << 31 <= offset <= (1 << 31) - max(1, x.shape[1]):
            raise ValueError(f"rope: the first of {x.shape[1]} positions is {offset}; they must be below 2**31 in "
                             f"size.")
        return offset, Tensor(backend.constant(0, I32))
    if isinstance(positions, Tensor):
        kind, b = positions.dtype, positions.buffer
        if b.backend is not backend:
            raise DeviceError(f"rope: operands are on {backend.name} and {positions.device} (the positions); move one "
                              f"with ag_to_device.")
    else:
        values = array_to_upload(positions, "rope")
        whole = values.dtype.kind in "iu"
        kind, b = ("i32", to_buffer(values, backend, I32)) if whole else (str(values.dtype), x.buffer)
    if kind != "i32":
        raise DtypeError(f"rope: the positions are of type {kind}; i32 is required, such as ag_tensor(ids, "
                         f'dtype="i32").')
    times, *batch = x.shape[1:]
    if b.shape not in ((), (times,), (times, 1), (times, *batch)):
        raise ShapeError(f"rope: the positions are {b.shape} and q is {x.shape}; one number, or (time,), (time, 1) or "
                         f"(time, batch) is required.")
    return 0, Tensor(b.view((times, 1)) if b.ndim == 1 else b)


# ---------------------------------------------------------------------------------------------- frequencies


def _above_0(name: str, value: object) -> float:
    number = number_given("rope", name, value)
    if not 0 < number < float("inf"):
        raise ValueError(f"rope: {name} is {value}; a finite number above 0 is required.")
    return number


@lru_cache(maxsize=64)
def _frequencies(rotary: int, base: float, scaling: tuple[tuple[str, object], ...] | None) -> tuple[Array, float]:
    """Turns per position in 64 bits behind the point, the low word first, and the factor of what turns."""
    per_position = base ** -(np.arange(0, rotary, 2) / rotary)
    factor = 1.0
    if scaling is not None:
        per_position, factor = _scaled(per_position, base, dict(scaling))
    turns = [int(f * 2.0**64 / (2 * pi)) % (1 << 64) for f in per_position.tolist()]
    return np.array([(t & 0xFFFFFFFF, t >> 32) for t in turns], np.uint32), factor


def _scaled(per_position: Array, base: float, settings: dict[str, object]) -> Scaled:
    kind = settings.pop("rope_type", settings.pop("type", None))
    rule = _SCALINGS.get(cast(str, kind))
    if rule is None:
        raise ValueError(f"rope: the rope_type of scaling is {kind!r}; it must be one of {', '.join(_SCALINGS)}.")
    takes = [name for name in signature(rule).parameters if name not in ("per_position", "base")]
    try:
        numbers = {name: _above_0(name, value) for name, value in settings.items() if value is not None}
        return rule(per_position, base, **numbers)
    except TypeError:
        raise TypeError(f"rope: scaling of type {kind} has {', '.join(settings) or 'nothing'}; it takes the numbers "
                        f"{', '.join(takes)}.") from None


def _llama3(per_position: Array, base: float, factor: float, low_freq_factor: float, high_freq_factor: float,
            original_max_position_embeddings: float) -> Scaled:
    """Slow pairs are stretched, quick ones are not, and between both it goes over linearly."""
    if not low_freq_factor < high_freq_factor:
        raise ValueError(f"rope: low_freq_factor is {low_freq_factor} and high_freq_factor {high_freq_factor}; the "
                         f"first must be less.")
    turns = original_max_position_embeddings * per_position / (2 * pi)  # in the context of the training
    kept = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    return per_position * (kept + (1 - kept) / factor), 1.0


def _yarn(per_position: Array, base: float, factor: float, original_max_position_embeddings: float,
          beta_fast: float = 32.0, beta_slow: float = 1.0, attention_factor: float | None = None,
          mscale: float = 1.0, mscale_all_dim: float = 0.0) -> Scaled:
    """Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models"; ends as Hugging Face's."""
    def pair(turns: float) -> float:
        """Place of the pair that turns so often in the context of the training."""
        return len(per_position) * log(original_max_position_embeddings / (turns * 2 * pi)) / log(base)

    first, last = max(floor(pair(beta_fast)), 0), min(ceil(pair(beta_slow)), 2 * len(per_position) - 1)
    kept = 1 - np.clip((np.arange(len(per_position)) - first) / ((last - first) or 0.001), 0, 1)
    longer = 0.1 * log(max(factor, 1.0))
    attention = attention_factor or (longer * (mscale if mscale_all_dim else 1) + 1) / (longer * mscale_all_dim + 1)
    return per_position * (kept + (1 - kept) / factor), attention


_SCALINGS: dict[str, Callable[..., Scaled]] = {
    "linear": lambda per_position, base, factor: (per_position / factor, 1.0), "llama3": _llama3, "yarn": _yarn}
