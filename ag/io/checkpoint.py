"""Model files, which say in JSON how to build a model, and checkpoints: no code runs, and all is loaded or nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from math import isfinite, prod
from operator import index
from typing import Any, Protocol, TypeVar, cast, overload, runtime_checkable

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.device import ag_device, same_default
from ag.engine.dtype import DType
from ag.engine.kernels.convert import BFLOAT16
from ag.engine.primitive import Array
from ag.engine.random import generator_snapshot, restore_generator
from ag.engine.shape import counts
from ag.errors import CheckpointError, DtypeError
from ag.io.safetensors_file import element_type, elements_of, read_file, to_json, write_file
from ag.nn.layer import LIBRARY, Layer, Model, load_into, named_tensors, refuse_untied, ties
from ag.nn.mode import ag_eval
from ag.optim.optimizer import Optimizer

__all__ = ["Checkpoint", "Stateful", "ag_load_checkpoint", "ag_load_model", "ag_save_checkpoint", "ag_save_model"]

M = TypeVar("M", bound=Model)
T = TypeVar("T")

_MODEL, _CHECKPOINT = "ag-model-1", "ag-checkpoint-1"
_PREFIXES = {_CHECKPOINT: ("model.",), "ag-dp-train-1": ("weight.", "buffer.")}  # how a model's names begin
_DEEPEST = 100  # blocks inside blocks; far from Python's recursion limit, whatever called
LARGEST_RATE = float(np.finfo(np.float32).max)  # devices hold rates in float32


def ag_save_model(model: Model, path: str | os.PathLike[str], model_fn: Callable[[], Model] | None = None) -> None:
    """Save a model's parameters and buffers, and how to build it if it is made of this library's layers.

    Frozen tensors are left out: load the file with a `model_fn` that makes them.
    Reference: ggmlR ``ag_save_model`` (which stores a function and runs it on load).

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
    path : path
        File to write; replaced only once the new one is complete.
    model_fn : callable, optional
        The factory you will load with, called once: a CheckpointError says that it builds others.  Not stored.

    Examples
    --------
    >>> import ag, tempfile
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> ag.ag_save_model(ag.ag_linear(2, 1), path)
    >>> ag.ag_load_model(path).W.shape
    (1, 2)
    """
    check_arguments("ag_save_model(model, path)", path, model)
    tensors = named_tensors(model)
    if model_fn is not None:
        built = named_tensors(_made_by(model_fn, "ag_save_model"))
        if _outline(built) != _outline(tensors):
            raise CheckpointError(f"ag_save_model: model_fn builds {_outline(built)}, and the model has "
                                  f"{_outline(tensors)}; they must be the same.")
    try:
        config = json.dumps(_description(model) if isinstance(model, Layer) and _known(model) else None)
    except RecursionError:  # nested too deep to be described: `ag_load_model` asks for model_fn
        config = "null"
    write_file(path, {name: elements_of(x) for name, x in tensors.items()},
               {"format": _MODEL, "model": config, "tied": json.dumps(ties(tensors))}, "ag_save_model")


def check_arguments(call: str, path: object, *models: object) -> None:
    """Raise a TypeError for a path or a model that is none; `call` shows the order, as "ag_save_model(model, path)"."""
    function = call.partition("(")[0]
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{function}: path is a {type(path).__name__}; the name of a file is required, as in {call}.")
    for model in models:
        if isinstance(model, type) or not callable(getattr(model, "parameters", None)):
            what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
            raise TypeError(f"{function}: model is {what}; a layer is required, or an object with parameters(), as in "
                            f"{call}.")


def unwrapped(model: T) -> T:
    """Return the model inside a `DataParallel`, whose tensors have its names; any other model as it is."""
    inside: T = getattr(model, "wrapped_module", model)
    return inside


def _made_by(model_fn: object, function: str) -> Model:
    if not callable(model_fn) or isinstance(model_fn, Layer):
        raise TypeError(f"{function}: model_fn is a {type(model_fn).__name__}; a function that builds the model is "
                        f"required, such as its class. Values get into a model that is there by "
                        f"ag.load_weights(model, path).")
    model = model_fn()
    if not callable(getattr(model, "parameters", None)):
        raise TypeError(f"{function}: model_fn returned a {type(model).__name__}; a layer is required, or an object "
                        f"with parameters().")
    return cast(Model, model)


def _outline(tensors: dict[str, Tensor]) -> dict[str, object]:
    """Return every tensor's shape, or the name of the tensor that it is tied to."""
    return {**{name: x.shape for name, x in tensors.items()}, **ties(tensors)}


