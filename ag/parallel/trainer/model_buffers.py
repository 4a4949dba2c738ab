"""Buffers of the replicas' models, such as running statistics, as one flat buffer that moves once in a step.

Every sample of a step begins with the same buffers, and the step moves them by the mean of all samples' movements.  A
running mean of 1.0, which two samples move to 1.2 and 1.6, moves by (0.2 + 0.6) / 2, to 1.4.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.tensor import Tensor
from ag.engine.backend import Backend
from ag.engine.buffer import Buffer
from ag.engine.dtype import DType
from ag.engine.kernels.elementwise import copy, sub
from ag.engine.primitive import Array
from ag.errors import CheckpointError
from ag.nn.layer import Model, buffers_of, load_into
from ag.optim.flat import FlatGroup

_NOTHING = np.zeros(0, np.float32)


class ReplicaBuffers:
    """The buffers of one replica's model that samples may move.

    Buffers of another type than the gradients are constants, and so are those that begin with infinities, as masks do.
    """

    def __init__(self, model: Model, backend: Backend, dtype: DType) -> None:
        self._model = model
        self._backend = backend
        self.tensors: dict[str, Tensor] = {}
        for name, x in buffers_of(model).items():
            held = x.buffer.backend is backend and x.buffer.dtype is dtype and np.isfinite(x.numpy()).all()
            if held and not any(x is other for other in self.tensors.values()):
                self.tensors[name] = x
        self.size, self.offsets = 0, dict[str, int]()
        self._start: Buffer | None = None  # values at the begin of every sample
        if self.tensors:
            group = FlatGroup(self.tensors)
            self.size, self.offsets = group.size, group.offsets
            self._values = group.values
            self._views = group.split(group.values)
            self._start = group.zeros()
            backend.assign(self._start, self._values)

    # -------------------------------------------------------------------------------------- a sample

    def begin(self) -> None:
        """Reset the model's buffers to those of the begin of the step."""
        self.go_on(self._start)

    def end(self, into: Buffer) -> None:
        """Write the movement of the buffers since `begin` to a flat buffer."""
        if self._start is not None:
            self._bind(keep=True)
            self._backend.launch(sub, self._values, self._start, into=into)

    def set_aside(self) -> Buffer | None:
        """Copy the buffers of a sample that pauses, for `go_on`."""
        if not self.tensors:
            return None
        self._bind(keep=True)
        aside: Buffer = self._backend.launch(copy, self._values)
        return aside

    def go_on(self, aside: Buffer | None) -> None:
        """Restore the buffers that `set_aside` returned."""
        if aside is not None:
            self._bind(keep=False)
            self._backend.launch(copy, aside, into=self._values)

    def _bind(self, keep: bool) -> None:
        """Rebind buffers that a layer has replaced to the flat buffer, with their values (`keep`) or those there."""
        current = buffers_of(self._model)
        for name, view in self._views.items():
            x = current.get(name)
            if x is not None and x.buffer is not view:
                if keep:
                    self._backend.launch(copy, x.buffer, into=view)
                x.rebind(view)

    # -------------------------------------------------------------------------------------- between steps

    def load(self, values: Array) -> None:
        """Start the next step with these values; does not wait."""
        if self._start is not None:
            self._backend.upload(values, self._start)
            self.begin()

    def changed_since(self, time: int) -> bool:
        """Return whether a buffer was set after `time` (`ag.engine.arena.now`)."""
        if self._start is None:
            return False
        current = buffers_of(self._model)
        return self._values.changed_since(time) or any(
            name in current and current[name].buffer is not view for name, view in self._views.items())

    def followed(self) -> Array:
        """Return `read` with what a callback has set."""
        if self.tensors:
            self._bind(keep=True)
        return self.read()

    def read(self) -> Array:
        """Return the values of all buffers in the flat layout; waits for the device."""
        if not self.tensors:
            return _NOTHING
        array: Array = self._backend.download(self._values)
        return array


class HostBuffers:
    """The host's copies of the buffers, with which all replicas begin a step; initially those of `replica`."""

    def __init__(self, replica: ReplicaBuffers, device: str) -> None:
        self._tensors = {name: ag_tensor(x.numpy(), device=device, dtype=x.dtype)
                         for name, x in replica.tensors.items()}
        self._group = FlatGroup(self._tensors) if self._tensors else None

    def move(self, by: Array) -> None:
        """Add the mean of the samples' movements, in the flat layout."""
        if self._group is not None:
            with np.errstate(all="ignore"):
                self.take(self.read() + by)

    def take(self, values: Array) -> None:
        """Replace the values, given in the flat layout."""
        if self._group is not None:
            self._group.backend.upload(values, self._group.values)

    def read(self) -> Array:
        """Return all buffers in the flat layout."""
        if self._group is None:
            return _NOTHING
        array: Array = self._group.backend.download(self._group.values)
        return array

    def state(self) -> dict[str, Array]:
        """Return the buffers by name."""
        return {name: x.numpy() for name, x in self._tensors.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Load what `state` returned; a CheckpointError says where names or shapes differ."""
        if self._tensors and not state:
            raise CheckpointError(f"dp_train: the checkpoint holds no buffers and the model has "
                                  f"{', '.join(self._tensors)}; it is of a version that did not keep them, so start "
                                  f"the job anew.")
        load_into(self._tensors, state, source="dp_train: the checkpoint")
