"""The base of all layers: parameters by name, state dicts, train and eval mode, repr; checks of settings.

Tensor and layer attributes are state, also in lists, tuples and dicts, unless their name begins with an underscore.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import isfinite
from numbers import Real
from textwrap import fill
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar
from weakref import ProxyType, ref

import numpy as np

from ag.autograd.frozen import FrozenTensor
from ag.autograd.operands import number_given
from ag.autograd.tape import no_grad
from ag.autograd.tensor import Tensor, TensorLike
from ag.autograd.watched import Watched
from ag.engine.device import backend_of
from ag.engine.kernels.convert import number_arrays, refuse_unlike
from ag.engine.primitive import Array
from ag.engine.shape import counts
from ag.errors import CheckpointError, compare_names
from ag.names import kinds_of, missing
from ag.names.elsewhere import LAYER
from ag.nn.mode import members, objects_in, set_mode
from ag.ops import activation, functions
from ag.ops.creation import ag_to_device

M = TypeVar("M", bound="Layer")
ActivationLike = str | Callable[..., Tensor] | None  # such as "relu" or `ag_relu`
State = Mapping[str, TensorLike]  # values by name
Modes = Mapping[str, tuple[bool, tuple[str, ...]]]  # mode and frozen tensors of layers, by their names
Settings = Mapping[str, Any]  # arguments of a layer's constructor, or the description of a layer, as JSON has them


class Model(Protocol):
    """A `Layer`, or any other object with ``parameters()``."""

    def parameters(self) -> dict[str, Tensor]:
        """Trained tensors by name."""


_WIDTH = 100  # characters of a line of `repr`
_PICKLED_AT_ONCE = 50  # layers inside each other that pickle enters before it sees one that comes first

# What layers call "relu" is `ag_relu`, and so on.
ACTIVATIONS: dict[str, Callable[[TensorLike], Tensor]] = {
    **{name.removeprefix("ag_"): getattr(activation, name) for name in activation.__all__},
    **{name: getattr(functions, name) for name in functions.ACTIVATIONS}}
LIBRARY: dict[str, type[Layer]] = {}  # the layers of this package by name, which a file may ask for


class Parameters(dict[str, Tensor]):
    """Parameters by name, and the model that they are of, if it is there still; a copy is an ordinary dict."""

    __slots__ = ("of_model",)

    def __init__(self, named: Mapping[str, Tensor], model: Layer) -> None:
        super().__init__(named)
        self.of_model = ref(model)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return dict, (dict(self),)


class Layer(Watched):
    """Base class of layers and models.

    Tensor attributes are parameters and buffers, layer attributes are children, also in lists, tuples and dicts.  A
    file may name the layers of ``ag.nn``, which register themselves; one defined elsewhere is never built from a file.

    Attributes
    ----------
    training : bool
        True in train mode, the initial one; see `ag_train` and `ag_eval`.
    settings : tuple of str
        Names of the constructor's arguments, which are attributes too; a saved model is rebuilt from them.

    Examples
    --------
    >>> class Twice(ag.Layer):
    ...     def __init__(self):
    ...         self.inner = ag.nn.Linear(3, 2)
    ...     def forward(self, x):
    ...         return 2 * self.inner(x)
    >>> model = Twice()
    >>> list(model.parameters()), model([[1.0], [2.0], [3.0]]).shape
    (['inner_W', 'inner_b'], (2, 1))
    """

    settings: tuple[str, ...] = ()
    training: bool = True
    _adjustable: ClassVar[Mapping[str, Callable[[object], object]] | None] = None  # settings that may be assigned
    _later: ClassVar[Mapping[str, object]] = {}  # settings that are told only if they have another value than this
    _frozen: tuple[str, ...] = ()  # names of its own tensors that `freeze` has frozen
    _largest: tuple[str, ...] = ()  # the settings that are the sizes of its largest tensor
    _elsewhere: ClassVar[Mapping[str, str]] = {}  # what other libraries call an attribute, and its name here

    def __setattr__(self, name: str, value: object) -> None:
        """Check a setting that is assigned later; refuse what would change nothing, or leave a parameter untrained."""
        if name in self._elsewhere:
            raise AttributeError(f"{type(self).__name__}: {name!r} was assigned; it is called "
                                 f"{self._elsewhere[name]!r} here.")
        known = object.__getattribute__(self, "__dict__")  # looking is nothing that a captured step reads
        before = known.get(name)
        if isinstance(before, Tensor) and before.requires_grad and not isinstance(
                value, (Tensor, FrozenTensor, NoneType)):
            raise TypeError(f"{type(self).__name__}: a {type(value).__name__} was assigned to {name!r}, which is a "
                            f"parameter; write {name}.data = ... to change its values, or assign an ag_param.")
        if self._adjustable is not None and name in self.settings and name in known:
            if name not in self._adjustable:
                raise AttributeError(f"{type(self).__name__}: {name!r} was assigned, and the layer is built from it; "
                                     f"make another layer.")
            value = self._adjustable[name](value)
        super().__setattr__(name, value)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.__module__.startswith(f"{__package__}."):
            return
        if not cls.__name__.startswith("_"):
            LIBRARY.setdefault(cls.__name__, cls)  # the first to have a name keeps it
            if "settings" not in vars(cls) and cls.__init__ is not object.__init__:
                cls.settings = tuple(kinds_of(cls.__init__))[1:]
        if cls.settings and cls._adjustable is None:
            cls._adjustable = {}

    if TYPE_CHECKING:
        forward: Callable[..., Tensor]  # a layer says itself what it takes
    else:
        def forward(self, x: TensorLike) -> Tensor:
            """The layer's output for `x`."""
            raise NotImplementedError(f"{type(self).__name__} does not define forward(x)")

        __getattr__ = missing(LAYER)

    def __call__(self, *args: object, **kwargs: object) -> Tensor:
        return self.forward(*args, **kwargs)

    def children(self) -> dict[str, Layer]:
        """Layers directly inside this one, by name."""
        found: dict[str, Layer] = {}
        for name, x in _members(vars(self)):
            if isinstance(x, Layer) and found.setdefault(name, x) is not x:
                both = [own for own, held in vars(self).items() if name in dict(members({own: held}))]
                where = f"of the attributes {' and '.join(both)}; rename one of the attributes" if len(both) > 1 else (
                    f"both in the attribute {both[0]}; give one another key")
                raise ValueError(f"{type(self).__name__}: two different layers come out under the name {name!r}, "
                                 f"{where}.")
        return found

    def modules(self, prefix: str = "") -> Iterator[tuple[str, Layer]]:
        """This layer, called `prefix`, and all layers inside it with their names, each before its children.

        Names are as ``layer1_body``.  A layer that stands in two places comes twice, under both names.
        """
        around: set[int] = set()
        todo: list[tuple[str, Layer] | Layer] = [(prefix, self)]  # a layer alone: all in it has come
        while todo:
            item = todo.pop()
            if isinstance(item, Layer):
                around.discard(id(item))
                continue
            name, layer = item
            if id(layer) in around:
                raise ValueError("Layer: a layer contains one that contains it, such as its parent, so a walk over "
                                 "them has no end; keep a weakref.ref of that.")
            if layer is not self and type(layer).modules is not Layer.modules:
                yield from layer.modules(name)
                continue
            yield name, layer
            around.add(id(layer))
            todo.append(layer)
            todo += [(_joined(name, own), child) for own, child in reversed(layer.children().items())]

    def named_tensors(self) -> dict[str, Tensor]:
        """Parameters, then buffers; a tensor that stands in two places comes twice, under both names."""
        modules = [*self.modules()]
        tensors: dict[str, Tensor] = {}
        for prefix, layer in modules:
            for own_name, x in _members(vars(layer)):
                if isinstance(x, Tensor) and tensors.setdefault(name := _joined(prefix, own_name), x) is not x:
                    raise ValueError(f"{type(self).__name__}: two different tensors come out under the name {name!r}; "
                                     f"rename one of the attributes or keys.")
        _refuse_hidden(self, [layer for _, layer in modules], {id(x) for x in tensors.values()})
        return dict(sorted(tensors.items(), key=lambda item: not item[1].requires_grad))

    def _once(self, trained: bool) -> dict[str, Tensor]:
        tensors = self.named_tensors()
        tied = ties(tensors)
        return {name: x for name, x in tensors.items() if x.requires_grad is trained and name not in tied}

    def parameters(self) -> dict[str, Tensor]:
        """Trained tensors by name, each once; also sets each tensor's ``name``, unless it has a longer one."""
        trained = self._once(True)
        for name, p in trained.items():
            if p.name is None or not p.name.endswith(f"_{name}"):
                p.name = name
        return Parameters(trained, self)

    params = parameters

    def has_beside(self, known: Collection[int]) -> bool:
        """Return True if a parameter may have another id than `known`.  Hot path: optimizers ask at every step."""
        seen: set[int] = set()
        todo: list[Any] = [self]
        while todo:
            x = todo.pop()
            if isinstance(x, Tensor):
                if x.requires_grad and x.id not in known and x.node is None:
                    return True
            elif isinstance(x, (Layer, list, tuple, dict)) and id(x) not in seen:
                seen.add(id(x))
                x = object.__getattribute__(x, "__dict__") if isinstance(x, Layer) else x
                todo += x.values() if isinstance(x, dict) else x
        return False

    def buffers(self) -> dict[str, Tensor]:
        """Tensors that are state but not trained, by name, each once."""
        return self._once(False)

    def frozen(self) -> dict[str, FrozenTensor]:
        """Frozen tensors (`ag_frozen`) by name; one that stands in two places comes twice, under both names."""
        return {_joined(prefix, own): x for prefix, layer in self.modules() for own, x in members(vars(layer))
                if isinstance(x, FrozenTensor)}

    @property
    def n_parameters(self) -> int:
        """Return how many numbers are trained: the elements of the parameters, each tensor once."""
        return sum(p.size for p in self._once(True).values())

    def freeze(self: M) -> M:
        """Stop training all parameters inside, which are buffers then; returns the layer.

        No optimizer moves them.  Running statistics of batch norm go on in train mode.  A saved model does not keep it.
        """
        for layer, own in [(layer, own_tensors(layer)) for _, layer in self.modules()]:
            if trained := [name for name, x in own.items() if x.requires_grad and x.node is None]:
                layer._frozen = (*dict.fromkeys((*layer._frozen, *trained)),)
        for x in self._once(True).values():
            if x.node is None:
                x.requires_grad, x.grad = False, None
        if self.requires_grad:
            raise TypeError(f"{type(self).__name__}: it holds parameters in other places than attributes; freeze the "
                            f"layers that have them.")
        return self

    def unfreeze(self: M) -> M:
        """Train again what `freeze` has frozen, with optimizers that are made afterwards; returns the layer."""
        for _, layer in self.modules():
            for name, x in own_tensors(layer).items():
                x.requires_grad = x.requires_grad or name in layer._frozen
            if layer._frozen:
                layer._frozen = ()
        if self.named_tensors() and not self.requires_grad:
            raise ValueError(f"{type(self).__name__}: freeze() has frozen nothing inside; set requires_grad of the "
                             f"tensors that are to be trained.")
        return self

    @property
    def requires_grad(self) -> bool:
        """Return whether anything inside is trained; assigning False or True is `freeze` or `unfreeze`."""
        return any(x.requires_grad for x in self.named_tensors().values())

    @requires_grad.setter
    def requires_grad(self, trained: bool) -> None:
        if not isinstance(trained, (bool, np.bool_)):
            raise TypeError(f"{type(self).__name__}: requires_grad is {trained!r:.60}; True or False is required.")
        self.unfreeze() if trained else self.freeze()

    def state_dict(self, frozen: bool = False) -> dict[str, Array]:
        """Host copies of parameters and buffers, by name; tied ones under each of their names.

        With `frozen` also the float32 numbers of frozen tensors.
        """
        return {name: x.numpy() for name, x in (self.named_tensors() | (self.frozen() if frozen else {})).items()}

    def load_state_dict(self, state: State, strict: bool = True) -> None:
        """Take over arrays by name; nothing changes if they do not fit.

        With `strict` every name must occur on both sides, and of a tied tensor one.  Its values must be the same, and
        so must those of frozen tensors that the state has.
        """
        if isinstance(state, Mapping) and (frozen := {name: x for name, x in self.frozen().items() if name in state}):
            arrays = number_arrays({name: state[name] for name in frozen}, "load_state_dict: the state")
            for name, x in frozen.items():
                if not np.array_equal(x.numpy(), arrays[name], equal_nan=True):
                    raise CheckpointError(f"load_state_dict: the state has other values of {name} than the model, in "
                                          f"which it is frozen; assign another ag_frozen, or leave it out.")
            state = {name: x for name, x in state.items() if name not in frozen}
        load_into(self.named_tensors(), state, strict)

    def to(self, device: str) -> Layer:
        """Move all tensors and gradients to a device, in place, before an optimizer is made; returns the layer."""
        target = backend_of(device)
        with no_grad():
            for x in self.named_tensors().values():
                grad = x.grad
                x.rebind(ag_to_device(x, target.name).buffer)
                x.grad = None if grad is None else ag_to_device(grad, target.name)
        for frozen in self.frozen().values():
            frozen.memory.move(target)
        return self

    def replace_devices(self, instead: Mapping[str, str]) -> None:
        """Use other devices' names in the place of failed ones, when recovery moves tensors; most layers have none."""

    def extra_state(self) -> dict[str, dict[str, Array]]:
        """Return what a checkpoint of a training holds besides the `state_dict`, by part; most layers have nothing."""
        return {}

    def load_extra_state(self, part: str, state: Mapping[str, Array]) -> None:
        """Take over a part of `extra_state`; nothing changes if it does not fit."""

    def train(self: M, mode: bool = True) -> M:
        """Set train mode (or eval mode) here and in all children; returns the layer."""
        return set_mode(self, mode)

    def eval(self: M) -> M:
        """Set eval mode here and in all children; returns the layer."""
        return set_mode(self, False)

    def config(self) -> dict[str, object]:
        """Describe the layer as `ag_load_model` needs it: plain numbers, strings and lists."""
        return {"layer": type(self).__name__, "args": self._told()}

    def _told(self) -> dict[str, object]:
        """Return the settings without later ones at their default, which older files do not have."""
        given = {name: getattr(self, name) for name in self.settings}
        return {name: x for name, x in given.items() if name not in self._later or x != self._later[name]}

    @classmethod
    def configs_inside(cls, config: Settings) -> list[Settings]:
        """Those of the layers that the constructor begins with, out of what `config` returned; none for most layers."""
        return []

    def is_as_made(self) -> bool:
        """Return True if the constructor makes all layers inside and they are still those: `config` says enough."""
        return False

    @classmethod
    def largest_tensor(cls, args: Settings) -> tuple[int, ...]:
        """Sizes of the largest tensor of its own that a layer made with `args` has, for a check of files; or ()."""
        return tuple(args[name] for name in cls._largest)

    def __repr__(self) -> str:
        lines: list[str] = []
        sizes: dict[int, dict[int, int]] = {}  # by depth, of the parameters that the rows from here on have there
        for depth, name, layer in reversed(nested(self)):
            own = own_tensors(layer)
            trained = sizes.pop(depth + 1, {}) | {x.id: x.size for x in own.values() if x.requires_grad}
            sizes.setdefault(depth, {}).update(trained)
            args = ", ".join(f"{setting}={value!r}" for setting, value in layer._told().items())
            shown = [f"{own_name} {x.shape}" for own_name, x in own.items()]
            shown += [f"{own_name} {x.shape} {x.packing}" for own_name, x in members(vars(layer))
                      if isinstance(x, FrozenTensor)]
            detail = "  " * bool(shown) + ", ".join(shown)
            line = (f"{name}{': ' * bool(name)}{type(layer).__name__}({args}){detail}  "
                    f"[{sum(trained.values()):,} parameters]")
            whole = re.sub(r"(?<=\S) (?=\(|\d|parameters)", "\0", line)  # no break within a name and its shape
            lines.append(fill(whole, _WIDTH, initial_indent="  " * depth, subsequent_indent="  " * (depth + 2),
                              break_long_words=False, break_on_hyphens=False).replace("\0", " "))
        return "\n".join(reversed(lines))

    def _repr_html_(self) -> str:
        from html import escape  # which takes time to load

        return f"<pre>{escape(repr(self))}</pre>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle layers far inside a deep model first, so that pickle recurses less."""
        made: Any = super().__reduce_ex__(protocol)
        if not isinstance(made, tuple) or len(made) < 3 or type(self).__setstate__ is not Layer.__setstate__:
            return made
        far, layers = 0, [self]
        while layers and far < _PICKLED_AT_ONCE:
            far, layers = far + 1, [child for layer in layers for child in _layers_in(layer)]
        return (made[0], made[1], _Deep(layers, made[2]), *made[3:]) if layers else made

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, _Deep):
            state = state.state
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        vars(self).update(attributes or {})
        for name, value in (slots or {}).items():
            object.__setattr__(self, name, value)


