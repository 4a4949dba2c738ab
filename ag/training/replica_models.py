"""The models of the replicas of one model that is there already: the model itself, and copies of it.

    devices ["vulkan:0", "cpu"]     model -> moves to vulkan:0, is replica 0     a copy of it on cpu is replica 1

So the model that the user has is the one that trains.  Knows models and devices by name; not how they train.  `fit` and
`find_lr` give `make` to `dp_train`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

from ag.autograd.tape import no_grad
from ag.autograd.tensor import Tensor
from ag.engine.device import ag_default_device, canonical
from ag.nn.layer import state_of
from ag.nn.mode import objects_in
from ag.ops.convert import ag_to_device
from ag.training.measuring import Trained, device_of

__all__ = ["ReplicaModels"]


class ReplicaModels:
    """Models for `dp_train` to begin with.

    Parameters
    ----------
    function : str
        For messages.
    model : Trained
    devices : sequence of str or None
        None: where the model is.
    own : bool, optional
        Whether the first replica is the model itself.

    Attributes
    ----------
    devices : list of str

    Raises
    ------
    TypeError
        If `devices` is no list of names.
    ValueError
        If it is empty.
    """

    def __init__(self, function: str, model: Trained, devices: Sequence[str] | None, own: bool = True) -> None:
        listed = isinstance(devices, Sequence) and not isinstance(devices, str)
        if devices is not None and not (listed and all(isinstance(name, str) for name in devices)):
            raise TypeError(f"{function}: devices is {devices!r:.60}; a list of names is required, such as "
                            f"['cpu', 'cpu:1'].")
        if devices is not None and not devices:
            raise ValueError(f"{function}: devices is empty; name at least one.")
        self._model, self._gives_own = model, own
        self.devices = [device_of(model)] if devices is None else [canonical(name) for name in devices]

    def make(self) -> Trained:
        """The model of the next replica, on the default device: first the model itself, then copies."""
        model = self._model if self._gives_own else copy.deepcopy(self._model)
        self._gives_own = False
        with no_grad():
            for x in _tensors(model):
                if x.device != ag_default_device():
                    x.rebind(ag_to_device(x, ag_default_device()).buffer)
        return model

    def finish(self, trained: Trained) -> None:
        """Let the model have what another replica has, if its own device was lost."""
        if trained is not self._model:
            theirs = state_of(trained)
            for name, x in state_of(self._model).items():
                x.rebind(theirs[name].buffer)


def _tensors(model: Trained) -> Iterator[Tensor]:
    """All tensors in a model, also those that are no state."""
    return (x for x in objects_in(model) if isinstance(x, Tensor))
