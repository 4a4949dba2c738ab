"""Arguments of a captured step: slots in device memory that every call fills, and what the step gets.

The placeholder of an array refuses access to its values, and becomes a slot where the step makes a tensor of it.
"""

from __future__ import annotations

import operator as python
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, cast
from weakref import ref

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import DType
from ag.engine.interpreter import recording_here
from ag.engine.kernels.convert import Placeholder, stored
from ag.engine.primitive import Array
from ag.engine.program import Given, Recording
from ag.engine.shape import Shape
from ag.errors import CaptureError

Value = Any  # what numpy is given and gives: arrays, numbers, and lists, tuples and slices of them
Args = tuple[Value, ...]  # of a call: tensors and numpy arrays
Label = tuple[object, ...]  # stands for a buffer in every recording of the step
_Given = list[tuple[Buffer, Array | Buffer]]
_GivenTo = tuple[Args, dict[str, Value]]  # a function: by position, by name

# What a replay computes again with numpy: methods, functions and operators that make arrays of arrays.  Functions that
# read no values at all are called at once, in `_LIKE`.
_BOTH = (
    "all", "any", "argmax", "argmin", "argsort", "clip", "cumprod", "cumsum", "dot", "max", "mean", "min", "prod",
    "ravel", "repeat", "reshape", "round", "squeeze", "std", "sum", "swapaxes", "take", "trace", "transpose", "var")
_METHODS = frozenset((*_BOTH, "astype", "conj", "copy", "diagonal", "flatten"))
_FUNCTIONS = frozenset((np.linalg.norm, *[getattr(np, name) for name in (
    *_BOTH, "amax", "amin", "append", "around", "atleast_1d", "atleast_2d", "atleast_3d", "average", "broadcast_to",
    "column_stack", "concatenate", "delete", "diff", "einsum", "expand_dims", "flip", "fliplr", "flipud", "hstack",
    "imag", "inner", "insert", "isclose", "kron", "median", "moveaxis", "nan_to_num", "nanmax", "nanmean", "nanmin",
    "nansum", "outer", "pad", "percentile", "ptp", "quantile", "real", "resize", "roll", "rollaxis", "rot90",
    "searchsorted", "sort", "stack", "take_along_axis", "tensordot", "tile", "tril", "triu", "vstack", "where")]))
_LIKE = frozenset((np.empty_like, np.full_like, np.iscomplexobj, np.isrealobj, np.ndim, np.ones_like, np.result_type,
                   np.shape, np.size, np.zeros_like))
_DESCRIBED = frozenset(("dtype", "itemsize", "nbytes", "ndim", "shape", "size"))
_WRITES = frozenset(("fill", "itemset", "partition", "put", "resize", "setfield", "setflags", "sort"))
_BINARY = ("add", "and", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift", "sub", "truediv", "xor")
_RECORDED = (*_BINARY, "eq", "ge", "gt", "le", "lt", "ne", "neg", "pos", "abs", "invert")
_READ = ("divmod", "rdivmod", "bool", "ceil", "complex", "contains", "float", "floor", "format", "index", "int",
         "reduce_ex", "repr", "round", "str", "trunc")
_IN_PLACE = (*(f"i{name}" for name in _BINARY), "setitem")
_FAR = 1 << 26  # bytes: an array that is spread over more is copied without its gaps
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), np.generic, np.dtype, type)


class _Number(NamedTuple):
    """The number of an array: of an argument, or beyond these of what numpy makes."""

    number: int


