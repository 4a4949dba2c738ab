"""Loss scaling: what keeps gradients inside the narrow range of f16.

A gradient that is stored in f16 is stored times a scale, and divided by it where it leaves f16: `ag.autograd.cotangent`
does both in the backward pass, `ag.autograd.transfer` between devices.  All others are what they are, so parameters
always receive true gradients.  The scale is a power of two, begins at 2^16 and lives in device memory, where optimizers
move it: halved, and the step skipped, when a gradient is not finite; doubled after `INTERVAL` steps that went well.
bf16 has the range of float32 and needs none.

Knows parameters by their ids; no op, no tape and no optimizer.  The tape opens a `Scaling`; optimizers, and the
replicas of `dp_train`, have a `LossScale`.

Every optimizer with f16 parameters has a scale, which claims them for itself when the optimizer adopts them.  Which
scale a backward pass uses follows from the parameters that it reaches, and is settled when it begins (`Scaling`):

    optimizer 1 of V, W, scale 2^16;  optimizer 2 of U, scale 2^12;  X without an optimizer
    a loss of V and X   ->  2^16          a loss of X      ->  none, as if there were no optimizer
    a loss of W and U   ->  2^12, the smaller one: neither overflows at less than its own scale

Of several scales of one parameter the one with the latest claim counts: an optimizer adopts its parameters when it is
made, and again in a step if another one has taken them.  State dicts say how many claims came later, so that a resumed
job scales as the first one did.

Micikevicius et al., "Mixed Precision Training", 2018.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from functools import partial, reduce
from itertools import chain, count, repeat
from operator import itemgetter
from types import TracebackType
from typing import Protocol
from weakref import ReferenceType, WeakValueDictionary, ref

import numpy as np

from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import F32
from ag.engine.kernels.convert import converted
from ag.engine.kernels.elementwise import add, copy, mul
from ag.engine.kernels.elementwise import scale as times
from ag.engine.kernels.optimizer import nonfinite, scale_update
from ag.engine.kernels.reduce import max as largest
from ag.engine.kernels.reduce import sum_over
from ag.engine.primitive import Array
from ag.engine.program import recording_here

__all__ = ["FIRST_SCALE", "INTERVAL", "SCALE_WORDS", "LossScale", "Scaling", "anybody_scales", "is_scaled", "scaled",
           "scales_of", "unfit", "unscaled"]

FIRST_SCALE = 65536.0
INTERVAL = 2000
SCALE_WORDS = ("scale", "inverse", "good steps", "skipped steps")
_LARGEST = 2.0**24  # beyond, gradients of a few units would overflow float32 on their way
_CHUNK = 1 << 12

_numbers = count(1)
_alive: dict[int, ReferenceType[LossScale]] = {}  # of all threads, as any may compute with an optimizer's parameters


class Parameter(Protocol):
    """What is asked of a parameter here."""

    id: int


class LossScale:
    """The loss scale of some parameters; it holds as long as somebody keeps it.

    Parameters
    ----------
    params : iterable of Tensor
        A backward pass that reaches one of them uses the scale.
    devices : iterable of Device
        Where gradients are stored in f16.

    Attributes
    ----------
    states : dict of Device to Buffer
        The numbers of `SCALE_WORDS`.
    number : int
        Larger than that of every scale made before.
    params : dict of int to int
        Its claims, by the ids of parameters: the larger, the later.
    reached : mapping of int to Tensor
        Other parameters, by id, that a scaled backward pass has reached: their gradients may have overflowed, too.
    """

    def __init__(self, params: Iterable[Parameter], devices: Iterable[Device]) -> None:
        self.number = next(_numbers)
        self.params: dict[int, int] = {}
        self.states: dict[Device, Buffer] = {}
        self.reached: WeakValueDictionary[int, Parameter] = WeakValueDictionary()
        self.claim(params)
        self.place(devices)
        _alive[self.number] = ref(self, partial(_alive.pop, self.number))

    def claim(self, params: Iterable[Parameter], *later: int) -> None:
        """Claim parameters after all other scales, of which as many as are `later` then claim again, in their order.

        Others have the claims 3 and 5, and one is later: this scale's claim is 6, and that of 5 becomes 7.
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
        """How many other scales claimed each of some parameters later, given their ids."""
        others = [scale.params for scale in _every()]
        return [sum(n in other and other[n] > self.params[n] for other in others) for n in params]

    def adopt(self, params: Collection[Parameter]) -> None:
        """Claim what others have claimed since, as the optimizer steps; a replay, which does not, must find it so."""
        numbers = [p.id for p in params]
        if any(self.later(numbers)):
            self.claim(params)
        _guard(partial(_overtaken, ref(self), numbers))

    def place(self, devices: Iterable[Device]) -> None:
        """Begin again, on these devices."""
        known, words = self.states, (len(SCALE_WORDS),)
        self.states = {device: known[device] if device in known else device.zeros(words, F32) for device in devices}
        self.set(FIRST_SCALE, 0.0, 0.0)

    def set(self, scale: float, *counts: float) -> None:
        """Go on with this scale, and with these counts of steps if they are given; does not wait."""
        words = np.array([scale, 1 / scale, *counts])
        for device, state in self.states.items():
            device.refuse_while_recording("sets the loss scale")
            device.upload(words, state.view(words.shape))

    def read(self) -> Array:
        """The numbers of `SCALE_WORDS`; waits for the device."""
        device, state = next(iter(self.states.items()))
        return device.download(state)

    def move(self, bad: Mapping[Device, Buffer]) -> None:
        """Halve or raise the scale after a step with so many gradients, by device, that are not finite."""
        for device, state in self.states.items():
            if device in bad:
                device.launch(scale_update, state, bad[device], interval=INTERVAL, largest=_LARGEST)


