"""A world: the processes and the devices that train together, also as a YAML file describes it.

A world of the backend "local" is one process; one of "mpi" has those that mpiexec has started.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ag.engine.device import ag_default_device, ag_synchronize, backend_of, cards, default_devices, prefer, was_named
from ag.engine.registry import accelerator_titles, families
from ag.errors import CommError, DeviceError
from ag.names import Making
from ag.nn.layer import Layer
from ag.parallel.comm.comm import Comm, SoloComm
from ag.parallel.comm.mpi_settings import started_by_launcher
from ag.parallel.comm.tree_reduction import shard_sizes
from ag.parallel.replicas.data_parallel import DataParallel
from ag.parallel.sharded.pipeline import ModelParallel, Pipeline
from ag.version import install_line

BACKENDS = ("local", "mpi")


class DistributedWorld:
    """The processes and devices that train together; made by `DistributedWorld.init`.

    Reference: ML Odyssey ``DistributedWorld``; ResNetImageNet.jl and `torch.distributed` for ``local_rank``.

    Parameters
    ----------
    devices : sequence of str
        Devices of this process, which may occur several times.
    comm, min_ranks : Comm and int, optional
        The processes' communicator, by default of this one alone; with how many ranks at least the training goes on.

    Attributes
    ----------
    rank, size, local_rank, local_size, host : int, and str
        This process and how many there are; the same among those on this host, and its name.
    devices : tuple of str
        `train_distributed` puts another one in the place of a device that fails.

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
        ValueError, DeviceError
            If an argument is none of these, or a device is not there.
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


STRATEGIES: dict[str, Callable[[Any, tuple[str, ...]], Layer]] = {
    "data_parallel": DataParallel,
    "model_parallel": lambda layers, devices: ModelParallel(layers, "auto", devices),
    "pipeline": lambda stages, devices: Pipeline(stages, devices),
}
Node = Any  # of PyYAML, which has no type information
_NULL, _TEXT = "tag:yaml.org,2002:null", "tag:yaml.org,2002:str"


class _Kind(NamedTuple):
    """Texts that a value may have, what is made of them, and how messages say so."""

    pattern: str
    made: Callable[[str], Any]
    required: str


def _one_of(*names: str) -> _Kind:
    return _Kind("|".join(names), str, " or ".join(names))


# Whole numbers with zeros in front are refused, as some take them for octal ones.
_FROM_0 = _Kind("0|[1-9][0-9]{0,17}", int, "a whole number of at least 0")
_FROM_1 = _Kind("[1-9][0-9]{0,17}", int, "a whole number of at least 1")
_KINDS = {
    "strategy": _one_of(*STRATEGIES), "backend": _one_of(*BACKENDS), "gradient_sync": _one_of("all_reduce"),
    "checkpoint": _Kind(".+", str, "the name of a file, in quotes if it looks like something else"),
    "checkpoint_every": _FROM_1, "max_restarts": _FROM_0, "min_ranks": _FROM_1,
    "timeout": _Kind(r"(?=.*[1-9])(0|[1-9][0-9]{0,8})(\.[0-9]{1,9})?", float, "a number of seconds above 0"),
}