class _Deep(NamedTuple):
    """The state of a layer behind layers far inside, which are pickled before it."""

    layers: list[Layer]
    state: Any


def _layers_in(layer: Layer) -> list[Layer]:
    """Layers directly inside, unchecked; looking is nothing that a captured step reads."""
    found, seen = dict[int, Layer](), set[int]()
    todo = [*object.__getattribute__(layer, "__dict__").values()]
    while todo:
        x = todo.pop()
        if isinstance(x, Layer) and not isinstance(x, ProxyType):
            found[id(x)] = x
        elif isinstance(x, (list, tuple, dict)) and id(x) not in seen:
            seen.add(id(x))
            todo += x.values() if isinstance(x, dict) else x
    return [*found.values()]


def nested(root: Layer) -> list[tuple[int, str, Layer]]:
    """List a layer and all inside it, each before its children, with how deep it is and its name there."""
    root.named_tensors()  # refuses what would not be trained
    rows: list[tuple[int, str, Layer]] = []
    todo: list[tuple[int, str, Layer]] = [(0, "", root)]
    while todo:
        rows.append(todo.pop())
        depth, _, layer = rows[-1]
        todo += [(depth + 1, name, child) for name, child in reversed(layer.children().items())]
    return rows


def own_tensors(layer: Layer) -> dict[str, Tensor]:
    """Tensors that a layer has itself, by name."""
    return {name: x for name, x in _members(vars(layer)) if isinstance(x, Tensor)}


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}_{name}" if prefix else name


