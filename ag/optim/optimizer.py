"""The optimizers, and their base, to which each is a table of its primitive, moments, counts and settings.

To add one: its table here, its primitive in `ag.engine.kernels.optimizer`, a shader, a row in
``tests/table/optimizers.py``, its names in ``ag/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from weakref import WeakValueDictionary, ref

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.half import FIRST_SCALE, SCALE_WORDS, SCALES, LossScale, is_scaled, unfit
from ag.autograd.operands import lift
from ag.autograd.tape import Gradients
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import F16, F32, as_dtype
from ag.engine.kernels.convert import number_arrays, refuse_unlike
from ag.engine.kernels.optimizer import adam_update, sgd_update
from ag.engine.primitive import Array, PrimitiveTo
from ag.errors import CheckpointError, DtypeError, compare_names
from ag.names import missing
from ag.names.elsewhere import OPTIMIZER
from ag.optim.flat import DeviceState, FlatGroup, Run, flat_groups, named_parameters
from ag.optim.settings import NOT_NEGATIVE, PART, Check, Settings, flag, nearest

__all__ = ["Adam", "AdamW", "Optimizer", "SGD", "optimizer_adam", "optimizer_adamw", "optimizer_sgd"]

_REFUSAL = "load_state_dict: the state does not fit this optimizer"
_MOST = 1 << 24  # steps that a device counts in float32
_steps = itemgetter(-1)  # of counts
_STEPPED: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # parameters that optimizers were given, by id


class Optimizer(Settings):
    """Base of the optimizers.

    Assigning ``lr``, or another setting, takes effect at the next step, captured or not.  ``params`` has the parameters
    by name, and ``t`` is the number of steps taken.

    Examples
    --------
    >>> optimizer = ag.optim.SGD(ag.nn.Linear(2, 1), lr=0.1)
    >>> isinstance(optimizer, ag.optim.Optimizer), sorted(optimizer.params)
    (True, ['W', 'b'])
    """

    settings: tuple[str, ...] = ("lr",)  # attributes that repr shows
    _checks: ClassVar[Mapping[str, Check]] = {"lr": NOT_NEGATIVE}
    _function = "optimizer"  # the name users know it by
    _rule: PrimitiveTo[None]
    _moments: tuple[str, ...] = ()
    _never_negative: tuple[str, ...] = ()  # which of the moments
    _counts: tuple[str, ...] = ("t",)  # what is counted on the device
    _for_each: bool = False  # whether parameters have counts of their own
    _slots: Sequence[DeviceState] = ()
    lr: float

    def __init__(self, params: object, **settings: object) -> None:
        self._set(**settings)
        self._params = named_parameters(params, self._function)
        self._model = ref(params) if hasattr(params, "parameters") else getattr(params, "of_model", None)
        _STEPPED.update({p.id: p for p in self._params.values()})
        self._slots = [self._state_of(group) for group in flat_groups(self._params)]
        devices = self._scaled_devices()
        self._scale = LossScale(self._params.values(), devices) if devices else None

    def __copy__(self) -> NoReturn:
        """Refuse to be copied without the parameters: two would step the same ones."""
        raise TypeError(f"{self._function}: an optimizer cannot be copied without its parameters, as two would step "
                        f"them; write copy.deepcopy((model, optimizer)), which copies both.")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the parameters and the state: copied or pickled with its model, the copy steps the copied model."""
        return partial(type(self), lr=self.lr, **self._changeable()), (self._params,), self.state_dict()

    def _state_of(self, group: FlatGroup) -> DeviceState:
        return DeviceState(group, self._moments, len(self._counts), self._for_each, self._words(vars(self)))

    def _words(self, values: Mapping[str, float]) -> list[float]:
        """The settings as the update rule reads them, the learning rate first."""
        return [float(values[name]) for name in self.settings]

    def _use(self, values: Mapping[str, float]) -> None:
        for slots in self._slots:
            slots.write_settings(self._words(values))

    def _changeable(self) -> dict[str, float]:
        """All settings but the learning rate, which is in every state dict."""
        return {name: getattr(self, name) for name in self._names() if name != "lr"}

    @property
    def params(self) -> Mapping[str, Tensor]:
        """The parameters by name; which there are is settled when the optimizer is made."""
        return MappingProxyType(self._params)

    def _scaled_devices(self) -> list[Device]:
        return list(dict.fromkeys(g.backend for g in self.groups if g.stored_dtype is F16))

    @property
    def t(self) -> int:
        """Steps taken so far; waits for the device."""
        return max(int(_steps(slots.read_counts()[0])) for slots in self._slots)

    @property
    def loss_scale(self) -> float | None:
        """Factor of gradients stored in f16, None without f16 parameters; waits for the device."""
        return float(self._scale.read()[0]) if self._scale is not None else None

    @property
    def skipped(self) -> int:
        """Steps skipped because a gradient was not finite, with f16 parameters only; waits for the device."""
        return int(self._scale.read()[SCALE_WORDS.index("skipped steps")]) if self._scale is not None else 0

    def move_loss_scale(self, bad: Mapping[Device, Buffer]) -> None:
        """Let the loss scale follow a step with so many gradients, by device, that are not finite."""
        if self._scale is not None:
            self._scale.move(bad)

    def restart_loss_scale(self) -> None:
        """Begin with the first loss scale again, as a new optimizer does."""
        if self._scale is not None:
            self._scale.set(FIRST_SCALE, 0.0, 0.0)

    def scale_gradients_of(self, params: Iterable[Tensor]) -> None:
        """Let the loss scale hold for backward passes to these, too, whose gradients become those of the parameters."""
        if self._scale is not None:
            self._scale.claim(params)

    def step(self, grads: Gradients | Mapping[object, object] | None = None) -> None:
        """Update every parameter that has a gradient, in `grads` by parameter or by name; default: in its ``.grad``."""
        given = gradients_given(self._params, grads, "step")
        if self._model is not None and not (isinstance(grads, Gradients) and len(given) == len(grads)):
            refuse_untrained(self._model(), self._params, "step", _STEPPED)
        work: list[tuple[DeviceState, list[Run]]] = []
        for slots in self._slots:
            group = slots.group
            present = {name: g if type(g := given[name]) is Tensor and g.buffer.dtype is group.dtype else
                       as_gradient(name, p, g, "step") for name, p in group.params.items() if name in given}
            if not present:
                continue
            group.adopt()
            if self._scale is not None:
                self._scale.adopt(group.params.values())
            group.gather(present, slots.grad_views)
            work.append((slots, group.runs(present)))
        bad = self._unfit(work) if SCALES and is_scaled(self._params[name] for name in given) else {}
        for slots, runs in work:
            self.update(slots.group, slots.grads, runs, bad.get(slots.group.backend))
        if len(work) < len(self._slots):
            stepped = [slots for slots, _ in work]
            for parts in self._states.values():  # a state counts a step that only some of its parts have taken
                took = [slots for slots in parts if slots in stepped]
                for slots in parts if took else ():
                    if slots not in took:
                        slots.count_as(took[0])

    def _unfit(self, work: list[tuple[DeviceState, list[Run]]]) -> dict[Device, Buffer]:
        """Count gradients that are not finite, for every device, and move the loss scale."""
        parts: dict[Device, list[Buffer]] = {}
        for slots, runs in work:
            parts.setdefault(slots.group.backend, []).extend(slots.grads.view((r.length,), r.start) for r in runs)
        ones = {slots.group.backend: slots.one for slots, _ in work}
        bad = {backend: unfit(grads, ones[backend]) for backend, grads in parts.items()}
        places = dict.fromkeys(bad)
        if self._scale is not None and self._scale.states.keys().isdisjoint(bad):
            places |= dict.fromkeys(self._scale.states)  # this step's gradients are all of float32 parameters elsewhere
        if len(places) > 1:  # devices learn of each other through the host
            total = sum(float(backend.download(count)) for backend, count in bad.items())
            bad = {backend: lift(total, backend, F32, "step").buffer for backend in places}
        self.move_loss_scale(bad)
        return bad

    def update(self, group: FlatGroup, grads: Buffer, runs: list[Run], bad: Buffer | None = None) -> None:
        """Apply the update rule to stretches of a flat group, given its flat gradients, unless some are `bad`."""
        slots = next(s for s in self._slots if s.group is group)
        for run in runs:
            *flats, g, stored = (*slots.flats, grads, group.stored) if run.length == group.size else [
                b.view((run.length,), run.start) for b in (*slots.flats, grads, group.stored)]
            place = {"start": run.start, "first": run.first, "count": run.params} if self._for_each else {}
            group.backend.launch(self._rule, *flats, *slots.numbers, g, slots.one,
                                 slots.zero if bad is None else bad, stored, **place, last=run is runs[-1])

    def count_alike(self) -> None:
        """Let groups without a gradient in some steps count these, too; for shards of one parameter on many devices."""
        latest = max((slots.read_counts()[0] for slots in self._slots), key=_steps)
        for slots in self._slots:
            if (slots.read_counts()[0] != latest).any():
                slots.change_counts(lambda rows: np.concatenate([latest[None], rows[1:]]))

    def flat_gradients(self, group: FlatGroup) -> Buffer:
        """The flat buffer into which gradients of `group` are gathered."""
        return next(s.grads for s in self._slots if s.group is group)

    @property
    def groups(self) -> list[FlatGroup]:
        """The flat groups of the parameters, one per device and element type."""
        return [s.group for s in self._slots]

    def zero_grad(self) -> None:
        """Forget every parameter's ``.grad``."""
        for p in self._params.values():
            p.grad = None

    def state_dict(self) -> dict[str, Array]:
        """Everything needed to go on bit for bit: state numbers, and moments by parameter name.

        The rate and the counts are in ``state``, other settings in ``settings``.  A parameter W without a gradient in
        some step has counts in ``count.W``; ``claimed_later`` says how many optimizers took f16 parameters since.
        """
        state: dict[str, Array] = {}
        for name, parts in self._states.items():
            rows = [slots.read_counts() for slots in parts]
            own = max((own for own, _ in rows), key=_steps)
            state[name] = np.concatenate([np.array([self.lr], own.dtype), own])
            state |= {f"count.{p}": row for _, counts in rows for p, row in counts.items() if (row != own).any()}
        for slots in self._slots:
            state |= {name: slots.group.backend.download(view) for name, view in slots.per_parameter().items()}
        if self._changeable():
            state["settings"] = np.array(list(self._changeable().values()), np.float64)
        if self._scale is not None:
            state["loss_scale"] = self._scale.read()
            if any(later := self._scale.later([p.id for p in self._params.values()])):
                state["claimed_later"] = np.array(later, np.float64)
        return state

    def follow(self) -> None:
        """Work where the parameters are now; the state there is a new one, for `load_state_dict` to fill."""
        before, self._slots = self._slots, []
        for slots in before:
            group, moved = slots.group, [slots]
            if any(p.buffer.backend is not group.backend for p in group.params.values()):
                moved = [self._state_of(each) for each in flat_groups(group.params)]  # may be several there
                moved[0].group.continues = group.continues
            self._slots += moved
        if self._scale is not None:
            self._scale.place(self._scaled_devices())

    @property
    def _states(self) -> dict[str, list[DeviceState]]:
        """The groups by the names that their states have in a state dict; one that continues another has none."""
        states: list[list[DeviceState]] = []
        for slots in self._slots:
            if not slots.group.continues:
                states.append([])
            states[-1].append(slots)
        return {f"state{i}" if i > 1 else "state": parts for i, parts in enumerate(states, 1)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take over what `state_dict` returned; nothing changes if it does not fit."""
        mine = self.state_dict()
        arrays = self._checked_state(state, mine)
        try:
            self._take(arrays)
        except BaseException:  # also an interrupt
            self._take(mine)
            raise

    __setstate__ = load_state_dict  # of a copy

    def _checked_state(self, state: Mapping[str, Array], mine: Mapping[str, Array]) -> dict[str, Array]:
        arrays = number_arrays(state, _REFUSAL)
        may = {f"count.{name}": (len(self._counts),) for name in self._params if self._for_each}
        if "settings" in arrays and "settings" in mine and arrays["settings"].shape != mine["settings"].shape:
            raise CheckpointError(f"{_REFUSAL}: it is that of another kind of optimizer, of {arrays['settings'].size} "
                                  f"settings besides lr; {self._function} has {', '.join(self._changeable())}.")
        if self._scale is not None:
            may["claimed_later"] = (len(self._params),)
        must = {k: x.shape for k, x in mine.items() if k not in may}
        compare_names(_REFUSAL, must | may, {k: x.shape for k, x in arrays.items()}, must)
        refuse_unlike(arrays, {k: as_dtype(x.dtype, "load_state_dict") for k, x in mine.items() if k in must}, _REFUSAL)
        wrong = [f"{name} holds {x.tolist()}, and not only finite numbers from 0 on" for name, x in arrays.items()
                 if ("." not in name or name in may) and not (np.isfinite(x) & (x >= 0)).all()]
        wrong += [f"{name} counts {x[-1]:g} steps" for name, x in arrays.items()
                  if (name in self._states or name in may)
                  and not (x[-1] < _MOST and float(x[-1]).is_integer())]
        wrong += [f"{name} has negative elements" for name, x in arrays.items()
                  if name.split(".")[0] in self._never_negative and (x < 0).any()]
        if wrong:
            raise CheckpointError(f"{_REFUSAL}: {'; '.join(wrong)}.")
        try:
            self._agree(self._settings_in(arrays))
        except ValueError as error:
            raise CheckpointError(f"{_REFUSAL}: {error}") from error
        return arrays

    def _settings_in(self, arrays: Mapping[str, Array]) -> dict[str, float]:
        """The settings that a state has, checked."""
        lr = arrays["state"][0]
        others = zip(self._changeable(), arrays.get("settings", np.zeros(0)).tolist(), strict=True)
        found = {name: self._checks[name](self._function, name, value) for name, value in others}
        # the same rate keeps the digits it was given with
        return {**found, "lr": self.lr if np.asarray(self.lr, lr.dtype) == lr else float(lr)}

    def _take(self, arrays: Mapping[str, Array]) -> None:
        self._set(**self._settings_in(arrays))
        for name, slots in ((name, slots) for name, parts in self._states.items() for slots in parts):
            others = {p: arrays[f"count.{p}"] for p in slots.group.params if f"count.{p}" in arrays}
            slots.write_counts(arrays[name][1:], others)
            for own_name, view in slots.per_parameter().items():
                slots.group.backend.upload(arrays[own_name], view)
        if self._scale is not None:
            scale, _, *counts = arrays["loss_scale"].tolist()
            self._scale.set(scale, *counts)
            self._scale.claim(self._params.values(), *map(int, arrays.get("claimed_later", ())))

    if not TYPE_CHECKING:
        __getattr__ = missing(OPTIMIZER)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)}" for name in self.settings)
        return f"{type(self).__name__}({len(self._params)} parameters, {shown})"


class Adam(Optimizer):
    """Adam: adaptive moment estimation; `optimizer_adamw` has weight decay, too.

    Every parameter has a count of its own: a gradient that comes late is corrected as a first one.  A finite gradient
    beyond 2^64 in float32, whose square is none, counts as 2^64.
    Reference: ggmlR ``optimizer_adam``; Kingma and Ba, "Adam: A Method for Stochastic Optimization", algorithm 1.

    Parameters
    ----------
    params : dict of str to Tensor, list of Tensor, or model
        They become views of one flat buffer per device.
    lr : float, optional
    beta1, beta2 : float, optional
        Decay of the first and second moment, in [0, 1).
    eps : float, optional
        Added to the root of the second moment.

    Examples
    --------
    >>> W = ag.ag_param([[1.0]])
    >>> ag.optimizer_adam({"W": W}, lr=0.1).step({"W": [[2.0]]})
    >>> round(W.item(), 4)
    0.9
    """

    _function = "optimizer_adam"
    _rule = adam_update
    _moments = ("m", "v")
    _never_negative = ("v",)
    _counts = ("c1", "c2", "t")
    _for_each = True
    _checks: ClassVar[Mapping[str, Check]] = {"lr": NOT_NEGATIVE, "beta1": PART, "beta2": PART, "eps": NOT_NEGATIVE}
    settings: tuple[str, ...] = ("lr", "beta1", "beta2", "eps")
    beta1: float
    beta2: float
    eps: float

    def __init__(self, params: object, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
                 eps: float = 1e-8) -> None:
        super().__init__(params, lr=lr, beta1=beta1, beta2=beta2, eps=eps)

    def _words(self, values: Mapping[str, float]) -> list[float]:
        beta1, beta2 = values["beta1"], values["beta2"]
        return [values["lr"], 1 - beta1, 1 - beta2, values["eps"], values.get("weight_decay", 0.0), beta1, beta2]

    def _use(self, values: Mapping[str, float]) -> None:
        super()._use(values)
        betas = np.array([values["beta1"], values["beta2"]])
        if self._slots and betas.tolist() != [self.beta1, self.beta2]:
            def corrected(rows: Array) -> Array:
                t = rows[:, 2:]
                with np.errstate(divide="ignore", invalid="ignore"):  # beta is 0
                    return np.hstack([np.where(t == 0, 0.0, -np.expm1(t * np.log(betas))), t])  # 1 - beta^t

            for slots in self._slots:
                slots.change_counts(corrected)


class AdamW(Adam):
    """Adam with decoupled weight decay.

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2.

    Parameters
    ----------
    params : dict of str to Tensor, list of Tensor, or model
    lr, beta1, beta2, eps : float, optional
        As of `optimizer_adam`.
    weight_decay : float, optional
        Every step multiplies the parameters by ``1 - lr * weight_decay``.

    Examples
    --------
    >>> ag.optimizer_adamw([ag.ag_param([[1.0]])], lr=0.1).t
    0
    """

    _function = "optimizer_adamw"
    _checks: ClassVar[Mapping[str, Check]] = {**Adam._checks, "weight_decay": NOT_NEGATIVE}
    settings = (*Adam.settings, "weight_decay")
    weight_decay: float

    def __init__(self, params: object, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
                 eps: float = 1e-8, weight_decay: float = 0.01) -> None:
        Optimizer.__init__(self, params, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if wanted.

    ``b = momentum * b + g``; ``p -= lr * b``, or ``p -= lr * (g + momentum * b)`` with `nesterov`.
    Reference: ggmlR ``optimizer_sgd``; Sutskever et al., "On the importance of initialization and momentum", 2013.

    Parameters
    ----------
    params : dict of str to Tensor, list of Tensor, or model
    lr : float, optional
    momentum : float, optional
        In [0, 1); `nesterov` needs a positive one.
    weight_decay : float, optional
        L2 penalty: `weight_decay` times the parameter is added to its gradient.
    nesterov : bool, optional

    Examples
    --------
    >>> W = ag.ag_param([[1.0]])
    >>> ag.optimizer_sgd({"W": W}, lr=0.5).step({"W": [[1.0]]})
    >>> W.item()
    0.5
    """

    _function = "optimizer_sgd"
    _rule = sgd_update
    _moments = ("momentum",)
    _checks: ClassVar[Mapping[str, Check]] = {
        "lr": NOT_NEGATIVE, "momentum": PART, "weight_decay": NOT_NEGATIVE, "nesterov": flag}
    settings = ("lr", "momentum", "weight_decay", "nesterov")
    momentum: float
    weight_decay: float
    nesterov: bool

    def __init__(self, params: object, lr: float = 0.01, momentum: float = 0.0, *,
                 weight_decay: float = 0.0, nesterov: bool = False) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)

    def _agree(self, values: Mapping[str, float]) -> None:
        if values["nesterov"] and not values["momentum"]:
            raise ValueError("optimizer_sgd: nesterov needs momentum > 0, and momentum is 0.")


