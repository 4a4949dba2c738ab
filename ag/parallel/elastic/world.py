"""A world: the devices that train together.

In this version a world is one process, which is rank 0 of 1 and has all devices; the names are those of programs with
several.  Knows names of devices and a communicator; models know how they use devices.  Users and configuration files
make it, and `train_distributed` waits at its barrier.
"""

from __future__ import annotations

from collections.abc import Sequence

from ag.engine.device import ag_synchronize, backend_of
from ag.engine.devices import default_devices
from ag.engine.registry import accelerator_titles, list_devices
from ag.errors import DeviceError
from ag.parallel.comm.comm import Comm, SoloComm

__all__ = ["DistributedWorld"]


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
        `train_distributed` puts another one in the place of a device that fails.
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
        """A world of `devices`, of the first `num_devices` accelerators, of all of these, or of the default device.

        Raises
        ------
        ValueError
            If `backend` is not "local", there is no device, or both `devices` and `num_devices` are given.
        DeviceError
            If a device is not there, or there are fewer than `num_devices`.
        """
        if backend != "local":
            raise ValueError(f"DistributedWorld.init: backend is {backend!r}; it must be 'local', which moves values "
                             f"between devices through the host.")
        if devices is not None:
            if num_devices is not None:
                raise ValueError("DistributedWorld.init: devices and num_devices are both given; give one of them.")
            return cls(devices)
        there_are = len(list_devices(accelerators_only=True))
        if num_devices is not None and num_devices > there_are:
            raise DeviceError(f"DistributedWorld.init: num_devices is {num_devices} and there are {there_are} "
                              f"{accelerator_titles()} devices; name devices, of which one may occur several times, or "
                              f"use 'cpu'.")
        return cls(default_devices(num_devices))

    def barrier(self) -> None:
        """Wait until every device has done its work and every process is here."""
        for name in dict.fromkeys(self.devices):
            ag_synchronize(name)
        self.comm.barrier()

    def __repr__(self) -> str:
        return f"DistributedWorld(rank={self.rank}, size={self.size}, devices={list(self.devices)})"