class _Own:
    """An array of the step's own that numpy is given: every replay reads it again.  It equals one with its contents."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.look()

    def look(self) -> None:
        x = self.array
        self.contents = x.dtype, x.shape, x.strides, sha256(x.tobytes()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Own) and self.contents == other.contents

    def __repr__(self) -> str:
        return f"an array of shape {self.array.shape}"


class Recipe(NamedTuple):
    """A call of numpy to be made again: a function, its arguments, and the shape and type of its result."""

    function: Callable[..., Value]
    given: _GivenTo
    shape: Shape
    dtype: np.dtype[Value]

    @property
    def name(self) -> str:
        owner = getattr(self.function, "__self__", None)
        name = getattr(self.function, "__name__", str(self.function))
        return f"{owner.__name__}.{name}" if isinstance(owner, np.ufunc) else name

    def value(self, values: Sequence[Value]) -> Value:
        """Return what numpy makes of other arrays, by their numbers; raise if its shape or type is another."""
        def value(x: Value) -> Value:
            return values[x.number] if type(x) is _Number else x.array if type(x) is _Own else x

        made = _called(self.function, self.given, value)
        if (np.shape(made), np.result_type(made)) != (self.shape, self.dtype):
            raise CaptureError(f"ag_capture: numpy's {self.name} made an array of shape {self.shape} of the arguments, "
                               f"and makes one of shape {np.shape(made)}.")
        return made


class StepArgument(Placeholder):
    """Placeholder for an array argument, or what numpy made of some: its shape may be read, its values may not."""

    # Not a subclass of `ndarray`, which could not refuse access from C.
    __slots__ = ("__weakref__", "_arguments", "_array", "_is_number", "_of", "number")

    def __init__(self, array: Value, arguments: ref[Arguments], number: int, of: object = None) -> None:
        self._array: Array = np.asarray(array)  # in memory of its own, by which it is found where it is uploaded
        self._is_number = isinstance(array, np.generic)  # of numpy's, as sums are
        self._arguments = arguments
        self.number = number
        self._of = of  # kept alive, as what is made of a kept argument is one

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Make `isinstance(x, np.ndarray)` true, or that of a number's class."""
        return type(self.given())

    def opened(self) -> Array:
        return self._array

    def given(self) -> Value:
        return self._array[()] if self._is_number else self._array

    def _recorded(self) -> Arguments | None:
        """Return the arguments while the step is recorded; None: it acts like any array."""
        arguments = self._arguments()
        return arguments if arguments is not None and arguments.is_recorded else None

    def _values(self, writes: bool = False) -> Value:
        """Return what numpy gets, for access to its values; refused while the step is recorded."""
        if self._recorded() is not None:
            refused = (f"ag_capture: the step reads or changes the values of an argument of shape {self._array.shape} "
                       f"in Python; a replay would not see those of another call. Compute with tensors, or beforehand.")
            recording_here().refuse(CaptureError(refused))
            if writes:
                raise CaptureError(refused)  # also on trial: the caller's array would not change
        return self.given()

    def _plain(self, function: Callable[..., Value], given: _GivenTo) -> Value:
        """Refuse to record a call, and make it where the step goes on."""
        self._values()
        return _called(function, given, _opened)

    def _make(self, function: Callable[..., Value], args: tuple[Value, ...], options: dict[str, Value]) -> Value:
        """Let numpy make something, and record that where it is an array."""
        arguments, given = self._recorded(), (args, options)
        if arguments is None:
            return _called(function, given, _opened)
        if options.get("out") is not None or not all(map(_is_repeatable, _leaves(given))):
            return self._plain(function, given)
        if arguments.settings != _settings():
            recording_here().refuse(CaptureError(
                "ag_capture: the step changes numpy's handling of errors, or the filters of warnings, around what it "
                "computes of its arguments, and a replay would not; change them outside, or compute with tensors."))
        numbered = _mapped(given, _numbered)
        try:
            found = _called(function, given, _opened)
        except Exception as error:  # of whatever kind; a step that catches it is refused
            if isinstance(error, ValueError) and "read-only" in str(error):
                self._values(writes=True)
            arguments.raised = f"{type(error).__name__}: {error}"
            raise
        if isinstance(found, np.bool_) or not (type(found) is np.ndarray or isinstance(found, np.generic)):
            self._values()
            return found
        recipe = Recipe(function, numbered, found.shape, found.dtype)
        if any(own.array is found or own.array is getattr(found, "base", None) for own in _own([recipe])):
            self._values(writes=True)  # which were written, as `out` was given by its place
        return arguments.made(recipe, found, given)

    def __getattr__(self, name: str) -> object:
        found = getattr(self._array, name)  # AttributeError, as of an array
        if name in _DESCRIBED:
            return found
        if name in _METHODS and self._recorded() is not None:
            return lambda *args, **options: self._make(_method, (self, name, *args), options)
        if name in ("T", "mT", "real", "imag"):
            return self._make(getattr, (self, name), {})
        self._values(name in _WRITES)
        return found

    def __hash__(self) -> int:
        return hash(self._values() if self._is_number else self._array)  # arrays have none

    def __setattr__(self, name: str, value: object) -> None:
        if name in StepArgument.__slots__:
            object.__setattr__(self, name, value)
        else:
            setattr(self._values(writes=True), name, value)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, key: Value) -> object:
        return self._make(python.getitem, (self, key), {})

    def __iter__(self) -> Iterator[object]:
        return (self[k] for k in range(len(self)))

    def __array__(self, dtype: np.dtype[Value] | None = None, copy: bool | None = None) -> Array:
        return np.array(self._values(), dtype)

    def __buffer__(self, flags: int) -> memoryview:  # Python calls it from 3.12 on; before, there is no buffer
        data: memoryview = self._values().data
        return data

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> object:
        if any(isinstance(x, Tensor) for x in inputs):
            return NotImplemented  # the tensor's op makes a slot of the argument
        for x in cast("tuple[object, ...]", options.get("out") or ()):
            if type(x) is StepArgument:
                x._values(writes=True)
        return self._make(getattr(ufunc, method), inputs, options)

    def __array_function__(self, function: Callable[..., object], types: Sequence[type], args: Sequence[object],
                           options: dict[str, object]) -> object:
        first, *more = args or (None,)
        if type(first) is StepArgument and StepArgument not in map(type, more) and function in _LIKE:
            return function(first.opened(), *more, **options)
        if any(issubclass(kind, Tensor) for kind in types):
            return NotImplemented
        if function not in _FUNCTIONS:
            return self._plain(function, (tuple(args), options))
        return self._make(function, tuple(args), options)


