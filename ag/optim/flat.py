"""The flat buffer: all parameters of a device and type in one, so that an optimizer step is one launch.

An optimizer adopts parameters: each tensor becomes a view of the flat buffer.  Float32, W of 6 elements, b of 3:

    W W W W W W . . b b b .      each begins at a multiple of 16 bytes; the padding is 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from ag.autograd.operands import lift
from ag.autograd.tensor import Tensor
from ag.engine.buffer import HOLDERS, Buffer, Device
from ag.engine.dtype import BF16, F32, F64, I32, DType
from ag.engine.interpreter import current
from ag.engine.kernels.convert import narrow, reconcile
from ag.engine.kernels.elementwise import copy
from ag.engine.kernels.optimizer import places_of
from ag.engine.primitive import Array
from ag.errors import DeviceError, DtypeError, ShapeError

ALIGN = 16  # bytes, so that every parameter starts where a vec4 may


def named_parameters(params: Any, function: str) -> dict[str, Tensor]:
    """Parameters by name, from a dict, a list or a model; a model's tied ones once, by the first name.

    In a list a name that several have is followed by the place, as of two networks that one optimizer trains.
    """
    if tied := hasattr(params, "parameters"):
        params = params.parameters()
    if callable(params):
        raise TypeError(f"{function}: params is a function; give what it returns, as in model.parameters().")
    if not isinstance(params, (Tensor, Iterable)):
        raise TypeError(f"{function}: params is {params!r:.60}; a model, a dict or a list of parameters is required.")
    listed = [params] if isinstance(params, Tensor) else [*params]
    called = [getattr(p, "name", None) for p in listed]
    times = Counter(called)
    pairs = [*params.items()] if isinstance(params, Mapping) else [
        (f"param{i}" if not name else name if times[name] == 1 else f"{name}_{i}", p)
        for i, (name, p) in enumerate(zip(called, listed, strict=True), 1)]
    named: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    for name, p in pairs:
        if not isinstance(p, Tensor) or not p.requires_grad or p.node is not None:
            kind = "computed tensor" if isinstance(p, Tensor) and p.requires_grad else type(p).__name__
            raise ValueError(f"{function}: {name!r} is a {kind}, not a parameter; make it with ag_param.")
        if tied and p.id in names:
            continue
        if p.id in names:
            raise ValueError(f"{function}: {name!r} and {names[p.id]!r} are the same tensor; list it once.")
        if name in named:
            raise ValueError(f"{function}: two different tensors are called {name!r}; give each its own name.")
        named[name] = p
        names[p.id] = name
    if not named:
        raise ValueError(f"{function}: there are no parameters; a model needs at least one ag_param.")
    return named


def flat_layout(sizes: Mapping[str, int], align: int = 1) -> tuple[dict[str, int], int]:
    """Return where each array starts and the last one ends: sizes of 6 and 3 aligned to 4 at 0 and 8, and at 12."""
    ends = [*accumulate((_padded(size, align) for size in sizes.values()), initial=0)]
    return dict(zip(sizes, ends, strict=False)), ends[-1]


def _padded(size: int, align: int) -> int:
    return -(-size // align) * align


class Run(NamedTuple):
    """A stretch of a flat buffer: its first element and length, and the first and number of its parameters."""

    start: int
    length: int
    first: int
    params: int


class FlatGroup:
    """Parameters of one device and element type in one flat buffer."""

    def __init__(self, params: Mapping[str, Tensor], continues: bool = False) -> None:
        self.params = dict(params)
        self.continues = continues  # the group before, whose flat buffer had no room for these
        first = next(iter(self.params.values())).buffer
        self.backend: Device = first.backend
        self.stored_dtype: DType = first.dtype
        self.dtype: DType = first.dtype.wide  # of `values` and of gradients
        self._align = ALIGN // self.stored_dtype.itemsize
        self.offsets, self.size = flat_layout({name: p.size for name, p in self.params.items()}, self._align)
        self.values = self.zeros()  # with all their digits
        # The parameters are views of `stored`, which is `values` unless they are of a 16-bit type.
        self.stored = self.values if self.dtype is self.stored_dtype else self.zeros(self.stored_dtype)
        views = self.split(self.stored)
        self._adopted = [(name, p, views[name]) for name, p in self.params.items()]
        self.adopt()
        self.take_changes()

    def zeros(self, dtype: DType | None = None) -> Buffer:
        """A flat buffer of zeros in this layout."""
        return self.backend.zeros((self.size,), dtype or self.dtype)

    def split(self, flat: Buffer) -> dict[str, Buffer]:
        """Views of a flat buffer, shaped like the parameters."""
        return {name: flat.view(p.shape, self.offsets[name]) for name, p in self.params.items()}

    def adopt(self, keep: bool = True) -> None:
        """Make the parameters views of `stored`, with the values they have now (`keep`) or with those there."""
        if (here := current()) is not None:
            here.uses([*self.params.values()], False)
        for name, p, view in self._adopted:
            if p.buffer is not view:
                if p.buffer.backend is not self.backend:
                    raise DeviceError(f"step: parameter {name!r} is on {p.device} and the optimizer's state on "
                                      f"{self.backend.name}; make the optimizer after moving the model.")
                if keep and here is None:
                    self.backend.assign(view, p.buffer)
                elif keep:  # as a launch, which a replay makes again
                    self.backend.launch(copy, p.buffer.words(), into=view.words())
                p.rebind(view)

    def changed_since(self, time: int) -> bool:
        """Return True if a parameter was set after `time`, in its memory here or by other memory."""
        return self.stored.changed_since(time) or self.values.changed_since(time) or any(
            p.buffer is not view for _, p, view in self._adopted)

    def take_changes(self) -> None:
        """Let `values` follow parameters of a 16-bit type that were assigned since `store`."""
        if self.stored is not self.values:
            self.backend.launch(reconcile, self.values, self.stored, bfloat=self.stored_dtype is BF16)

    def store(self) -> None:
        """Round `values` to the parameters, if these are of a 16-bit type."""
        if self.stored is not self.values:
            self.backend.launch(narrow, self.values, into=self.stored, bfloat=self.stored_dtype is BF16)

    def gather(self, grads: Mapping[str, Tensor], into: dict[str, Buffer]) -> None:
        """Copy gradients by parameter name into the views of a flat buffer."""
        for name, g in grads.items():
            view = into[name]
            if g.shape != view.shape:
                raise ShapeError(f"step: the gradient of {name!r} is {g.shape} and the parameter {view.shape}; "
                                 f"the shapes must be equal.")
            if g.buffer.backend is not self.backend:
                for device in (g.buffer.backend, self.backend):
                    device.check_open()
                raise DeviceError(f"step: the gradient of {name!r} is on {g.device} and the parameter on "
                                  f"{self.backend.name}; move it with ag_to_device.")
            self.backend.launch(copy, g.buffer, into=view)

    @property
    def spans(self) -> dict[str, tuple[int, int]]:
        """First element and length of each parameter, its padding included."""
        return {name: (self.offsets[name], _padded(p.size, self._align)) for name, p in self.params.items()}

    def runs(self, names: Collection[str]) -> list[Run]:
        """The stretches of the flat buffer that hold the named parameters of this group."""
        if len(names) == len(self.params):
            return [Run(0, self.size, 0, len(self.params))]
        runs: list[Run] = []
        for i, (name, (start, length)) in enumerate(self.spans.items()):
            if name not in names:
                continue
            if runs and runs[-1].first + runs[-1].params == i:
                last = runs[-1]
                runs[-1] = Run(last.start, last.length + length, last.first, last.params + 1)
            else:
                runs.append(Run(start, length, i, 1))
        return runs


def flat_groups(params: Mapping[str, Tensor]) -> list[FlatGroup]:
    """Parameters grouped by device and element type; what does not fit into one buffer there, `continues` it."""
    by_place: dict[tuple[str, DType], dict[str, Tensor]] = {}
    for name, p in params.items():
        by_place.setdefault((p.device, p.buffer.dtype), {})[name] = p
    return [FlatGroup(part, continues=i > 0) for group in by_place.values() for i, part in enumerate(_fitting(group))]


def _fitting(params: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Neighbours whose flat buffer the device can address; a parameter that needs more is alone."""
    first = next(iter(params.values())).buffer
    room = first.backend.arena.largest_block // first.dtype.wide.itemsize
    parts: list[dict[str, Tensor]] = []
    end = 0
    for name, p in params.items():
        length = _padded(p.size, ALIGN // first.dtype.itemsize)
        if not parts or end + length > room:
            parts.append({})
            end = 0
        parts[-1][name] = p
        end += length
    return parts


class DeviceState:
    """Device memory of one flat group: gradients, moments, settings, counts.

        settings   the learning rate and others, which only the host writes
        state      tickets | c1 c2 t | c1 c2 t | c1 c2 t      Adam's: the optimizer's counts, those of W, those of b
        state      tickets | t                                SGD's, which counts for no parameter

    The optimizer's counts move on with every step, those of a parameter when it has a gradient.
    """

    def __init__(self, group: FlatGroup, moments: tuple[str, ...], counts: int, each: bool,
                 settings: Sequence[float]) -> None:
        self.group = group
        self.grads = group.zeros()
        self.grad_views = group.split(self.grads)
        self.moments = {name: group.zeros() for name in moments}
        self._counts, self._each = counts, each
        rows = 1 + len(group.params) * each
        self.state = group.backend.zeros((1 + rows * counts,), group.dtype)
        self.settings = self._exact(len(settings))
        self.write_settings(settings)
        self.flats = [group.values, *self.moments.values()]  # given to update rules, as are `numbers`
        self.numbers = [self.state, self.settings]
        if each:
            places = places_of([*accumulate(length for _, length in group.spans.values())])
            self.numbers.append(group.backend.alloc(places.shape, I32))
            group.backend.upload(places, self.numbers[-1])
        self.zero, self.one = (lift(value, group.backend, group.dtype, "optimizer").buffer for value in (0.0, 1.0))
        HOLDERS[id(self)] = self

    def _exact(self, size: int) -> Buffer:
        """Memory for numbers with all their digits, where the device has such."""
        try:
            return self.group.backend.alloc((size,), F64)
        except DtypeError:
            return self.group.backend.alloc((size,), F32)

    def write_settings(self, settings: Sequence[float]) -> None:
        """Overwrite the settings; does not wait."""
        self.group.backend.refuse_while_recording("changes an optimizer's lr or another setting")
        rate = np.asarray(settings[0], self.group.dtype.numpy_name)  # every device steps with the same rate
        self.group.backend.upload(np.array([rate, *settings[1:]], np.float64), self.settings)

    def read_counts(self) -> tuple[Array, dict[str, Array]]:
        """The optimizer's own counts, and those of parameters, if each has some; waits for the device."""
        own, *rows = self.group.backend.download(self.state)[1:].reshape(-1, self._counts)
        return own, dict(zip(self.group.params, rows, strict=False))

    def count_as(self, other: DeviceState) -> None:
        """Take over the optimizer's own counts from another group of this device; does not wait."""
        theirs, mine = (slots.state.view((self._counts,), 1) for slots in (other, self))
        self.group.backend.launch(copy, theirs, into=mine)

    def change_counts(self, change: Callable[[Array], Array]) -> None:
        """Let a function of all rows, in float64, make new ones; waits for the device."""
        rows = self.group.backend.download(self.state)[1:].astype(np.float64).reshape(-1, self._counts)
        self._write(change(rows))

    def write_counts(self, own: Array, others: Mapping[str, Array]) -> None:
        """Overwrite the counts: the optimizer's own, and those of parameters that have others."""
        self._write(np.array([own, *(others.get(name, own) for name in self.group.params if self._each)]))

    def _write(self, rows: Array) -> None:
        self.group.backend.refuse_while_recording("changes an optimizer's state")
        self.group.backend.upload(np.concatenate([[0.0], rows.reshape(-1)]), self.state)

    def per_parameter(self) -> dict[str, Buffer]:
        """Views of everything that is kept for each parameter's elements, by its name in a state dict."""
        flats = dict(self.moments)
        if self.group.stored is not self.group.values:
            flats["master"] = self.group.values
        return {f"{kind}.{name}": view for kind, flat in flats.items() for name, view in self.group.split(flat).items()}
