"""Model files: tensors, and a JSON description of how to build a model of layers of `ag.nn`, which runs no code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from math import prod
from operator import index
from typing import Any, TypeVar, cast, overload

from ag.autograd.tensor import Tensor
from ag.engine.device import ag_device, same_default
from ag.engine.dtype import DType
from ag.engine.primitive import Array
from ag.errors import CheckpointError, DtypeError
from ag.io.safetensors_file import element_type, elements_of, read_file, write_file
from ag.nn.layer import LIBRARY, Layer, Model, load_into, named_tensors, refuse_untied, ties
from ag.nn.mode import ag_eval

M = TypeVar("M", bound=Model)
T = TypeVar("T")

_FORMAT = "ag-model-1"
_CHECKPOINTS = {"ag-checkpoint-1": ("model.",), "ag-dp-train-1": ("weight.", "buffer.")}  # how a model's names begin
_DEEPEST = 100  # blocks inside blocks; far from Python's recursion limit, whatever called


def ag_save_model(model: Model, path: str | os.PathLike[str], model_fn: Callable[[], Model] | None = None) -> None:
    """Save a model's parameters and buffers, and how to build it if it is made of this library's layers.

    Reference: ggmlR ``ag_save_model`` (which stores a function and runs it on load).

    Parameters
    ----------
    model : Layer, or any object with ``forward(x)`` and ``parameters()``
    path : path
        File to write; replaced only once the new one is complete.
    model_fn : callable, optional
        The factory you will load with, called once to check that it builds such parameters; not stored.

    Raises
    ------
    CheckpointError
        If `model_fn` builds something else.

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
               {"format": _FORMAT, "model": config, "tied": json.dumps(ties(tensors))}, "ag_save_model")


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
    """Return the model that a factory builds."""
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
        are missing, unexpected or of another shape.  Of another program's file, build the model and call
        `load_weights`.
    TypeError
        If `model_fn` is no function that returns a model.

    Examples
    --------
    >>> import ag, tempfile
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> ag.ag_save_model(ag.ag_sequential(ag.ag_linear(2, 1)), path)
    >>> ag.ag_load_model(path).training
    False
    """
    header, arrays = read_file(path, _FORMAT, "ag_load_model", tuple(_CHECKPOINTS))
    where = f"ag_load_model: {os.fsdecode(path)}"
    if model_fn is None and header["format"] in _CHECKPOINTS:
        raise CheckpointError(f"{where} is a checkpoint, which does not say how to build the model; pass the model_fn "
                              f"that builds it.")
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
    prefixes = _CHECKPOINTS.get(header.get("format", ""))
    if prefixes is None:
        return arrays, header.get("format") == _FORMAT
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
    """Return whether a file can describe the layer: it and all inside are this library's, as made."""
    return LIBRARY.get(type(layer).__name__) is type(layer) and (
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