def _members(attributes: Mapping[str, object]) -> Iterator[tuple[str, Layer | Tensor]]:
    """Layers and tensors among attributes; an error for one with an underscore that looks like state."""
    for name, x in members(attributes):
        if name[:1] == "_":
            if isinstance(x, Layer) or (isinstance(x, Tensor) and x.requires_grad and x.node is None):
                kind = "layer" if isinstance(x, Layer) else "parameter"
                raise TypeError(f"Layer: attribute {name!r} is a {kind}, and what begins with an underscore would not "
                                f"be trained; call it {name.lstrip('_')!r}.")
        elif isinstance(x, (Layer, Tensor)):
            yield name, x
        elif callable(getattr(x, "parameters", None)) and not isinstance(x, type):
            raise TypeError(f"Layer: attribute {name!r} is a {type(x).__name__} with parameters of its own, which "
                            f"would not be trained; derive {type(x).__name__} from ag.Layer.")


def _refuse_hidden(root: Layer, reached: Sequence[Layer], tensors: set[int]) -> None:
    """Refuse layers and parameters that stand where the walk over `root` has not come."""
    known = tensors.union(id(x) for layer in reached for x in (layer, *layer.children().values()))
    seen: set[int] = set()

    def lost_in(x: object) -> tuple[object, str] | None:
        for part in objects_in(x, seen, True, (Watched, Tensor)) if id(x) not in known else ():
            if isinstance(part, Tensor) and part.requires_grad and part.node is None and id(part) not in known:
                return part, "parameter"
            if isinstance(part, Layer) and id(part) not in known and all(
                    layer is not root for _, layer in part.modules()):  # what contains the root is not lost with it
                return part, type(part).__name__
        return None

    for layer in reached:
        for name, x in object.__getattribute__(layer, "__dict__").items():  # looking is nothing that a step reads
            if name[:1] == "_" or (lost := lost_in(x)) is None:
                continue
            seen.clear()
            name, x = next((item for item in members({name: x}) if lost_in(item[1]) is not None), (name, x))
            what, remedy = f"a {lost[1]} that children() leaves out", "put it among the children"
            if lost[0] is not x:
                what = f"a {type(x).__name__} with a {lost[1]} in it"
                remedy = f"use a list, tuple or dict, or the name '_{name}' if it is no part of the model"
            raise TypeError(f"{type(layer).__name__}: attribute {name!r} is {what}, which would not be trained; "
                            f"{remedy}.")
        for cls in type(layer).__mro__:
            for name, x in () if cls.__module__.startswith("ag.") or cls is object else [*vars(cls).items()]:
                if (lost := lost_in(x)) is not None:
                    raise TypeError(f"{type(layer).__name__}: {name!r} of the class {cls.__name__} has a {lost[1]}, "
                                    f"which would not be trained; assign it in __init__, as self.{name.strip('_')} = "
                                    f"...")


