"""A world: the devices that train together, and the loop that trains a model on them.

In this version a world is one process, which is rank 0 of 1 and has all devices; the names are those of the programs
that have several.  Knows devices by name only; models know how they use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ag.data.dataloader import Batch
from ag.device import ag_synchronize, backend_of
from ag.errors import DeviceError
from ag.optim.adam import Adam
from ag.optim.optimizer import Optimizer
from ag.parallel.comm import Comm, SoloComm
from ag.parallel.pipeline import Pipeline
from ag.parallel.scatter import moved
from ag.tape import backward, with_grad_tape
from ag.tensor import Tensor
from ag.vulkan_devices import ag_vulkan_devices

__all__ = ["BACKENDS", "DistributedWorld", "train_distributed"]

BACKENDS = ("local",)


class DistributedWorld:
    """The devices that train together; made by `DistributedWorld.init`.

    Parameters
    ----------
    devices : sequence of str
        Devices, which may occur several times.

    Attributes
    ----------
    rank, size : int
        This process and how many there are: 0 and 1.
    devices : tuple of str
    comm : Comm
        The processes' communicator.

    Raises
    ------
    ValueError
        If there is no device.
    DeviceError
        If a device is not there.

    References
    ----------
    ML Odyssey ``DistributedWorld``.

    Examples
    --------
    >>> import ag
    >>> world = ag.DistributedWorld.init(devices=["cpu", "cpu:1"])
    >>> world.rank, world.size, world.devices
    (0, 1, ('cpu', 'cpu:1'))
    """

    def __init__(self, devices: Sequence[str]) -> None:
        if not devices:
            raise ValueError("DistributedWorld: devices is empty; name at least one device.")
        self.devices = tuple(backend_of(name).name for name in devices)
        self.comm: Comm = SoloComm()
        self.rank, self.size = self.comm.rank, self.comm.size

    @classmethod
    def init(cls, backend: str = "local", num_devices: int | None = None,
             devices: Sequence[str] | None = None) -> DistributedWorld:
        """A world of `devices`, or of the first `num_devices` Vulkan devices, or of all of these, or of the CPU.

        Raises
        ------
        ValueError
            If `backend` is not "local", there is no device, or both `devices` and `num_devices` are given.
        DeviceError
            If a device is not there, or there are fewer than `num_devices`.
        """
        if backend not in BACKENDS:
            raise ValueError(f"DistributedWorld.init: backend is {backend!r}; it must be 'local', which moves values "
                             f"between devices through the host.")
        if devices is not None:
            if num_devices is not None:
                raise ValueError("DistributedWorld.init: devices and num_devices are both given; give one of them.")
            return cls(devices)
        found = [info.name for info in ag_vulkan_devices()]
        if num_devices is not None and num_devices > len(found):
            raise DeviceError(f"DistributedWorld.init: num_devices is {num_devices} and there are {len(found)} Vulkan "
                              f"devices; name devices, of which one may occur several times, or use 'cpu'.")
        return cls((found or ["cpu"]) if num_devices is None else found[:num_devices])

    def barrier(self) -> None:
        """Wait until every device has done its work and every process is here."""
        for name in dict.fromkeys(self.devices):
            ag_synchronize(name)
        self.comm.barrier()

    def __repr__(self) -> str:
        return f"DistributedWorld(rank={self.rank}, size={self.size}, devices={list(self.devices)})"


def train_distributed(model: Any, data: Iterable[Any], world: DistributedWorld,
                      loss_fn: Callable[[Any, Any], Tensor] | None = None, optimizer: Optimizer | None = None,
                      epochs: int = 1) -> list[float]:
    """Train a model that is spread over the devices of a world.

    Parameters
    ----------
    model : DataParallel, ModelParallel, Pipeline, or any layer
    data : iterable of Batch, or of pairs of input and targets
        Such as `ag_dataloader`; passed through once per epoch.
    world : DistributedWorld
        Waited for at the end of every epoch.
    loss_fn : callable, optional
        ``loss_fn(output, targets)``: the mean loss.  Default: the model is called with input and targets and returns
        its loss.
    optimizer : Optimizer, optional
        Of the model's parameters; default: Adam.
    epochs : int, optional

    Returns
    -------
    list of float
        The loss of every step.

    Raises
    ------
    ValueError
        If there is no batch, or a `Pipeline` comes without `loss_fn`.

    References
    ----------
    ML Odyssey ``train_distributed``.

    Examples
    --------
    >>> import ag
    >>> world = ag.DistributedWorld.init(devices=["cpu", "cpu:1"])
    >>> model = ag.DataParallel(ag.ag_linear(2, 1), world.devices)
    >>> data = [(ag.ag_tensor([[1.0, 2.0], [3.0, 4.0]]), ag.ag_tensor([[1.0, 0.0]]))]
    >>> losses = ag.train_distributed(model, data, world, ag.ag_mse_loss, epochs=20)
    >>> losses[-1] < losses[0]
    True
    """
    if isinstance(model, Pipeline) and loss_fn is None:
        raise ValueError("train_distributed: a Pipeline needs loss_fn, as its last stage gets no targets.")
    optimizer = Adam(model.parameters()) if optimizer is None else optimizer
    losses: list[Tensor] = []
    for _ in range(epochs):
        for batch in data:
            x, y = (batch.x, batch.y) if isinstance(batch, Batch) else batch
            optimizer.zero_grad()
            losses.append(_step(model, x, y, loss_fn))
            optimizer.step()
        if not losses:
            raise ValueError("train_distributed: data has no batch; give at least one.")
        world.barrier()
    return [loss.item() for loss in losses]


def _step(model: Any, x: Any, y: Any, loss_fn: Callable[[Any, Any], Tensor] | None) -> Tensor:
    """The loss of a batch; gradients are added to the parameters."""
    if isinstance(model, Pipeline) and loss_fn is not None:
        return model.step(x, y, loss_fn)
    with with_grad_tape():
        if loss_fn is None:
            loss: Tensor = model(x, y)
        else:
            out = model(x)
            loss = loss_fn(out, moved(y, out.device) if isinstance(out, Tensor) else y)
    backward(loss)
    return loss