@overload
def ag_load_model(path: str | os.PathLike[str], model_fn: None = None, device: str | None = None) -> Layer: ...
@overload
def ag_load_model(path: str | os.PathLike[str], model_fn: Callable[[], M], device: str | None = None) -> M: ...
def ag_load_model(path: str | os.PathLike[str], model_fn: Callable[[], Model] | None = None,
                  device: str | None = None) -> Model:
    """Load a model saved by `ag_save_model`, or that of a checkpoint.

    Reference: ggmlR ``ag_load_model``.

    Parameters
    ----------
    path : path
        Of a model file, or of a checkpoint of `ag_save_checkpoint` or `dp_train`.
    model_fn : callable, optional
        Builds the model; needed for checkpoints, and for models with layers of your own.
    device : str, optional
        Default: the current default device.

    Returns
    -------
    object
        The model, in eval mode; without `model_fn`, with the element types of the file.

    Raises
    ------
    CheckpointError
        If the file is missing, truncated or foreign, or does not fit the model; the message lists the names that
        are missing, unexpected or of another shape.  `load_weights` reads other programs' files.

    Examples
    --------
    >>> import ag, tempfile
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> ag.ag_save_model(ag.ag_sequential(ag.ag_linear(2, 1)), path)
    >>> ag.ag_load_model(path).training
    False
    """
    header, arrays = read_file(path, _MODEL, "ag_load_model", tuple(_PREFIXES))
    where = f"ag_load_model: {os.fsdecode(path)}"
    if model_fn is None and header["format"] in _PREFIXES:
        raise CheckpointError(f"{where} is a checkpoint, which does not say how to build the model; pass the model_fn.")
    state, _ = tensors_of_file(header, arrays)
    tied = tied_in(header, where)
    with same_default():
        if device is not None:
            ag_device(device)
        if model_fn is not None:
            model: Model = _made_by(model_fn, "ag_load_model")
        else:
            model = built = _build(header, where, sum(array.size for array in state.values()))
            _tie(built, tied, where)
            _take_types(named_tensors(model), state, where)
    refuse_untied(named_tensors(model), tied, where)
    load_into(named_tensors(model), state, source=where)
    return ag_eval(model)


def tensors_of_file(header: dict[str, str], arrays: dict[str, Array]) -> tuple[dict[str, Array], bool]:
    """Return a file's tensors by their names in the model, and whether this library wrote the file."""
    prefixes = _PREFIXES.get(header.get("format", ""))
    if prefixes is None:
        return arrays, header.get("format") == _MODEL
    return {name[len(prefix) :]: x for name, x in arrays.items()
            for prefix in prefixes if name.startswith(prefix)}, True


def tied_in(header: dict[str, str], where: str) -> dict[str, str]:
    """Return which names stand for one tensor; files of early versions do not say. `where` begins messages."""
    try:
        tied: dict[str, str] = dict(json.loads(header.get("tied", "{}")))
        if not all(isinstance(name, str) for name in (*tied, *tied.values())):
            raise ValueError("a name is no text")
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} has no readable list of tied tensors ({error}); it is incomplete.") from error
    return tied


def _tie(model: Layer, tied: dict[str, str], where: str) -> None:
    """Tie the tensors of a new model that are one in the file."""
    tensors = model.named_tensors()
    owners = {f"{prefix}_{own}" if prefix else own: (layer, own) for prefix, layer in model.modules()
              for own, x in vars(layer).items() if isinstance(x, Tensor)}
    for name, first in tied.items():
        if not (name in owners and first in owners and tensors[name].shape == tensors[first].shape):
            raise CheckpointError(f"{where} says that {first} and {name} are one tensor, which they cannot be in the "
                                  f"model that it describes.")
        setattr(*owners[name], tensors[first])


def _take_types(tensors: dict[str, Tensor], state: dict[str, Array], where: str) -> None:
    """Give a new model's tensors the floating types of the file; their values come later."""
    for name, x in tensors.items():
        kind: DType = element_type(state[name]) if name in state else x.buffer.dtype
        if kind.is_float and kind is not x.buffer.dtype:
            try:
                x.rebind(x.buffer.backend.alloc(x.shape, kind))
            except DtypeError as error:
                raise CheckpointError(f"{where} holds {name} as {kind}, which {x.device} cannot hold; load it on "
                                      f"the CPU.") from error