def state_of(model: Model) -> dict[str, Tensor]:
    """Parameters and buffers of a layer, each once, or of any object with ``parameters()``."""
    return {**model.parameters(), **buffers_of(model)}


def trained_or_frozen(model: Model) -> dict[str, Tensor]:
    """Parameters of a model, and those that `freeze` has frozen."""
    frozen = [(_joined(prefix, name), own_tensors(layer)[name]) for prefix, layer in model.modules()
              for name in layer._frozen] if isinstance(model, Layer) else []
    return {**model.parameters(), **{name: x for name, x in frozen if not x.requires_grad}}


def modes_of(model: object) -> Modes:
    """Return mode and frozen tensors of each layer, by its name."""
    return {name: (x.training, x._frozen) for name, x in model.modules()} if isinstance(model, Layer) else {}


def restore_modes(model: object, modes: Modes) -> None:
    """Give layers these modes, and freeze what was frozen."""
    for name, layer in model.modules() if isinstance(model, Layer) else ():
        layer.training, frozen = modes.get(name, (layer.training, ()))
        for own, x in own_tensors(layer).items():
            x.requires_grad = x.requires_grad and own not in frozen
        if frozen:
            layer._frozen = frozen


def buffers_of(model: object) -> dict[str, Tensor]:
    """Buffers of a layer, or of any object that has some."""
    found: dict[str, Tensor] = model.buffers() if hasattr(model, "buffers") else {}
    return found


