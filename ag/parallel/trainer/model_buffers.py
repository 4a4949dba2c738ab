"""The buffers of the replicas' models, such as batch norm's running statistics, as one flat buffer that moves once in a
step.

Every sample of a step begins with the same buffers.  How far it moves them stands behind its gradients in its row and
is summed as these are, and the step moves the buffers by the mean of all samples.  A running mean of 1.0, which two
samples move to 1.2 and 1.6, moves by (0.2 + 0.6) / 2, to 1.4: it depends neither on the replicas that have the samples
nor on their order.

Knows buffers of models and flat arrays; neither gradients nor weights.  A replica makes a `ReplicaBuffers`, the trainer
the `HostBuffers`.
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

__all__ = ["HostBuffers", "ReplicaBuffers"]

_NOTHING = np.zeros(0, np.float32)


class ReplicaBuffers:
    """The buffers of one replica's model that samples may move.

    Parameters
    ----------
    model : object
    backend : Backend
        Of the replica.
    dtype : DType
        Of its gradients.

    Attributes
    ----------
    tensors : dict of str to Tensor
    size : int
        Elements of the flat buffer.
    offsets : dict of str to int
        First element of each.

    Notes
    -----
    Buffers of another type are constants, and so are those that begin with infinities, as masks do: the difference of
    two is no number.
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
        self._start: Buffer | None = None  # what every sample begins with
        if self.tensors:
            group = FlatGroup(self.tensors)
            self.size, self.offsets = group.size, group.offsets
            self._values = group.values
            self._views = group.split(group.values)
            self._start = group.zeros()
            backend.assign(self._start, self._values)

    # -------------------------------------------------------------------------------------- a sample

    def begin(self) -> None:
        """Give the model the buffers that the step began with."""
        self.go_on(self._start)

    def end(self, into: Buffer) -> None:
        """Put into a flat buffer how far the model has moved its buffers since `begin`."""
        if self._start is not None:
            self._bind(keep=True)
            self._backend.launch(sub, self._values, self._start, into=into)

    def set_aside(self) -> Buffer | None:
        """A copy of the buffers of a sample that pauses, to `go_on` with after other samples have used the model."""
        if not self.tensors:
            return None
        self._bind(keep=True)
        aside: Buffer = self._backend.launch(copy, self._values)
        return aside

    def go_on(self, aside: Buffer | None) -> None:
        """Give the model the buffers that `set_aside` returned."""
        if aside is not None:
            self._bind(keep=False)
            self._backend.launch(copy, aside, into=self._values)

    def _bind(self, keep: bool) -> None:
        """Make the model's buffers views of the flat buffer, with their own values (`keep`) or with those there.

        A layer may have replaced a tensor (``self.average = 0.9 * self.average + ...``).
        """
        current = buffers_of(self._model)
        for name, view in self._views.items():
            x = current.get(name)
            if x is not None and x.buffer is not view:
                if keep:
                    self._backend.launch(copy, x.buffer, into=view)
                x.rebind(view)

    # -------------------------------------------------------------------------------------- between steps

    def load(self, values: Array) -> None:
        """Begin the next step with these values; does not wait."""
        if self._start is not None:
            self._backend.upload(values, self._start)
            self.begin()

    def changed_since(self, time: int) -> bool:
        """Whether somebody has set one of them after `time` (`ag.engine.arena.now`)."""
        if self._start is None:
            return False
        current = buffers_of(self._model)
        return self._values.changed_since(time) or any(
            name in current and current[name].buffer is not view for name, view in self._views.items())

    def followed(self) -> Array:
        """`read`, after somebody else may have set them."""
        if self.tensors:
            self._bind(keep=True)
        return self.read()

    def read(self) -> Array:
        """The values of all buffers, in the flat layout; waits for the device."""
        if not self.tensors:
            return _NOTHING
        array: Array = self._backend.download(self._values)
        return array


class HostBuffers:
    """The host's copies of the buffers, which all replicas begin a step with.

    Parameters
    ----------
    replica : ReplicaBuffers
        Whose values they have at first.
    device : str
        Of the host.
    """

    def __init__(self, replica: ReplicaBuffers, device: str) -> None:
        self._tensors = {name: ag_tensor(x.numpy(), device=device, dtype=x.dtype)
                         for name, x in replica.tensors.items()}
        self._group = FlatGroup(self._tensors) if self._tensors else None

    def move(self, by: Array) -> None:
        """Move all buffers, given the mean of the samples' movements in the flat layout."""
        if self._group is not None:
            with np.errstate(all="ignore"):
                self.take(self.read() + by)

    def take(self, values: Array) -> None:
        """Go on with other values, in the flat layout."""
        if self._group is not None:
            self._group.backend.upload(values, self._group.values)

    def read(self) -> Array:
        """All buffers, in the flat layout."""
        if self._group is None:
            return _NOTHING
        array: Array = self._group.backend.download(self._group.values)
        return array

    def state(self) -> dict[str, Array]:
        """The buffers by name."""
        return {name: x.numpy() for name, x in self._tensors.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Take over what `state` returned.

        Raises
        ------
        CheckpointError
            If names or shapes differ.
        """
        if self._tensors and not state:
            raise CheckpointError(f"dp_train: the checkpoint holds no buffers and the model has "
                                  f"{', '.join(self._tensors)}; it is of a version that did not keep them, so start "
                                  f"the job anew.")
        load_into(self._tensors, state, source="dp_train: the checkpoint")