def _method(x: Value, name: str, *args: Value, **options: Value) -> Value:
    return getattr(x, name)(*args, **options)


def _mapped(x: Value, f: Callable[[Value], Value]) -> Value:
    """Replace the leaves of lists, tuples, dicts and slices, at any depth."""
    if type(x) in (list, tuple):
        return type(x)([_mapped(y, f) for y in x])
    if type(x) is dict:
        return {key: _mapped(y, f) for key, y in x.items()}
    if type(x) is slice:
        return slice(*(_mapped(y, f) for y in (x.start, x.stop, x.step)))
    return f(x)


def _leaves(x: Value) -> list[Value]:
    found: list[Value] = []
    _mapped(x, found.append)
    return found


def _called(function: Callable[..., Value], given: _GivenTo, f: Callable[[Value], Value]) -> Value:
    args, options = _mapped(given, f)
    return function(*args, **options)


def _opened(x: Value) -> Value:
    """Return what numpy gets for a leaf."""
    return x.given() if type(x) is StepArgument else x


def _numbered(x: Value) -> Value:
    return _Number(x.number) if type(x) is StepArgument else _Own(x) if type(x) is np.ndarray else x


def _is_repeatable(x: Value) -> bool:
    """Return whether numpy can be given the same leaf again by a replay."""
    return type(x) is StepArgument or isinstance(x, _CONSTANTS) or (type(x) is np.ndarray and not x.dtype.hasobject)


def _own(recipes: Sequence[Recipe]) -> list[_Own]:
    return [x for recipe in recipes for x in _leaves(recipe.given) if type(x) is _Own]


