"""Training described in a YAML file: read with the safe loader, and every mistake named with its line.

The keys are those of ML Odyssey's ``distributed`` section, and the settings of checkpoints and recovery.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from ag.engine.device import backend_of
from ag.errors import DeviceError
from ag.names import Making
from ag.nn.layer import Layer
from ag.parallel.elastic.world import BACKENDS, DistributedWorld, other_name
from ag.parallel.replicas.data_parallel import DataParallel
from ag.parallel.sharded.model_parallel import ModelParallel
from ag.parallel.sharded.pipeline import Pipeline

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
    checkpoint : str, or None
        File for the job's state; None: a device that fails ends the job.
    checkpoint_every : int, or None
        After how many steps; None: after every epoch.
    max_restarts : int
        How often the job goes on without a device or a rank that failed.
    timeout : float, or None
        Seconds to wait for another rank; None: 900.
    min_ranks : int
        With how many ranks at least the job goes on.

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
        A file with a section ``distributed``, in which the attributes of `Config` may be given.

    Returns
    -------
    Config
        With these as attributes, ``world()``, ``parallel(model, world)``, and ``checkpoints()``, which are arguments of
        `train_distributed`.

    Raises
    ------
    ValueError
        If the file is no YAML, or has an unknown key or a wrong value; all of them are named, with their lines.
    FileNotFoundError
        If there is no such file.

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
