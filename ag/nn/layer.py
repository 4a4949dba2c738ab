"""The base of all layers: parameters by name, state dicts, train and eval mode, a readable repr.

A layer's parameters and buffers are its tensor attributes, its children are its layer attributes, also in lists,
tuples and dicts; nothing has to be registered.  Names are joined with underscores, as ggmlR does: ``layer1_W``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from ag.autograd.tape import no_grad
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.device import backend_of
from ag.engine.kernels.convert import numbers
from ag.engine.primitive import Array
from ag.errors import CaptureError, CheckpointError
from ag.ops import activation
from ag.ops.convert import ag_to_device

__all__ = ["ACTIVATIONS", "LIBRARY", "Layer", "activation_called", "ag_eval", "ag_train", "buffers_of", "load_into",
           "state_of"]

M = TypeVar("M")

# What layers call "relu" is `ag_relu`, and so on.
ACTIVATIONS: dict[str, Callable[[TensorLike], Tensor]] = {
    name.removeprefix("ag_"): getattr(activation, name) for name in activation.__all__}

LIBRARY: dict[str, type[Layer]] = {}  # the layers of this package by name, which a file may ask for


def activation_called(name: str | None, function: str) -> Callable[[TensorLike], Tensor] | None:
    """The activation of that name; None for None."""
    if name is not None and name not in ACTIVATIONS:
        raise ValueError(f"{function}: unknown activation {name!r}; use one of {', '.join(ACTIVATIONS)}, or None.")
    return None if name is None else ACTIVATIONS[name]


class Layer:
    """Base class of layers and models.

    Attributes
    ----------
    training : bool
        True in train mode, the initial one; see `ag_train` and `ag_eval`.
    settings : tuple of str
        Names of the constructor's arguments, which are attributes too; a saved model is rebuilt from them.

    Notes
    -----
    A file may name the layers of ``ag.nn``, which register themselves; a layer defined elsewhere is never built from
    a file, whatever it is called.
    """

    settings: tuple[str, ...] = ()
    training: bool = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.startswith(f"{__package__}.") and not cls.__name__.startswith("_"):
            LIBRARY.setdefault(cls.__name__, cls)  # the first to have a name keeps it

    def forward(self, x: TensorLike) -> Tensor:
        """The layer's output for `x`."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward(x)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    # -------------------------------------------------------------------------------------- contents

    def children(self) -> dict[str, Layer]:
        """Layers inside this one, by name."""
        return {name: x for name, x in _members(vars(self)) if isinstance(x, Layer)}

    def _tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        for name, x in _members(vars(self)):
            if isinstance(x, Tensor):
                yield prefix + name, x
        for name, child in self.children().items():
            yield from child._tensors(f"{prefix}{name}_")

    def _named(self, trained: bool) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, x in self._tensors():
            if found.setdefault(name, x) is not x:
                raise ValueError(f"{type(self).__name__}: two different tensors come out under the name {name!r}; "
                                 f"rename one of the attributes.")
        return {name: x for name, x in found.items() if x.requires_grad is trained}

    def parameters(self) -> dict[str, Tensor]:
        """Trained tensors by name; also sets each tensor's ``name``."""
        found = self._named(True)
        for name, p in found.items():
            p.name = name
        return found

    params = parameters

    def buffers(self) -> dict[str, Tensor]:
        """Tensors that are state but not trained, by name."""
        return self._named(False)

    def state_dict(self) -> dict[str, Array]:
        """Host copies of parameters and buffers, by name."""
        return {name: x.numpy() for name, x in {**self.parameters(), **self.buffers()}.items()}

    def load_state_dict(self, state: Mapping[str, object], strict: bool = True) -> None:
        """Take over values by name; nothing changes if they do not fit.

        Parameters
        ----------
        state : dict of str to array_like
        strict : bool, optional
            Whether every name must occur on both sides.

        Raises
        ------
        CheckpointError
            Listing names that are missing, unexpected or of another shape.
        """
        load_into({**self.parameters(), **self.buffers()}, state, strict)

    def to(self, device: str) -> Layer:
        """Move all tensors to a device, in place; returns the layer."""
        target = backend_of(device)
        with no_grad():
            for x in {**self.parameters(), **self.buffers()}.values():
                x.buffer = ag_to_device(x, target.name).buffer
                x.grad = None
        return self

    # -------------------------------------------------------------------------------------- mode

    def train(self, mode: bool = True) -> Layer:
        """Set train mode (or eval mode) here and in all children; returns the layer."""
        _set_mode(self, mode, set())
        return self

    def eval(self) -> Layer:
        """Set eval mode here and in all children; returns the layer."""
        return self.train(False)

    def mode_for(self, x: Tensor) -> bool:
        """`training`, and a guard that a captured step is not replayed in the other mode."""
        mode = self.training
        recording = x.buffer.backend.recording
        if recording is not None:

            def unchanged() -> None:
                if self.training is not mode:
                    was, now = ("train", "eval") if mode else ("eval", "train")
                    raise CaptureError(f"ag_capture: {type(self).__name__} was in {was} mode when the step was "
                                       f"captured and is in {now} mode now; capture a step for each mode.")

            recording.guards.append(unchanged)
        return mode

    # -------------------------------------------------------------------------------------- description

    def config(self) -> dict[str, object]:
        """What `ag_load_model` needs to build the layer again: plain numbers, strings and lists."""
        return {"layer": type(self).__name__, "args": {name: getattr(self, name) for name in self.settings}}

    @classmethod
    def configs_inside(cls, config: Mapping[str, Any]) -> list[Any]:
        """Those of the layers that the constructor begins with, out of what `config` returned; none for most layers."""
        return []

    @classmethod
    def largest_tensor(cls, args: Mapping[str, Any]) -> tuple[int, ...]:
        """Shape of the largest tensor of its own that a layer made with `args` has; () if it has none.

        A file with fewer elements is refused before anything is allocated.
        """
        return ()

    def __repr__(self) -> str:
        return "\n".join(self._lines(""))

    def _lines(self, label: str) -> Iterator[str]:
        args = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.settings)
        own = [f"{name} {x.shape}" for name, x in _members(vars(self)) if isinstance(x, Tensor)]
        count = sum(p.size for p in self.parameters().values())
        detail = f"  {', '.join(own)}" if own else ""
        yield f"{label}{type(self).__name__}({args}){detail}  [{count:,} parameters]"
        for name, child in self.children().items():
            for line in child._lines(f"{name}: "):
                yield "  " + line