def _operator(name: str, is_reflected: bool = False) -> Callable[..., object]:
    """Return an operator that numpy makes again."""
    function = getattr(python, f"__{name}__")

    def operator(self: StepArgument, *others: object) -> object:
        if any(isinstance(x, Tensor) for x in others):
            return NotImplemented  # the tensor's operator is an op
        return self._make(function, (*others, self) if is_reflected else (self, *others), {})

    return operator


def _refusing(name: str, writes: bool) -> Callable[..., object]:
    """Return an operator that needs values."""
    def operator(self: StepArgument, *others: object) -> object:
        if not writes and any(isinstance(x, Tensor) for x in others):
            return NotImplemented
        return getattr(self._values(writes), name)(*_mapped(others, _opened))

    return operator


for _name in _RECORDED:
    setattr(StepArgument, f"__{_name}__", _operator(_name))
for _name in _BINARY:
    setattr(StepArgument, f"__r{_name}__", _operator(_name, is_reflected=True))
for _name in (*_READ, *_IN_PLACE):
    setattr(StepArgument, f"__{_name}__", _refusing(f"__{_name}__", _name in _IN_PLACE))


class _TensorSlot:
    """A tensor argument: the step computes with a tensor of its own, which every call fills."""

    checks = ()

    def __init__(self, number: int, example: Tensor) -> None:
        device = example.buffer.backend
        self.target = device.alloc(example.shape, example.buffer.dtype)
        device.copy(self.target, example.buffer)
        self.number, self.name, self.example = number, example.name, example.buffer
        self.targets = [self.target]

    def placeholder(self, arguments: ref[Arguments]) -> Tensor:
        made = Tensor(self.target)
        made.name = self.name
        return made

    def close(self, recording: Recording, gradients: Sequence[Buffer]) -> None:
        """End recording; raise if the step also uses the memory of the caller's tensor."""
        given, self.example = self.example, self.target
        for used in (*gradients, *[b for launch in recording.launches for b in launch.buffers]):
            if used.block is given.block and used.overlaps(given):
                raise CaptureError(f"ag_capture: an argument of shape {given.shape} is a tensor that the step also "
                                   f"uses without being given it, such as a layer's; a replay works on a copy of its "
                                   f"arguments. Pass another tensor, or leave the argument out.")

    def kind(self, x: Tensor) -> tuple[object, ...]:
        """Return of arguments like `x` the type, the slot and the name."""
        return Tensor, self.target, x.name, None

    def give(self, value: Tensor, to: _Given) -> None:
        to.append((self.target, value.buffer))


class _ArraySlot:
    """An array argument, or what numpy makes of some, recognised by its memory where the step makes a tensor of it."""

    name = None

    def __init__(self, number: int, example: Array) -> None:
        self.number, self.example = number, cast("Array | None", example)
        self.targets: list[Buffer] = []  # one per use
        self.checks: list[tuple[int, Callable[[Array], object]]] = []  # see `_check`

    def placeholder(self, arguments: ref[Arguments]) -> StepArgument:
        return StepArgument(self.example, arguments, self.number)

    def buffer_for(self, array: Array, dtype: DType, device: Device) -> Buffer | None:
        """Return a buffer that every call fills with the argument, in the shape of `array`; None: it is a part."""
        given = cast(Array, self.example)
        if (array.size, array.dtype) != (given.size, given.dtype):
            return None
        target = device.alloc(array.shape, dtype)
        device.upload(array, target)
        self.targets.append(target)
        return target

    def close(self, recording: Recording, gradients: Sequence[Buffer]) -> None:
        """End recording: free the example, and keep the checks of values."""
        example, self.example = self.example, None
        self.checks = [(limit, refuse) for buffer, limit, refuse in recording.limits
                       if any(buffer is t for t in self.targets)]
        whole = next((t.dtype for t in self.targets if not t.dtype.is_float), None)
        if whole is not None and not self.checks and not np.can_cast(cast(Array, example).dtype, np.int32):
            self.checks.append((0, partial(stored, dtype=whole)))  # raises as an upload does

    def kind(self, x: Array) -> tuple[object, ...]:
        """Return of arguments like `x` the type, the target or what adds all, the element type and the shape."""
        alone = len(self.targets) == 1 and not self.checks and self.targets[0].shape == x.shape
        return np.ndarray, self.targets[0] if alone else self.give, x.dtype, x.shape

    def give(self, value: Value, to: _Given) -> None:
        """Add all targets, each with the values in its shape."""
        array = np.asarray(value)
        if self.checks and array.dtype.kind in "iu":  # checked: they fit
            array = array.astype(np.int32)
        for target in self.targets:
            to.append((target, array if array.shape == target.shape else array.reshape(target.shape)))


