"""A world: the processes and the devices that train together.

A world of the backend "local" is one process, rank 0 of 1, with all devices.  One of the backend "mpi" has the
processes that mpiexec has started, each with a share of its host's devices.  Of two ranks on a host with three cards,
rank 0 has two.  The same program started alone is a world of one, and does not load MPI.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from ag.engine.device import ag_default_device, ag_synchronize, backend_of, cards, default_devices, prefer, was_named
from ag.engine.registry import accelerator_titles, families
from ag.errors import CommError, DeviceError
from ag.names import Making
from ag.parallel.comm.comm import Comm, SoloComm
from ag.parallel.comm.mpi_settings import started_by_launcher
from ag.parallel.comm.tree_reduction import shard_sizes
from ag.version import install_line

BACKENDS = ("local", "mpi")


class DistributedWorld:
    """The processes and devices that train together; made by `DistributedWorld.init`.

    Reference: ML Odyssey ``DistributedWorld``; ResNetImageNet.jl and `torch.distributed` for ``local_rank``.

    Parameters
    ----------
    devices : sequence of str
        Devices of this process, which may occur several times.
    comm : Comm, optional
        The processes' communicator; default: this process is alone.
    min_ranks : int, optional
        With how many ranks at least the training goes on.

    Attributes
    ----------
    rank, size, local_rank, local_size : int
        This process and how many there are; the same among those on this host.
    host : str
        Its name.
    devices : tuple of str
        `train_distributed` puts another one in the place of a device that fails.

    Raises
    ------
    ValueError, DeviceError
        If there is no device, or one is not there.
    CommError
        If there are fewer than `min_ranks`.

    Examples
    --------
    >>> import ag
    >>> world = ag.DistributedWorld.init(devices=["cpu", "cpu:1"])
    >>> world.rank, world.size, world.devices
    (0, 1, ('cpu', 'cpu:1'))
    """

    __signature__ = Making()

    def __init__(self, devices: Sequence[str], comm: Comm | None = None, min_ranks: int = 1) -> None:
        if not devices:
            raise ValueError("DistributedWorld: devices is empty; name at least one device.")
        self.devices = tuple(_backend_name(name) for name in devices)
        self.join(SoloComm() if comm is None else comm)
        self.min_ranks = min_ranks
        if not 1 <= min_ranks <= self.size:
            raise CommError(f"DistributedWorld: there are {self.size} ranks, and min_ranks is {min_ranks}; start as "
                            f"many at least, or ask for fewer.")

    @classmethod
    def init(cls, backend: str = "local", num_devices: int | None = None, devices: Sequence[str] | None = None,
             timeout: float | None = None, min_ranks: int = 1) -> DistributedWorld:
        """Return the world that this program is part of.

        Parameters
        ----------
        backend : {"local", "mpi"}, optional
            "mpi": the processes that ``mpiexec`` or ``python -m ag launch`` has started, which all make this call; a
            program that was started alone is a world of one.
        num_devices : int, optional
            The first so many of the cards: of this host, or of this rank's share of them.
        devices : sequence of str, optional
            The devices of this rank; default: the one that `ag_device` was given, else all cards, or its share of those
            of its host, of which none is given to two ranks; without any, the CPU.  The first of several ranks'
            is the default device there, if none was named.
        timeout : float, optional
            Seconds after which a rank that waits for another one gives up; default: 900.
        min_ranks : int, optional
            With how many ranks at least the training goes on.

        Raises
        ------
        ValueError
            If `backend` is another one, `timeout` is not positive, there is no device, or both `devices` and
            `num_devices` are given.
        DeviceError
            If a device is not there, or there are fewer than `num_devices`.
        CommError, ImportError
            If the other ranks do not come or are too few, or mpi4py is missing under mpiexec.
        """
        if backend not in BACKENDS:
            raise ValueError(f"DistributedWorld.init: backend is {backend!r}; it must be 'local', which moves values "
                             f"between the devices of one process through the host, or 'mpi', which does so between "
                             f"processes, too.{other_name(backend)}")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"DistributedWorld.init: timeout is {timeout}; a positive number of seconds is required.")
        if devices is not None and num_devices is not None:
            raise ValueError("DistributedWorld.init: devices and num_devices are both given; give one of them.")
        comm = _mpi(timeout) if backend == "mpi" and started_by_launcher() else SoloComm()
        world = cls(_share(comm, num_devices) if devices is None else devices, comm, min_ranks)
        if world.size > 1 and not was_named():
            prefer(world.devices[0])  # what is made without a device is not to lie on another rank's card
        return world

    def join(self, comm: Comm) -> None:
        """Become a rank of this group, such as that of the ranks that are left."""
        self.comm: Comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.host = comm.hosts[self.rank]
        self.local_rank = comm.hosts[: self.rank].count(self.host)
        self.local_size = comm.hosts.count(self.host)

    def barrier(self) -> None:
        """Wait until every device has done its work and every process is here."""
        for name in dict.fromkeys(self.devices):
            ag_synchronize(name)
        self.comm.barrier()

    def __repr__(self) -> str:
        return f"DistributedWorld(rank={self.rank}, size={self.size}, devices={list(self.devices)})"


def _mpi(timeout: float | None) -> Comm:
    try:
        from ag.parallel.comm.mpi import mpi_comm

        return mpi_comm() if timeout is None else mpi_comm(timeout)
    except ImportError as error:
        raise ImportError(f"DistributedWorld.init: this process was started by mpiexec, and mpi4py cannot be loaded "
                          f"({error}); install it by {install_line('mpi')}, or give backend='local'.") from error


def _share(comm: Comm, count: int | None) -> list[str]:
    """Return the devices of this rank: a part of its host's cards, in the order of the ranks."""
    host = comm.hosts[comm.rank]
    if comm.hosts.count(host) == 1 and count is None:
        return default_devices()
    names = cards()
    ends = [0, *accumulate(shard_sizes(len(names), [1.0] * comm.hosts.count(host)))]
    mine = [names[a:b] for a, b in pairwise(ends)][comm.hosts[: comm.rank].count(host)]
    if count is not None and count > len(mine):
        whose = "for this rank" if comm.hosts.count(host) > 1 else "there"
        raise DeviceError(f"DistributedWorld.init: num_devices is {count} and there are {len(mine)} "
                          f"{accelerator_titles()} devices {whose}; name devices, of which one may occur several "
                          f"times, or use 'cpu'.")
    return mine[:count] or [ag_default_device() if was_named() else "cpu"]


def _backend_name(name: str) -> str:
    try:
        return backend_of(name).name
    except DeviceError as error:
        raise DeviceError(f"{error}{other_name(name)}") from error


def other_name(name: object) -> str:
    """Say, as the end of an error, what a backend or device of another library is called here; or ""."""
    word, _, number = str(name).partition(":")
    if word in ("nccl", "gloo", "rccl", "ucc", "xccl"):
        return f" Write 'mpi' instead of {name!r}: ranks exchange gradients through their hosts' memory."
    family = next((family for family in families() if family.is_accelerator), None)
    if word in ("cuda", "rocm", "hip", "xpu", "mps") and family is not None:
        device = family.device_name(int(number) if number.isdigit() else 0)
        return f" Write {device!r} instead of {name!r}: graphics cards of every make are {family.title} devices."
    return ""