def _known(layer: Layer) -> bool:
    """Return whether a file can describe the layer: it and all inside are this library's, as made, and not frozen."""
    return LIBRARY.get(type(layer).__name__) is type(layer) and not layer.frozen() and (
        layer.is_as_made() or all(map(_known, layer.children().values())))


def _build(header: dict[str, str], where: str, elements: int) -> Layer:
    """Build the described model by this library's constructors, if the file has room for its sizes."""
    try:
        config = json.loads(header["model"])
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} has no readable model description; pass model_fn.") from error
    if config is None:
        raise CheckpointError(f"{where} holds a model of your own; pass the model_fn that builds it.")
    try:
        needed = _elements(config, _DEEPEST)
        if needed > elements:
            raise ValueError(f"it has {needed} elements, and the file {elements}")
        model = _layer(config, {})
        if json.loads(json.dumps(_description(model))) != config:  # such as a setting that this version does not know
            raise ValueError("it has other settings than this version's layers")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{where} describes a model that this version cannot build ({error!r:.300}); pass "
                              f"model_fn.") from error
    return model


def _elements(config: Any, depth: int) -> int:
    """Return how many elements a file must hold at least for such a model, before anything is allocated."""
    if depth == 0:
        raise ValueError(f"more than {_DEEPEST} blocks inside each other")
    if "same" in config:
        return 0
    kind = LIBRARY[config["layer"]]
    inside = sum(_elements(part, depth - 1) for part in kind.configs_inside(config))
    shape = kind.largest_tensor(config.get("args", {}))
    return inside + (max(0, prod(map(index, shape))) if shape else 0)  # a negative size makes no room for another layer


def _description(model: Layer) -> Any:
    """Return the model's configuration; a layer that stands there again is ``{"same": 1}``, by its number."""
    config = model.config()
    _mark(config, model, {})
    return config


def _mark(config: Any, layer: Layer, numbers: dict[int, int]) -> None:
    numbers[id(layer)] = len(numbers)
    parts: list[Any] = list(layer.configs_inside(config))
    for part, child in zip(parts, () if layer.is_as_made() else layer.children().values(), strict=True):
        if id(child) in numbers:
            part.clear()
            part["same"] = numbers[id(child)]
        else:
            _mark(part, child, numbers)


def _layer(config: Any, made: dict[int, Layer | None]) -> Layer:
    if "same" in config:
        layer = made[config["same"]]
        if layer is None or len(config) != 1:
            raise ValueError("a layer inside itself")
        return layer
    number = len(made)
    made[number] = None
    kind = LIBRARY[config["layer"]]
    inside = [_layer(part, made) for part in kind.configs_inside(config)]
    args = config["args"] if kind.settings else {}  # of which older files have fewer
    made[number] = layer = kind(*inside, **{name: args[name] for name in kind.settings if name in args})
    return layer


@runtime_checkable
class Stateful(Protocol):
    """Something with a state that JSON can hold: a schedule or a data loader.

    Examples
    --------
    >>> isinstance(ag.optim.StepSchedule(ag.optim.SGD(ag.nn.Linear(1, 1), lr=0.1), 10).state_dict(), dict)
    True
    """

    def state_dict(self) -> Mapping[str, object]: ...

    def load_state_dict(self, state: dict[str, object], /) -> None: ...


@dataclass(frozen=True)
class Checkpoint:
    """The ``step`` and ``extra`` that were given to `ag_save_checkpoint`, besides the states.

    Examples
    --------
    >>> import ag, tempfile
    >>> path, model = tempfile.mkdtemp() + "/run.safetensors", ag.nn.Linear(2, 1)
    >>> ag.ag_save_checkpoint(path, model, step=7, extra={"best": 0.5})
    >>> ag.ag_load_checkpoint(path, model).step
    7
    """

    step: int
    extra: Any


