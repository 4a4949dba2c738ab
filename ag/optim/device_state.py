"""What an optimizer keeps on a device for one flat group: gradients, moments, settings, counts.

    settings   what the update rule reads and only the host writes: the learning rate first
    state      tickets | c1 c2 t | c1 c2 t | c1 c2 t      Adam's: a row of its own, one for W, one for b
    state      tickets | t                                SGD's, which needs no count for each parameter

A row of counts moves on when its parameter has a gradient, the first one with every step.  Knows flat groups; no
update rule and no name of a setting.  `Optimizer` has one for each of its groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from ag.autograd.create import lift
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32, F64, I32
from ag.engine.kernels.elementwise import copy
from ag.engine.kernels.optimizer import places_of
from ag.engine.primitive import Array
from ag.errors import DtypeError
from ag.optim.flat import FlatGroup

__all__ = ["DeviceState"]


class DeviceState:
    """Device memory of one flat group.

    Attributes
    ----------
    group : FlatGroup
    grads : Buffer
        Flat gradients; `grad_views` are its parts by parameter name.
    moments : dict of str to Buffer
    state, settings : Buffer
    flats, numbers : list of Buffer
        What update rules are given: values and moments; state, settings and, if they count for each parameter, which
        elements are whose.
    zero, one : Buffer
        Constants.
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
        self.flats = [group.values, *self.moments.values()]
        self.numbers = [self.state, self.settings]
        if each:
            sizes = np.array([length for _, length in group.spans.values()])
            places = places_of(list(accumulate(sizes.tolist())))
            self.numbers.append(group.backend.alloc(places.shape, I32))
            group.backend.upload(places, self.numbers[-1])
        self.zero, self.one = (lift(value, group.backend, group.dtype, "optimizer").buffer for value in (0.0, 1.0))

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