def frozen_of(model: object) -> dict[str, FrozenTensor]:
    """Frozen tensors of a layer."""
    return model.frozen() if isinstance(model, Layer) else {}


def named_tensors(model: Model) -> dict[str, Tensor]:
    """Parameters and buffers of a model with all names that they have."""
    return model.named_tensors() if isinstance(model, Layer) else state_of(model)


def ties(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The first name of every tensor that has another one, by the other."""
    first: dict[int, str] = {}
    return {name: first[x.id] for name, x in tensors.items() if first.setdefault(x.id, name) != name}


def refuse_untied(tensors: Mapping[str, Tensor], tied: Mapping[str, str], source: str) -> None:
    """Refuse a model in which some tensors are two that are one in a file; `source` begins the message."""
    wrong = [f"{first} and {name}" for name, first in tied.items()
             if name in tensors and first in tensors and tensors[name] is not tensors[first]]
    if wrong:
        raise CheckpointError(f"{source} does not fit this model: {', '.join(wrong)} are one tensor in the file and "
                              f"two in the model; tie them first.")


def load_into(mine: Mapping[str, Tensor], state: State, strict: bool = True,
              source: str = "load_state_dict: the state") -> None:
    """Copy arrays into tensors by name, all or nothing; `source` begins the message if they do not fit."""
    refusal = f"{source} does not fit this model"
    arrays, tied = number_arrays(state, refusal), ties(mine)
    given: dict[str, Array] = {}  # by first names
    differ = []
    for name in (name for name in mine if name in arrays):
        known = given.setdefault(tied.get(name, name), arrays[name])
        if known.shape == arrays[name].shape and not np.array_equal(known, arrays[name], equal_nan=True):
            differ.append(f"{tied[name]} and {name} are one tensor and have different values")
    required = [name for name in mine if tied.get(name, name) not in given] if strict else ()
    compare_names(refusal, {k: x.shape for k, x in mine.items()}, {k: x.shape for k, x in arrays.items()}, required,
                  others=not strict)
    if differ:
        raise CheckpointError(f"{refusal}: {', '.join(differ)}.")
    refuse_unlike(given, {name: mine[name].buffer.dtype for name in given}, refusal)
    before: list[tuple[Tensor, Array]] = []
    try:
        for name, array in given.items():
            before.append((mine[name], mine[name].numpy()))
            mine[name].data = array
    except BaseException:  # also an interrupt
        for x, array in before:
            x.data = array
        raise


def number(what: str, fits: Callable[[float], bool], required: str) -> Callable[[object], float]:
    """A check of a setting; `what` begins its message, such as "ag_dropout: rate"."""
    function, _, argument = what.partition(": ")

    def check(value: object) -> float:
        if isinstance(value, Tensor):
            number_given(function, argument, value)
        if not isinstance(value, Real) or isinstance(value, bool) or not (isfinite(value) and fits(float(value))):
            raise ValueError(f"{what} is {value!s:.60}; it must be {required}.")
        return float(value)

    return check


def sizes(function: str, **given: int) -> tuple[int, ...]:
    """Sizes that a layer, which messages call `function`, is made with."""
    if not counts(*given.values()):
        shown = " and ".join(f"{name} is {value!r}" for name, value in given.items())
        what = "both must be whole numbers" if len(given) > 1 else "it must be a whole number"
        raise ValueError(f"{function}: {shown}; {what} of at least 1.")
    return tuple(map(int, given.values()))


def activation_called(given: object, function: str) -> tuple[str | None, Callable[[TensorLike], Tensor] | None]:
    """The name of an activation and its function, of which either is given; None and None for None."""
    for name, op in ACTIVATIONS.items():
        if given is op or (isinstance(given, str) and given == name):
            return name, op
    if given is not None:
        raise ValueError(f"{function}: unknown activation {given!r:.60}; use one of {', '.join(ACTIVATIONS)}, or None. "
                         f"Call another function in the forward of a layer of your own.")
    return None, None