class Arguments:
    def __init__(self, args: tuple[Tensor | Array, ...]) -> None:
        self._slots: list[_TensorSlot | _ArraySlot] = [  # of arguments, then of what numpy makes and the step uploads
            _TensorSlot(i, x) if isinstance(x, Tensor) else _ArraySlot(i, _apart(x)) for i, x in enumerate(args)]
        self._count = len(args)
        self.recipes: list[Recipe] = []  # of what numpy makes, in their order: every replay makes all
        self._examples = {  # by the address of its memory, which is its own
            _address(slot.example): slot for slot in self._slots if isinstance(slot, _ArraySlot)}
        self._known: tuple[Args, list[Value]] | None = None  # what `check` has made for `given`
        self.settings: tuple[object, ...] = ()  # of numpy and warnings when the step began
        self.has_arrays = bool(self._examples)  # whether an argument is one
        self.is_recorded = False  # else placeholders that are still there act like arrays
        self.raised: str | None = None  # the last error of numpy, which the step may have caught
        self.device = next((x.buffer.backend for x in args if isinstance(x, Tensor)), None)
        self.labels: dict[int, Label] = {  # by ids of blocks, for traces
            id(target.block): ("argument", slot.number) for slot in self._slots for target in slot.targets}
        self.checks: list[tuple[int, int, Callable[[Array], object]]] = []  # of values, by number
        self._numbers: list[Buffer] = []  # kept alive, as labels refer to ids of their blocks

    def placeholders(self) -> list[Tensor | StepArgument]:
        self.is_recorded, this = True, ref(self)
        self.settings = _settings()
        return [slot.placeholder(this) for slot in self._slots]

    def name_of(self, placeholder: Tensor) -> str | None:
        return next(slot.name for slot in self._slots if any(t is placeholder.buffer for t in slot.targets))

    def made(self, recipe: Recipe, found: Value, of: object) -> StepArgument:
        """Note what numpy made of arguments, and return a placeholder for it."""
        number = self._count + len(self.recipes)
        self.recipes.append(recipe)
        if isinstance(found, np.ndarray):
            if not found.flags.owndata or _address(found) in self._examples:
                found = _apart(found)
            found.flags.writeable = False
        x = StepArgument(found, ref(self), number, of)
        self._examples[_address(x.opened())] = _ArraySlot(number, x.opened())
        return x

    def on_upload(self, array: Array, dtype: DType, device: Device) -> Buffer | None:
        """Return the buffer of a host array that the step uses: a slot or a number; else refuse, and return None."""
        slot = self._examples.get(_address(array))
        if slot is not None and (target := slot.buffer_for(array, dtype, device)) is not None:
            if slot not in self._slots:
                self._slots.append(slot)
            self.labels[id(target.block)] = "argument", slot.number, len(slot.targets)
            return target
        if array.ndim == 0:
            constant = device.alloc((), dtype)
            device.upload(array, constant)
            self.labels[id(constant.block)] = "number", array.item()
            self._numbers.append(constant)
            return constant
        instead = ("Pass it as an argument, or make a tensor of it before the step." if dtype.is_float else
                   "Make it an argument of the step.")
        if not dtype.is_float and array.size > 1 and np.array_equal(array.ravel(), np.arange(array.size)):
            instead = "Pass it as an argument, or take weight[:, :n] of an embedding for its positions 0 to n - 1."
        cast(Recording, recording_here()).refuse(CaptureError(
            f"ag_capture: the step uploads an array of shape {array.shape} that is not one of its arguments; a replay "
            f"would use its old values. {instead}"))
        return None

    def described(self) -> list[tuple[str, dict[str, object], Sequence[Buffer]]]:
        """List what numpy makes, like launches."""
        def of(x: Value) -> object:
            return x if type(x) in (_Number, _Own) else (type(x), repr(x))

        return [(f"numpy's {x.name}", {"of": (x.function, _mapped(x.given, of), x.shape, x.dtype)}, ())
                for x in self.recipes]

    def look(self) -> None:
        """Note what the step's own arrays hold before a call that is compared."""
        for own in _own(self.recipes):
            own.look()

    def close(self, recording: Recording, gradients: Sequence[Buffer]) -> None:
        """End recording; `gradients` from before the step are used by it."""
        for own in _own(self.recipes):
            if own != _Own(own.array):
                raise CaptureError(f"ag_capture: the step changes an array of shape {own.array.shape} after numpy used "
                                   f"it with an argument, and a replay would not; use another, or a tensor.")
        for slot in self._slots:
            slot.close(recording, gradients)
            self.checks += [(slot.number, *check) for check in slot.checks]
        self._examples.clear()
        self._numbers.clear()

    def kinds(self, args: Args) -> list[tuple[object, ...]]:
        return [slot.kind(x) for slot, x in zip(self._slots, args, strict=True)]

    def targets(self) -> list[Buffer]:
        return [t for slot in self._slots for t in slot.targets]

    def check(self, args: Args) -> None:
        """Raise if a value is not allowed, or numpy makes another kind of array of the arguments."""
        values = self._values(args)
        for i, limit, refuse in self.checks:
            _check(np.asarray(values[i]), limit, refuse)
        if self.recipes:
            self._known = args, values

    def _values(self, args: Args) -> list[Value]:
        values = [*args]
        for recipe in self.recipes:
            values.append(recipe.value(values))
        return values

    def given(self, args: Args) -> Given:
        ready, self._known = self._known, None
        values = ready[1] if ready is not None and ready[0] is args else self._values(args)
        found: _Given = []
        for slot in self._slots:
            slot.give(values[slot.number], found)
        return found