@dataclass(frozen=True)
class Config:
    """The contents of a configuration file, checked; `load_config` says where they are used.

    Attributes
    ----------
    strategy : {"data_parallel", "model_parallel", "pipeline"}
    devices : tuple of str, or None
        None: every graphics card, or the CPU.
    backend : {"local", "mpi"}
    gradient_sync : {"all_reduce"}
    checkpoint, checkpoint_every, max_restarts
        As of `train_distributed`.
    timeout, min_ranks
        As of `DistributedWorld.init`.

    Examples
    --------
    >>> import ag
    >>> ag.parallel.Config(devices=("cpu", "cpu:1")).world().devices
    ('cpu', 'cpu:1')
    """

    __signature__ = Making()
    strategy: str = "data_parallel"
    devices: tuple[str, ...] | None = None
    backend: str = "local"
    gradient_sync: str = "all_reduce"
    checkpoint: str | None = None
    checkpoint_every: int | None = None
    max_restarts: int = 3
    timeout: float | None = None
    min_ranks: int = 1

    def world(self) -> DistributedWorld:
        """Make the world of the processes and devices."""
        return DistributedWorld.init(self.backend, devices=self.devices, timeout=self.timeout, min_ranks=self.min_ranks)

    def parallel(self, model: Any, world: DistributedWorld) -> Layer:
        """Spread a model, or its layers or stages, over the world as the strategy says."""
        return STRATEGIES[self.strategy](model, world.devices)

    def checkpoints(self) -> dict[str, Any]:
        """Return the file's arguments of `train_distributed`."""
        return {"checkpoint": self.checkpoint, "checkpoint_every": self.checkpoint_every,
                "max_restarts": self.max_restarts}


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read a YAML file that says how to train.

    Reference: ML Odyssey ``configs/distributed/config.yaml``.

    Parameters
    ----------
    path : path
        A file with a section ``distributed``, in which the attributes of `parallel.Config` may be given.

    Returns
    -------
    Config

    Raises
    ------
    ValueError, FileNotFoundError
        If the file is no YAML, or has an unknown key or a wrong value; all of them are named, with their lines.

    Examples
    --------
    >>> import ag, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "config.yaml")
    >>> _ = path.write_text("distributed:\\n  strategy: data_parallel\\n  devices: [cpu, 'cpu:1']\\n")
    >>> config = ag.load_config(path)
    >>> config.parallel(ag.ag_linear(2, 1), config.world()).device_ids
    ('cpu', 'cpu:1')
    """
    import yaml  # here, as `import ag` should not wait for it

    with open(path, "rb") as file:
        content = file.read()
    try:
        root = yaml.compose(content.decode(), yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"load_config: {os.fsdecode(path)} is not YAML: {_said(error, content)}; a section "
                         f"distributed with keys is required.") from error
    except RecursionError as error:
        raise ValueError(f"load_config: {os.fsdecode(path)} has too many lists or mappings inside each other; a "
                         f"section distributed with keys is required.") from error
    reader = _Reader()
    sections = reader.mapping(root, "the file", ("distributed",))
    values = reader.mapping(sections["distributed"], "distributed", tuple(f.name for f in fields(Config))) if (
        "distributed" in sections) else {}
    read = {key: reader.value(key, node) for key, node in values.items()}
    if read.get("checkpoint_every") is not None and read.get("checkpoint") is None:
        reader.wrong(values["checkpoint_every"], "checkpoint_every needs checkpoint, which names the file")
    if not reader.faults and not values:
        reader.faults.append("line 1: there is no section distributed with keys in the file")
    if reader.faults:
        raise ValueError(f"load_config: {os.fsdecode(path)}: " + "; ".join(reader.faults) + ".")
    return Config(**read)


def _said(error: Exception, content: bytes) -> str:
    mark = getattr(error, "problem_mark", None)
    if isinstance(error, UnicodeDecodeError):
        line, text = content[: error.start].count(b"\n"), f"the byte {error.object[error.start]:#04x} is no UTF-8"
    elif mark is not None:
        line, text = mark.line, getattr(error, "problem", None) or "it cannot be read"
    else:  # a character that may not be there
        line = content.decode()[: getattr(error, "position", 0)].count("\n")
        text = getattr(error, "reason", "it cannot be read")
    return f"line {line + 1}: {text}"


class _Reader:
    """Walks through the nodes of a file and collects faults."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def wrong(self, node: Node, text: str) -> None:
        self.faults.append(f"line {node.start_mark.line + 1}: {text}")

    def must(self, key: str, node: Node, required: str) -> None:
        self.wrong(node, f"{key} is {_shown(node)}; it must be {required}")

    def mapping(self, node: Node, name: str, known: tuple[str, ...]) -> dict[str, Node]:
        if node is None:
            return {}
        if node.id != "mapping":
            self.wrong(node, f"{name} must be keys with values")
            return {}
        values: dict[str, Node] = {}
        for key, value in node.value:
            if key.value not in known:
                self.wrong(key, f"unknown key {_shown(key)} in {name}; known are {', '.join(known)}")
            elif key.value in values:
                self.wrong(key, f"{key.value} is given twice")
            else:
                values[key.value] = value
        return values

    def value(self, key: str, node: Node) -> Any:
        if node.tag == _NULL and getattr(Config, key) is None:
            return None
        if key == "devices":
            return self.devices(node)
        kind, text = _KINDS[key], node.value if node.id == "scalar" else ""
        if re.fullmatch(kind.pattern, text) and (key != "checkpoint" or (node.tag == _TEXT and text.isprintable())):
            return kind.made(text)
        self.must(key, node, kind.required + (_instead(node) if kind.made is str else ""))
        return text

    def devices(self, node: Node) -> tuple[str, ...]:
        if node.id != "sequence" or not node.value:
            self.must("devices", node, "a list of at least one device")
            return ()
        for item in node.value:
            try:
                backend_of(item.value if item.id == "scalar" else "")
            except DeviceError as error:
                self.wrong(item, f"device {_shown(item)}: {str(error).removesuffix('.')}{_instead(item)}")
        return tuple(str(item.value) for item in node.value)


def _instead(node: Node) -> str:
    text = other_name(node.value).removesuffix(".") if node.id == "scalar" else ""
    return f".{text}" if text else ""


def _shown(node: Node) -> str:
    return repr(node.value) if node.id == "scalar" else f"a {node.id}"