def gradients_given(params: Mapping[str, Tensor], grads: object, function: str) -> dict[str, Any]:
    """Return the gradient of each trained parameter that was given one, by the parameter's name."""
    if grads is None:
        return {name: p.grad for name, p in params.items() if p.requires_grad and p.grad is not None}
    if isinstance(grads, Gradients):
        return {name: g for name, p in params.items() if p.requires_grad and (g := grads.get(p)) is not None}
    if not isinstance(grads, Mapping):
        raise TypeError(f"{function}: gradients are given as a {type(grads).__name__}; pass what backward returned, a "
                        f"dict by name or by parameter, or nothing.")
    names = {p.id: name for name, p in params.items()}
    given: dict[str, Any] = {}
    for key, gradient in grads.items():
        name = names.get(key.id) if isinstance(key, Tensor) else key
        if not isinstance(name, str) or name not in params:
            called = repr(key) if not isinstance(key, Tensor) else (
                f"a tensor of shape {key.shape}" + (f" called {key.name!r}" if key.name else ""))
            more = f" and {len(params) - 8} more" if len(params) > 8 else ""
            raise ValueError(f"{function}: a gradient of {called} is given, which is no parameter here; there are "
                             f"{', '.join([*params][:8])}{more}.{nearest(name, params)}")
        if name in given:
            raise ValueError(f"{function}: two gradients of {name!r} are given, by name and by parameter; give one.")
        if gradient is not None and params[name].requires_grad:
            given[name] = gradient
    return given


