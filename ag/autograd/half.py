"""Training with 16-bit tensors: ops compute in float32 and round once, f16 gradients are stored times a loss scale.

The tape multiplies what it stores in f16 by the scale, and divides what leaves f16: parameters receive true gradients.
bf16 has the range of float32 and needs no scale.  Micikevicius et al., "Mixed Precision Training", 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from functools import partial, reduce
from itertools import chain, count, repeat
from operator import itemgetter
from types import TracebackType
from typing import Concatenate, ParamSpec, TypeVar, cast
from weakref import ReferenceType, WeakValueDictionary, ref

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer, Device, Run
from ag.engine.dtype import F32, DType
from ag.engine.interpreter import recording_here
from ag.engine.kernels.convert import converted
from ag.engine.kernels.elementwise import add, copy, mul
from ag.engine.kernels.elementwise import scale as times
from ag.engine.kernels.optimizer import nonfinite, scale_update
from ag.engine.kernels.reduce import max as largest
from ag.engine.kernels.reduce import sum_over
from ag.engine.primitive import Array, Primitive, PrimitiveTo, Returned

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Widening:
    """`Backend.launch` with 16-bit operands widened first where a kernel takes none.

    There is one object per call of a rule, as it caches conversions.
    """

    def __init__(self, launch: Run) -> None:
        self._launch = launch
        self._widened: dict[tuple[int, int], tuple[Buffer, Buffer]] = {}

    def __call__(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
                 **params: object) -> Returned:
        return self._launch(primitive, *self._taken(primitive, operands), into=into, **params)

    def _taken(self, primitive: Primitive, operands: tuple[Buffer, ...]) -> list[Buffer]:
        """Return what the primitive's kernel may take in the place of operands."""
        halves = operands[0].backend.halves.get(primitive.name, ())[primitive.outputs:]
        moved = {x.dtype for x, half in zip(operands, halves, strict=False) if half}
        if not halves or (primitive.moves and len(moved) > 1):
            return [self._wide(x) for x in operands]
        return [x if half else self._wide(x) for x, half in zip(operands, halves, strict=True)]

    def _wide(self, x: Buffer) -> Buffer:
        if not x.dtype.is_half:
            return x
        known = self._widened.get((x.address, x.size))
        if known is None:
            known = self._widened[x.address, x.size] = x, converted(x, F32)
        return known[1].view(x.shape)


def launch_on(x: Buffer) -> Run:
    """Return the launch of the device of `x`, widening if `x` has 16 bits."""
    return Widening(x.backend.launch) if x.dtype.is_half else x.backend.launch