def scales_of(params: Collection[int]) -> list[LossScale]:
    """The scales of parameters, given their ids, each once; of several of one parameter, that with the latest claim."""
    owners: dict[int, tuple[int, LossScale]] = {}
    for scale in _every():
        for param in scale.params.keys() & params:
            if param not in owners or owners[param][0] < scale.params[param]:
                owners[param] = scale.params[param], scale
    found = {scale.number: scale for _, scale in owners.values()}
    return [found[number] for number in sorted(found)]


def _every() -> list[LossScale]:
    return [scale for known in list(_alive.values()) if (scale := known()) is not None] if _alive else []


def anybody_scales() -> bool:
    """Whether a backward pass has to ask which scale it uses; one that is recorded does, as there may be one later."""
    return bool(_alive) or recording_here() is not None


class Scaling:
    """The loss scale of one backward pass; a context, in which gradient rules scale with it.

    Parameters
    ----------
    params : iterable of Tensor
        Those that the pass reaches.
    """

    def __init__(self, params: Iterable[Parameter]) -> None:
        self._params = {p.id: p for p in params}
        self._scales = scales_of(self._params)
        self._states: dict[Device, Buffer | None] = {}

    def __enter__(self) -> None:
        self._token: Token[Scaling | None] = _current.set(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        _current.reset(self._token)
        for scale in self._scales:
            if not scale.states.keys().isdisjoint(self._states):
                scale.reached.update({number: p for number, p in self._params.items()
                                      if number not in scale.params and number not in scale.reached})

    def state(self, device: Device) -> Buffer | None:
        """The scale and its inverse on a device; None if nothing is scaled there."""
        if device not in self._states:
            states = _states(self._scales, device)
            if device.recording is not None:
                recorded = [ref(state) for state in states]
                _guard(partial(_another, [*self._params], device, recorded))
            self._states[device] = _least(states)
        return self._states[device]


_current: ContextVar[Scaling | None] = ContextVar("ag_loss_scale", default=None)


def _states(scales: Sequence[LossScale], device: Device) -> list[Buffer]:
    return [scale.states[device] for scale in scales if device in scale.states]


def _least(states: list[Buffer]) -> Buffer | None:
    """The smallest scale and its inverse, the largest; without a division, which devices may round."""
    if len(states) < 2:
        return states[0] if states else None
    backend, n = states[0].backend, len(states)
    words, least = backend.alloc((2, n), F32), backend.alloc((2,), F32)
    for i, state in enumerate(states):
        backend.launch(times, state.view((1,), 0), factor=-1.0, into=words.view((1,), i))
        backend.launch(copy, state.view((1,), 1), into=words.view((1,), n + i))
    top = backend.launch(largest, words, axis=1, chunk=n)
    backend.launch(times, top.view((1,), 0), factor=-1.0, into=least.view((1,), 0))
    backend.launch(copy, top.view((1,), 1), into=least.view((1,), 1))
    return least


def _guard(check: partial[str | None]) -> None:
    recording = recording_here()
    if recording is not None:
        recording.guards[f"loss scale {len(recording.guards)}"] = check


def _another(params: Collection[int], device: Device, recorded: Sequence[ReferenceType[Buffer]]) -> str | None:
    """Why a backward pass that was recorded with some scales, or without one, would not use the same."""
    states = _states(scales_of(params), device)
    same = len(states) == len(recorded) and all(state is known() for state, known in zip(states, recorded, strict=True))
    return None if same else "the loss scale is another one, or there is none any more"


def _overtaken(stepped: ReferenceType[LossScale], params: Collection[int]) -> str | None:
    """Why a step of an optimizer that was recorded would change whose scale holds."""
    scale = stepped()
    return "another optimizer has adopted its parameters" if scale is not None and any(scale.later(params)) else None


def scaled(g: Buffer) -> Buffer:
    """`g` times the scale that this backward pass has on its device, in float32."""
    return _times(g, 0)


def unscaled(g: Buffer) -> Buffer:
    """`g` divided by the scale that this backward pass has on its device, in float32."""
    return _times(g, 1)


def _times(g: Buffer, word: int) -> Buffer:
    scaling = _current.get()
    state = None if scaling is None else scaling.state(g.backend)
    wide = converted(g, F32)
    return wide if state is None else g.backend.launch(mul, wide, state.view((), word))


def is_scaled(params: Iterable[Parameter]) -> bool:
    """Whether gradients of parameters may be infinite because a backward pass scaled what they were computed from."""
    if not anybody_scales():
        return False
    numbers = [p.id for p in params]
    found = _overflows(numbers)
    _guard(partial(_overflows_otherwise, numbers, found))
    return found


def _overflows(params: Collection[int]) -> bool:
    return any(number in scale.params or number in scale.reached for scale in _every() for number in params)


def _overflows_otherwise(params: Collection[int], recorded: bool) -> str | None:
    same = (bool(_alive) and _overflows(params)) is recorded
    return None if same else "gradients were not scaled and are, or are not any more"


def unfit(parts: Sequence[Buffer], one: Buffer) -> Buffer:
    """How many elements of some flat buffers of one device are not finite, as a buffer of shape ().

    `one` is the constant 1, in whose place a captured step may put what gradients are multiplied with.
    """
    launch = parts[0].backend.launch
    counts = [launch(nonfinite, x, one, chunk=_CHUNK) for x in parts]
    return reduce(partial(launch, add), [(sum_over(launch, x, (0,)) if x.size > 1 else x).view(()) for x in counts])