def refuse_untrained(model: Any, params: Mapping[str, Tensor], function: str, elsewhere: Container[int] = ()) -> None:
    """Refuse a model with parameters beside `params`, and those with ids in `elsewhere`: they would not be trained."""
    mine = {p.id for p in params.values()}
    if model is None or (hasattr(model, "has_beside") and not model.has_beside(mine)):
        return
    others = [name for name, p in model.parameters().items() if p.id not in mine and p.id not in elsewhere]
    if others:
        raise ValueError(f"{function}: {', '.join(others[:8])} of the model came after the optimizer was made, which "
                         f"would not train {'it' if len(others) == 1 else 'them'}; make another optimizer, or "
                         f"begin another training, after parameters are added, replaced or unfrozen.")


def as_gradient(name: str, p: Tensor, gradient: object, function: str) -> Tensor:
    """A parameter's gradient as a tensor of the type that gradients have."""
    wanted = "f32" if p.buffer.dtype.is_half else p.dtype
    if not isinstance(gradient, Tensor):
        return ag_tensor(gradient, device=p.device, dtype=wanted)
    if gradient.dtype != wanted:
        raise DtypeError(f"{function}: the gradient of {name!r} has type {gradient.dtype}; {wanted} is required. "
                         f"Convert it with t.astype({wanted!r}).")
    return gradient


optimizer_adam = Adam
optimizer_adamw = AdamW
optimizer_sgd = SGD