def ag_save_checkpoint(path: str | os.PathLike[str], model: Model, optimizer: Optimizer | None = None,
                       scheduler: Stateful | None = None, dataloader: Stateful | None = None, step: int = 0,
                       extra: object = None) -> None:
    """Save a training loop between two steps, so that it can go on bit for bit.

    The random generator is saved too, with every device's stream, and what a `CompressedDataParallel` has not sent yet.

    Parameters
    ----------
    path : path
        File to write; replaced only once the new one is complete.
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
    optimizer : Optimizer, optional
    scheduler, dataloader : schedule and DataLoader, optional
        Or any objects with ``state_dict()`` and ``load_state_dict(state)``, the state being JSON.
    step : int, optional
        Steps done, for your own use.
    extra : object, optional
        Anything else that JSON can hold, or a TypeError.

    Examples
    --------
    >>> import ag, tempfile
    >>> path, model = tempfile.mkdtemp() + "/run.safetensors", ag.ag_linear(2, 1)
    >>> ag.ag_save_checkpoint(path, model, ag.optimizer_adam(model), step=10, extra={"best": 0.5})
    >>> ag.ag_load_checkpoint(path, model)
    Checkpoint(step=10, extra={'best': 0.5})
    """
    check_arguments("ag_save_checkpoint(path, model, optimizer)", path, model)
    _check_parts("ag_save_checkpoint", optimizer, scheduler=scheduler, dataloader=dataloader)
    if not counts(step, least=0):
        raise ValueError(f"ag_save_checkpoint: step is {step!r}; a whole number of at least 0 is required.")
    header = {"format": _CHECKPOINT, "step": str(int(step)), "extra": to_json(extra, "extra", "ag_save_checkpoint"),
              "generator": to_json(generator_snapshot(), "the generator", "ag_save_checkpoint")}
    tensors = named_tensors(model)
    header["tied"] = json.dumps(ties(tensors))
    arrays = {f"model.{name}": elements_of(x) for name, x in tensors.items()}
    for key, state in _extra_state(model).items():
        arrays |= {f"{key}.{name}": array for name, array in state.items()}
    if optimizer is not None:
        arrays |= {f"optimizer.{name}": array for name, array in optimizer.state_dict().items()}
        header["lr"] = json.dumps(float(optimizer.lr))  # with all its digits; the device holds it in float32
    for name, part in (("scheduler", scheduler), ("dataloader", dataloader)):
        if part is not None:
            header[name] = to_json(part.state_dict(), f"the state of {name}", "ag_save_checkpoint")
    write_file(path, arrays, header, "ag_save_checkpoint")


def ag_load_checkpoint(path: str | os.PathLike[str], model: Any, optimizer: Optimizer | None = None,
                       scheduler: Stateful | None = None, dataloader: Stateful | None = None) -> Checkpoint:
    """Put a training loop where `ag_save_checkpoint` was called: on the same devices, it goes on bit for bit.

    Parameters
    ----------
    path : path
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
        Built as the saved one was, on any device.
    optimizer, scheduler, dataloader : Optimizer, schedule and DataLoader, optional
        Made for `model`'s parameters.  What is not given stays in the file.

    Returns
    -------
    Checkpoint

    Raises
    ------
    CheckpointError
        If the file is missing, truncated or foreign, or something in it does not fit; the message lists all of it,
        and neither the objects nor the random generator have changed.

    Examples
    --------
    >>> import ag, tempfile
    >>> path = tempfile.mkdtemp() + "/run.safetensors"
    >>> loader = ag.ag_dataloader([[1.0, 2.0, 3.0]], batch_size=1, shuffle=False)
    >>> first, model = loader.next_batch(), ag.ag_linear(1, 1)
    >>> ag.ag_save_checkpoint(path, model, dataloader=loader)
    >>> ag.ag_load_checkpoint(path, model, dataloader=loader), loader.next_batch().x.item()
    (Checkpoint(step=0, extra=None), 2.0)
    """
    check_arguments("ag_load_checkpoint(path, model, optimizer)", path, model)
    _check_parts("ag_load_checkpoint", optimizer, scheduler=scheduler, dataloader=dataloader)
    where = f"ag_load_checkpoint: {os.fsdecode(path)}"
    header, arrays = read_file(path, _CHECKPOINT, "ag_load_checkpoint")
    try:
        said = {name: json.loads(text) for name, text in header.items() if name != "format"}
        checkpoint = Checkpoint(int(header["step"]), said["extra"])
        generator = said["generator"]
        tied = tied_in(header, where)
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} has no readable header ({error!r:.300}); the file is not a complete "
                              f"checkpoint.") from error
    tensors = named_tensors(model)
    parts = [_Part("model", {n: elements_of(x) for n, x in tensors.items()}, _below("model.", arrays),
                   lambda state: load_into(tensors, state),
                   lambda state: refuse_untied(tensors, tied, "ag_load_checkpoint: the file"))]
    parts += [_Part(name, state, _below(f"{name}.", arrays) or None, partial(model.load_extra_state, name))
              for name, state in _extra_state(model).items()]
    held = _below("optimizer.", arrays) or None
    if optimizer is not None:
        parts.append(_Part("optimizer", optimizer.state_dict(), held, optimizer.load_state_dict))
    for name, part in (("scheduler", scheduler), ("dataloader", dataloader)):
        if part is not None:
            check = getattr(part, "check_state_dict", None)
            parts.append(_Part(name, deepcopy(part.state_dict()), said.get(name), part.load_state_dict,
                               check or (lambda state: None), tells=check is not None))
    if optimizer is not None and held is not None:  # after the schedule, as a rate may have been assigned beside it
        parts.append(_Part("lr", optimizer.lr, said.get("lr"), lambda rate: _set_rate(optimizer, rate)))
    parts.append(_Part("generator", generator_snapshot(), generator, restore_generator))
    with ExitStack() as undo:
        if optimizer is not None:
            undo.callback(_set_rate, optimizer, optimizer.lr)  # last, with the digits that the other states lack
        wrong = [text for part in parts if (text := part.misfit(undo)) is not None]
        if wrong:
            raise CheckpointError(f"{where} does not fit: {'; '.join(wrong)}.")
        for last in parts:
            if last.tells:
                last.load(last.after)
        undo.pop_all()
    return checkpoint