def widening(rule: Callable[Concatenate[Run, P], R]) -> Callable[Concatenate[Run, P], R]:
    """Return a gradient rule that takes 16-bit tensors."""

    def wide(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return rule(Widening(run), *args, **kwargs)

    return wide


def rounded(out: Buffer, saved: S, dtype: DType) -> tuple[Buffer, S]:
    """Round a rule's result to its operands' 16-bit type, also where it is saved; a loss, without axes, stays F32."""
    if not out.dtype.is_float:
        return out, saved
    result = converted(out, dtype if out.shape else F32)
    return result, saved if result is out else cast(S, _swapped(saved, out, result))


def _swapped(saved: object, old: Buffer, new: Buffer) -> object:
    """Replace `old` and its views by `new` in what a rule saved."""
    if type(saved) is tuple:
        return tuple(_swapped(x, old, new) for x in saved)
    if type(saved) is list:
        return [_swapped(x, old, new) for x in saved]
    if isinstance(saved, Buffer) and (saved.block, saved.address, saved.size) == (old.block, old.address, old.size):
        return new.view(saved.shape)
    return saved


FIRST_SCALE = 65536.0
INTERVAL = 2000
SCALE_WORDS = ("scale", "inverse", "good steps", "skipped steps")
_LARGEST = 2.0**24  # beyond, gradients of a few units would overflow float32 on their way
_CHUNK = 1 << 12

_numbers = count(1)
SCALES: dict[int, ReferenceType[LossScale]] = {}  # shared by threads: any may use an optimizer's parameters


class LossScale:
    """The loss scale of some parameters, in effect while it is alive.

    It is a power of two in device memory, halved after a step with a gradient that is not finite, doubled after
    `INTERVAL` good steps.  Of several scales of one parameter the latest claim counts.  An optimizer claims when it is
    made, and again in a step if another one has claimed since.
    """

    def __init__(self, params: Iterable[Tensor], devices: Iterable[Device]) -> None:
        self.number = next(_numbers)  # increases with every scale
        self.params: dict[int, int] = {}  # claims by ids of parameters: the larger, the later
        self.states: dict[Device, Buffer] = {}  # the numbers of `SCALE_WORDS`
        # Other parameters that a scaled backward pass has reached: their gradients may have overflowed as well.
        self.reached: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self.claim(params)
        self.place(devices)
        SCALES[self.number] = ref(self, partial(SCALES.pop, self.number))

    def claim(self, params: Iterable[Tensor], *later: int) -> None:
        """Claim parameters; then let the last `later` of the other scales claim theirs again, in their order.

        With other claims 3 and 5 and ``later=1``, this scale's claim is 6, and 5 becomes 7.
        """
        others, mine = [scale for scale in _every() if scale is not self], self.params.copy()
        for p, n in zip(params, chain(later, repeat(0)), strict=False):
            mine[p.id] = next(_numbers)
            if n:
                claims = [scale.params for scale in others if p.id in scale.params]
                for claim in sorted(claims, key=itemgetter(p.id))[-n:]:
                    claim[p.id] = next(_numbers)
        self.params = mine

    def later(self, params: Collection[int]) -> list[int]:
        """Count the other scales that claimed each parameter later, given ids."""
        others = [scale.params for scale in _every()]
        return [sum(n in other and other[n] > self.params[n] for other in others) for n in params]

    def adopt(self, params: Collection[Tensor]) -> None:
        """Claim what other scales have claimed since; a recording gets a guard, as its replay does not claim."""
        numbers = [p.id for p in params]
        if any(self.later(numbers)):
            self.claim(params)
        _guard("another optimizer has adopted its parameters", False, partial(_is_overtaken, ref(self), numbers))

    def place(self, devices: Iterable[Device]) -> None:
        """Start anew on these devices."""
        known, words = self.states, (len(SCALE_WORDS),)
        self.states = {device: known[device] if device in known else device.zeros(words, F32) for device in devices}
        self.set(FIRST_SCALE, 0.0, 0.0)

    def set(self, scale: float, *counts: float) -> None:
        """Set the scale, and the counts of steps if given; does not wait."""
        words = np.array([scale, 1 / scale, *counts])
        for device, state in self.states.items():
            device.refuse_while_recording("sets the loss scale")
            device.upload(words, state.view(words.shape))

    def read(self) -> Array:
        """Return the numbers of `SCALE_WORDS`; waits for the device."""
        device, state = next(iter(self.states.items()))
        return device.download(state)

    def move(self, bad: Mapping[Device, Buffer]) -> None:
        """Halve or raise the scale after a step, given the number of gradients per device that are not finite."""
        for device, state in self.states.items():
            if device in bad:
                device.launch(scale_update, state, bad[device], interval=INTERVAL, largest=_LARGEST)


def scales_of(params: Collection[int]) -> list[LossScale]:
    """Return the scales of parameters, given ids, each once; per parameter, the scale with the latest claim."""
    owners: dict[int, tuple[int, LossScale]] = {}
    for scale in _every():
        for param in scale.params.keys() & params:
            if param not in owners or owners[param][0] < scale.params[param]:
                owners[param] = scale.params[param], scale
    found = {scale.number: scale for _, scale in owners.values()}
    return [found[number] for number in sorted(found)]


def _every() -> list[LossScale]:
    return [scale for known in list(SCALES.values()) if (scale := known()) is not None] if SCALES else []


class Scaling:
    """Context of one backward pass that reaches `params`: sets the loss scale, the smallest of those of `params`."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        self._params = {p.id: p for p in params}
        self.scales = scales_of(self._params)
        self._states: dict[Device, Buffer | None] = {}

    def __enter__(self) -> None:
        self._token: Token[Scaling | None] = _current.set(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        _current.reset(self._token)
        for scale in self.scales:
            if not scale.states.keys().isdisjoint(self._states):
                scale.reached.update({number: p for number, p in self._params.items()
                                      if number not in scale.params and number not in scale.reached})

    def state(self, device: Device) -> Buffer | None:
        """Return the scale and its inverse on a device; None if nothing is scaled there."""
        if device not in self._states:
            states = _states(self.scales, device)
            if device.recording is not None:
                _guard("the loss scale is another one, or there is none any more", [*map(ref, states)],
                       partial(_references, [*self._params], device))
            self._states[device] = _least(states)
        return self._states[device]


_current: ContextVar[Scaling | None] = ContextVar("ag_loss_scale", default=None)


def _states(scales: Sequence[LossScale], device: Device) -> list[Buffer]:
    return [scale.states[device] for scale in scales if device in scale.states]


def _least(states: list[Buffer]) -> Buffer | None:
    """Return the smallest scale and the largest inverse; no division, as devices may round it."""
    if len(states) < 2:
        return states[0] if states else None
    backend, n = states[0].backend, len(states)
    words, least = backend.alloc((2, n), F32), backend.alloc((2,), F32)

    def put(state: Buffer, scale: Buffer, inverse: Buffer) -> None:
        backend.launch(times, state.view((1,), 0), factor=-1.0, into=scale)
        backend.launch(copy, state.view((1,), 1), into=inverse)

    for i, state in enumerate(states):
        put(state, words.view((1,), i), words.view((1,), n + i))
    put(backend.launch(largest, words, axis=1, chunk=n), least.view((1,), 0), least.view((1,), 1))
    return least


def _guard(change: str, found: object, find: Callable[[], object]) -> None:
    """Let a recording find the same before every replay; else say what has changed."""
    recording = recording_here()
    if recording is not None:
        recording.guards[f"loss scale {len(recording.guards)}"] = lambda: None if find() == found else change


def _references(params: Collection[int], device: Device) -> list[ReferenceType[Buffer]]:
    """Return the scales that a backward pass would use now."""
    return [*map(ref, _states(scales_of(params), device))]


def _is_overtaken(stepped: ReferenceType[LossScale], params: Collection[int]) -> bool:
    """Return whether an optimizer step would claim now."""
    scale = stepped()
    return scale is not None and any(scale.later(params))


def scaled(g: Buffer) -> Buffer:
    """Return `g` times the scale of this backward pass, in float32."""
    return _times(g, 0)


def unscaled(g: Buffer) -> Buffer:
    """Return `g` divided by the scale of this backward pass, in float32."""
    return _times(g, 1)


def is_scaling() -> bool:
    """Return whether a backward pass runs whose parameters have a loss scale."""
    scaling = _current.get()
    return scaling is not None and scaling.scales != []


def _times(g: Buffer, word: int) -> Buffer:
    scaling = _current.get()
    state = None if scaling is None else scaling.state(g.backend)
    wide = converted(g, F32)
    return wide if state is None else g.backend.launch(mul, wide, state.view((), word))


def is_scaled(params: Iterable[Tensor]) -> bool:
    """Return whether gradients of these parameters may be infinite because of a loss scale."""
    if not SCALES:
        return False
    numbers = [p.id for p in params]
    found = _overflows(numbers)
    _guard("gradients were not scaled and are, or are not any more", found, partial(_overflows, numbers))
    return found


def _overflows(params: Collection[int]) -> bool:
    return any(number in scale.params or number in scale.reached for scale in _every() for number in params)


def unfit(parts: Sequence[Buffer], one: Buffer) -> Buffer:
    """Count the elements of flat buffers that are not finite; a captured step may replace the constant `one`."""
    launch = parts[0].backend.launch
    counts = [launch(nonfinite, x, one, chunk=_CHUNK) for x in parts]
    return reduce(partial(launch, add), [(sum_over(launch, x, (0,)) if x.size > 1 else x).view(()) for x in counts])