_UNSIGNED = {np.dtype(kind + size): np.dtype("u" + size) for kind in "iu" for size in "1248"}
_LIMITS = {dtype: int(np.iinfo(dtype).max) + 1 for dtype in _UNSIGNED}


def _check(values: Any, limit: int, refuse: Callable[[Array], object]) -> None:
    """Call `refuse`, which raises if it must, unless all values are whole numbers from 0 to below a limit."""
    unsigned = _UNSIGNED.get(values.dtype)
    if unsigned is None or not values.size or (  # hot path: a negative number would be one of `_LIMITS` or more
            np.maximum.reduce(values.view(unsigned), axis=None) >= min(limit, _LIMITS[values.dtype])):
        refuse(values)


def _address(array: Any) -> int:
    """Return where the first element of an array lies."""
    return int(array.__array_interface__["data"][0])


def _settings() -> tuple[object, ...]:
    """Return how numpy handles errors, and what handles warnings."""
    return np.geterr(), np.geterrcall(), id(warnings.filters), warnings.showwarning


def _apart(array: Array) -> Array:
    """Return a copy in memory of its own that nothing may write to, with the strides, in whose order numpy adds."""
    steps = [step * (n - 1) for step, n in zip(array.strides, array.shape, strict=True)]
    before = -sum(step for step in steps if step < 0)
    nbytes = before + sum(step for step in steps if step > 0) + array.itemsize
    if array.size == 0 or array.dtype.hasobject or nbytes > _FAR + 8 * array.nbytes:
        copied = np.array(array, order="K", copy=True, subok=False)
    else:
        copied = np.ndarray(array.shape, array.dtype, np.empty(nbytes, np.uint8), before, array.strides)
        copied[...] = array
    copied.flags.writeable = False
    return copied