def _check_parts(function: str, optimizer: object, **parts: object) -> None:
    if not (optimizer is None or (hasattr(optimizer, "lr") and isinstance(optimizer, Stateful))):
        raise TypeError(f"{function}: optimizer is a {type(optimizer).__name__}; an optimizer is required, or None.")
    for name, part in parts.items():
        if not (part is None or isinstance(part, Stateful)):
            raise TypeError(f"{function}: {name} is a {type(part).__name__}; an object with state_dict() and "
                            f"load_state_dict(state) is required, or None.")


@dataclass(frozen=True)
class _Part:
    name: str
    before: Any  # its state now
    after: Any  # the file's; None if the file holds none
    load: Callable[[Any], None]
    check: Callable[[Any], None] = lambda state: None
    tells: bool = False  # the check finds all errors: the state is set last, as a loader's running loops cannot go back

    def misfit(self, undo: ExitStack) -> str | None:
        """Load the state and leave the way back in `undo`; or say why it does not fit."""
        if self.after is None:
            return f"{self.name}: the file holds no state of it"
        try:
            _same_types(self.before, self.after)
            self.check(self.after)
            if not self.tells:
                undo.callback(self.load, self.before)
                self.load(self.after)
        except CheckpointError as error:
            text = str(error).partition(": ")[2].rstrip(".")
            lists = isinstance(self.after, dict) and any(isinstance(x, np.ndarray) for x in self.after.values())
            return f"{self.name}: {text}" if lists else f"{self.name}: {text:.500}"  # values may be of any length
        return None


def _extra_state(model: Any) -> dict[str, dict[str, Array]]:
    """Return the model's state besides its tensors, by part; empty for a model that is no layer."""
    return model.extra_state() if isinstance(model, Layer) else {}


def _same_types(before: Any, after: Any) -> None:
    """Refuse arrays of other element types, which loading would convert."""
    wrong = [f"{name} is {_type(array)} instead of {_type(before[name])}"
             for name, array in (after.items() if isinstance(after, dict) else ())
             if isinstance(array, np.ndarray) and name in before and array.dtype != before[name].dtype]
    if wrong:
        raise CheckpointError(f"element types: {', '.join(wrong)}.")


def _type(array: Array) -> str:
    return "bfloat16" if array.dtype == BFLOAT16 else str(array.dtype)


def _set_rate(optimizer: Optimizer, rate: object) -> None:
    if type(rate) is not float or not (isfinite(rate) and 0 <= rate <= LARGEST_RATE):
        raise CheckpointError(f"lr: {rate!r:.60} is no learning rate.")
    optimizer.lr = rate


def _below(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
