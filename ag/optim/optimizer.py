"""The base of the optimizers: adopting parameters, gathering gradients, state on the device, state dicts.

A subclass is a table: its primitive (`_rule`), its moments per parameter, the names of its state words, its settings.
All numbers that change between steps are in one small buffer per device, so a captured step replays correctly after
``lr`` was set.  Master weights of 16-bit parameters are updated in float32; with f16 parameters, a step whose gradients
are not all finite is skipped and the loss scale halved.

To add an optimizer: the table, in a file beside this one; its primitive in `ag.engine.kernels.optimizer` and a shader
of that name; a row in ``tests/table/optimizers.py``; its names in ``ag/optim/__init__.py`` and ``ag/__init__.py``.

Knows no update rule and no layer.  Training loops step it; `ag.io.checkpoint` and `ag.parallel` save and move it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ag.autograd.create import ag_tensor, lift
from ag.autograd.loss_scale import FIRST_SCALE, SCALE_WORDS, is_scaled, move_scale, read_scale, set_scale, unfit
from ag.autograd.tape import Gradients
from ag.autograd.tensor import Tensor
from ag.autograd.watched import Watched
from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import F16, F32
from ag.engine.kernels.optimizer import STATE_WORDS
from ag.engine.primitive import Array, PrimitiveTo
from ag.errors import DtypeError, compare_names
from ag.optim.flat import FlatGroup, flat_groups, named_parameters

__all__ = ["Optimizer", "gradient_of"]


class _Slots:
    """Device memory of one flat group: gradients, moments, the changing numbers, and two that stay."""

    def __init__(self, group: FlatGroup, moments: tuple[str, ...]) -> None:
        self.group = group
        self.grads = group.zeros()
        self.grad_views = group.split(self.grads)
        self.moments = {name: group.zeros() for name in moments}
        self.state = group.backend.alloc((STATE_WORDS,), group.dtype)
        self.zero, self.one = (lift(value, group.backend, group.dtype, "optimizer").buffer for value in (0.0, 1.0))

    def write_state(self, values: list[float]) -> None:
        """Overwrite the first words of the state; does not wait."""
        self.group.backend.refuse_while_recording("changes an optimizer's lr or state")
        self.group.backend.upload(np.array(values), self.state.view((len(values),)))

    def per_parameter(self) -> dict[str, Buffer]:
        """Views of everything that is kept for each parameter, by its name in a state dict."""
        flats = dict(self.moments)
        if self.group.stored is not self.group.values:
            flats["master"] = self.group.values
        return {f"{kind}.{name}": view for kind, flat in flats.items() for name, view in self.group.split(flat).items()}

    def read_state(self) -> Array:
        array: Array = self.group.backend.download(self.state)
        return array


class Optimizer(Watched):
    """Base of the optimizers.

    Attributes
    ----------
    params : dict of str to Tensor
    lr : float
        Learning rate; assigning takes effect at the next step, captured or not.
    t : int
        Steps taken.
    """

    settings: tuple[str, ...] = ("lr",)  # attributes that repr shows
    _function = "optimizer"  # the name users know it by
    _rule: PrimitiveTo[None]
    _moments: tuple[str, ...] = ()
    _state: tuple[str, ...] = ("lr", "t")

    def __init__(self, params: object, lr: float, **rule_params: float | bool) -> None:
        if not lr >= 0:
            raise ValueError(f"{self._function}: lr is {lr}; it must be 0 or more.")
        self.params = named_parameters(params, self._function)
        self._rule_params = rule_params
        self._slots = [_Slots(group, self._moments) for group in flat_groups(self.params)]
        for slots in self._slots:
            slots.write_state([lr, *[0.0] * (STATE_WORDS - 1)])
        self._lr = float(lr)
        self._scaled = self._scaled_backends()
        self.restart_loss_scale()

    def _scaled_backends(self) -> list[Device]:
        return list(dict.fromkeys(g.backend for g in self.groups if g.stored_dtype is F16))

    @property
    def lr(self) -> float:
        """Learning rate."""
        return self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        if not value >= 0:
            raise ValueError(f"{self._function}: lr is {value}; it must be 0 or more.")
        for slots in self._slots:
            slots.write_state([float(value)])
        self._lr = float(value)

    @property
    def t(self) -> int:
        """Steps taken so far; waits for the device."""
        return int(self._slots[0].read_state()[self._state.index("t")])

    @property
    def loss_scale(self) -> float | None:
        """What gradients stored in f16 are multiplied with, None without f16 parameters; waits for the device."""
        return float(read_scale(self._scaled[0])[0]) if self._scaled else None

    @property
    def skipped(self) -> int:
        """Steps skipped because a gradient was not finite, with f16 parameters only; waits for the device."""
        return int(read_scale(self._scaled[0])[SCALE_WORDS.index("skipped steps")]) if self._scaled else 0

    def move_loss_scale(self, bad: Mapping[Device, Buffer]) -> None:
        """Let the loss scale follow a step with so many gradients, by device, that are not finite."""
        for backend in self._scaled:
            if backend in bad:
                move_scale(backend, bad[backend])

    def restart_loss_scale(self) -> None:
        """Begin with the first loss scale again, as a new optimizer does; all on a device share its scale."""
        self._set_scale([FIRST_SCALE, 0.0, 0.0, 0.0])

    def _set_scale(self, words: list[float]) -> None:
        scale, _, *counts = words
        self._scales = [set_scale(backend, scale, *counts) for backend in self._scaled]

    def step(self, grads: Gradients | Mapping[object, object] | None = None) -> None:
        """Update every parameter that has a gradient.

        Parameters
        ----------
        grads : Gradients or dict, optional
            By parameter or by name; default: every parameter's ``.grad``.

        Raises
        ------
        ShapeError
            If a gradient's shape is not its parameter's.
        """
        work: list[tuple[_Slots, list[tuple[int, int]]]] = []
        for slots in self._slots:
            group = slots.group
            present = {name: g for name, p in group.params.items() if (g := gradient_of(name, p, grads)) is not None}
            if not present:
                continue
            group.adopt()
            group.gather(present, slots.grad_views)
            work.append((slots, group.runs(present)))
        scaled = any(is_scaled(slots.group.backend) for slots, _ in work)
        bad = self._unfit(work) if scaled else {}
        for slots, runs in work:
            self.update(slots.group, slots.grads, runs, bad.get(slots.group.backend))

    def _unfit(self, work: list[tuple[_Slots, list[tuple[int, int]]]]) -> dict[Device, Buffer]:
        """How many gradients are not finite, on every device; the loss scale follows."""
        parts: dict[Device, list[Buffer]] = {}
        for slots, runs in work:
            parts.setdefault(slots.group.backend, []).extend(slots.grads.view((n,), start) for start, n in runs)
        ones = {slots.group.backend: slots.one for slots, _ in work}
        bad = {backend: unfit(grads, ones[backend]) for backend, grads in parts.items()}
        if len(bad) > 1:  # devices learn of each other through the host
            total = sum(float(backend.download(count)) for backend, count in bad.items())
            bad = {backend: lift(total, backend, F32, "step").buffer for backend in bad}
        self.move_loss_scale(bad)
        return bad

    def update(self, group: FlatGroup, grads: Buffer, runs: list[tuple[int, int]], bad: Buffer | None = None) -> None:
        """Apply the update rule to stretches of a flat group, given its flat gradients, unless some are `bad`."""
        slots = next(s for s in self._slots if s.group is group)
        group.take_changes()
        for start, length in runs:
            operands = [b if length == group.size else b.view((length,), start)
                        for b in (group.values, *slots.moments.values())]
            g = grads if length == group.size else grads.view((length,), start)
            with group.backend.quiet():
                group.backend.launch(self._rule, *operands, slots.state, g, slots.one,
                                     slots.zero if bad is None else bad,
                                     **self._rule_params, last=(start, length) == runs[-1])
        group.store()

    def flat_gradients(self, group: FlatGroup) -> Buffer:
        """The flat buffer into which gradients of `group` are gathered."""
        return next(s.grads for s in self._slots if s.group is group)

    @property
    def groups(self) -> list[FlatGroup]:
        """The flat groups of the parameters, one per device and element type."""
        return [s.group for s in self._slots]

    def zero_grad(self) -> None:
        """Forget every parameter's ``.grad``."""
        for p in self.params.values():
            p.grad = None

    def state_dict(self) -> dict[str, Array]:
        """Everything needed to go on bit for bit: state numbers, and moments by parameter name."""
        state = {name: slots.read_state()[: len(self._state)] for name, slots in self._states.items()}
        for slots in self._slots:
            state |= {name: slots.group.backend.download(view) for name, view in slots.per_parameter().items()}
        if self._scaled:
            state["loss_scale"] = read_scale(self._scaled[0])
        return state

    def follow(self) -> None:
        """Work where the parameters are now; the state there is a new one, for `load_state_dict` to fill."""
        self._slots = [slots if slots.group.is_where_its_parameters_are() else
                       _Slots(FlatGroup(slots.group.params), self._moments) for slots in self._slots]
        self._scaled = self._scaled_backends()
        self.restart_loss_scale()

    @property
    def _states(self) -> dict[str, _Slots]:
        """The groups by the names that their states have in a state dict."""
        return {f"state{i}" if i > 1 else "state": slots for i, slots in enumerate(self._slots, 1)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take over what `state_dict` returned; nothing changes if names or shapes do not fit.

        Raises
        ------
        CheckpointError
            Listing the names that are missing, unexpected or of another shape.
        """
        mine = self.state_dict()
        compare_names("load_state_dict: the state does not fit this optimizer",
                      {k: x.shape for k, x in mine.items()}, {k: np.shape(x) for k, x in state.items()})
        for name, slots in self._states.items():
            slots.write_state(np.asarray(state[name]).tolist())
            for name, view in slots.per_parameter().items():
                slots.group.backend.upload(np.asarray(state[name]), view)
        if self._scaled:
            self._set_scale(np.asarray(state["loss_scale"]).tolist())
        lr = state["state"][0]
        if np.asarray(self._lr, np.asarray(lr).dtype) != lr:  # the same rate keeps the digits it was given with
            self._lr = float(lr)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)}" for name in self.settings)
        return f"{type(self).__name__}({len(self.params)} parameters, {shown})"


def gradient_of(name: str, p: Tensor, grads: Any) -> Tensor | None:
    """A parameter's gradient in what users pass as `grads`; None if it has none."""
    if grads is None:
        return p.grad
    if isinstance(grads, Gradients):
        return grads.get(p)
    gradient = grads.get(name, grads.get(p))
    if isinstance(gradient, Tensor) and gradient.buffer.dtype.is_half:
        raise DtypeError(f"step: the gradient of {name!r} has type {gradient.dtype}; gradients are float32. "
                         f"Convert it with t.astype('f32').")
    if gradient is None or isinstance(gradient, Tensor):
        return gradient
    return ag_tensor(gradient, device=p.device, dtype="f32" if p.buffer.dtype.is_half else p.dtype)