def _members(attributes: Mapping[str, object]) -> Iterator[tuple[str, Layer | Tensor]]:
    """Layers and tensors among attributes; in lists they are numbered from 1, in dicts the key follows the name."""
    for name, x in attributes.items():
        if isinstance(x, (Layer, Tensor)):
            yield name, x
        elif isinstance(x, (list, tuple)):
            yield from _members({f"{name}{i}": item for i, item in enumerate(x, 1)})
        elif isinstance(x, dict):
            yield from _members({f"{name}_{key}": item for key, item in x.items()})
        elif callable(getattr(x, "parameters", None)) and not isinstance(x, type):
            raise TypeError(f"Layer: attribute {name!r} is a {type(x).__name__} with parameters of its own, which "
                            f"would not be trained; derive {type(x).__name__} from ag.Layer.")


def state_of(model: Any) -> dict[str, Tensor]:
    """Parameters and buffers of a layer, or of any object with ``parameters()``."""
    return {**model.parameters(), **buffers_of(model)}


def buffers_of(model: Any) -> dict[str, Tensor]:
    """Buffers of a layer, or of any object that has some."""
    found: dict[str, Tensor] = model.buffers() if hasattr(model, "buffers") else {}
    return found


def load_into(mine: Mapping[str, Tensor], state: Mapping[str, object], strict: bool = True,
              source: str = "load_state_dict: the state") -> None:
    """Copy arrays into tensors by name, all or nothing; `source` begins the message if they do not fit."""
    arrays = {k: v.numpy() if isinstance(v, Tensor) else numbers(np.asarray(v)) for k, v in state.items()}
    wrong = []
    if strict:
        wrong += [f"missing {k}" for k in mine if k not in arrays]
        wrong += [f"unexpected {k}" for k in arrays if k not in mine]
    wrong += [f"{k} is {arrays[k].shape} instead of {x.shape}"
              for k, x in mine.items() if k in arrays and arrays[k].shape != x.shape]
    if wrong:
        raise CheckpointError(f"{source} does not fit this model: {', '.join(wrong)}.")
    for k, x in mine.items():
        if k in arrays:
            x.data = arrays[k]


def _set_mode(model: object, mode: bool, seen: set[int]) -> None:
    if id(model) in seen:
        return
    seen.add(id(model))
    parts: Iterable[object] = ()
    if isinstance(model, (list, tuple)):
        parts = model
    elif isinstance(model, dict):
        parts = model.values()
    elif hasattr(model, "__dict__") and not isinstance(model, (type, ModuleType)):
        if hasattr(model, "training"):
            model.training = mode
        parts = vars(model).values()
    for part in parts:
        _set_mode(part, mode, seen)


def ag_train(model: M) -> M:
    """Put a model into train mode, every layer in it, however nested.

    Parameters
    ----------
    model : Layer or any object holding layers

    Returns
    -------
    object
        The model.

    References
    ----------
    ggmlR ``ag_train`` (which does not recurse).

    Examples
    --------
    >>> import ag
    >>> ag.ag_train(ag.ag_sequential(ag.ag_dropout(0.5))).training
    True
    """
    _set_mode(model, True, set())
    return model


def ag_eval(model: M) -> M:
    """Put a model into eval mode, every layer in it, however nested.

    Parameters
    ----------
    model : Layer or any object holding layers

    Returns
    -------
    object
        The model.

    References
    ----------
    ggmlR ``ag_eval`` (which does not recurse).

    Examples
    --------
    >>> import ag
    >>> ag.ag_eval(ag.ag_sequential(ag.ag_dropout(0.5))).training
    False
    """
    _set_mode(model, False, set())
    return model
