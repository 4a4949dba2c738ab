"""Capture: record a training step, then replay it without running its Python; docs/capture.md is the contract.

A change of what the step reads records anew.  Calls 2, 8, 32, 128 and so on are recorded again and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from threading import RLock, get_ident
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.tape import CONTEXT
from ag.autograd.tensor import Tensor, type_name
from ag.autograd.tree import TreeDef, opaque_type, tree_flatten
from ag.capture.arguments import Args
from ag.capture.call import NotCapturedError, RecordedCall
from ag.capture.program import CapturedProgram, Replay
from ag.engine.backend import Backend
from ag.engine.buffer import Device
from ag.engine.interpreter import current, recording_here
from ag.engine.kernels.convert import refuse_masked
from ag.engine.program import Program
from ag.errors import CaptureError, ExportError
from ag.log import log

PROGRAMS_KEPT = 16  # per step, or kind of call where these are limited; the least recently used one is closed
_GROWTH = 4  # factor between the calls at which a program is compared
_IN_VAIN = 64  # after so many recordings without a replay a step runs eagerly

P = ParamSpec("P")
R = TypeVar("R")


class CrowdedError(CaptureError):
    """Raised before a call of one kind too many."""


class _Trusted:
    """A program, and how often it was compared with the step."""

    def __init__(self, key: tuple[object, ...], program: CapturedProgram) -> None:
        self.key, self.program = key, program
        self.calls, self.due = 1, 2  # the next call to be compared

    def is_due(self) -> bool:
        """Count a call, and return whether it has to be compared."""
        self.calls += 1
        return self.calls >= self.due


class CapturedStep(Generic[P, R]):
    """A step function that is recorded and replayed; see docs/capture.md.

    Parameters
    ----------
    step : callable
    backend, recompute, calls, trial, kinds : optional
        The device to record, by default the first that does something; as of `ag_capture`; functions of the user that
        a step of the library calls; whether a step that cannot be captured runs to its end before the error; for a job,
        whose calls come from several threads, with any arguments: how many kinds of calls are captured.

    Attributes
    ----------
    program : Program or None
        The recorded launches that ran last; None before the first call.
    replayed : bool
        Whether calls like the last one had been replayed before it.

    Examples
    --------
    >>> import ag
    >>> step = ag.ag_capture(lambda x: 2 * x)
    >>> [step(ag.ag_tensor([[1.0]])).item() for _ in range(4)], step.replayed
    ([2.0, 2.0, 2.0, 2.0], True)
    """

    def __init__(self, step: Callable[P, R], backend: Device | None = None, recompute: bool = False,
                 calls: Sequence[object] = (), trial: bool = False, kinds: int | None = None) -> None:
        self._step: Callable[..., R] = step
        self.__wrapped__ = step  # `inspect` and editors show its arguments
        self._backend = backend
        self._options = recompute, (step, *calls), trial
        self._programs: list[_Trusted] = []  # the one used last comes last
        self._in_vain = 0  # recordings since the last replay
        self._own_change: str | None = None  # a change by the step that made a recording useless
        self._gave_up = False
        self._most = kinds
        self._thread = -1 if kinds is None else 0  # the calling thread; -1: none yet, 0: several
        self._lock, self._busy = RLock(), False
        self.replayed = False
        # Compiled replay of the last program, for arguments or for one tuple of all of them, as samples are.
        self._quick: tuple[Replay | None, bool] = None, False
        self._made: dict[_Trusted, Replay | None] = {}  # of each; a program holding its own would be a reference cycle

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"ag_capture: {self!r} cannot be copied or pickled, as what it recorded lies on a device; copy "
                        f"or pickle the function, and capture that again.")

    def __repr__(self) -> str:
        name = getattr(self._step, "__name__", type(self._step).__name__)
        recorded = len(self._programs)
        return f"<captured step {name}, {recorded} program{'' if recorded == 1 else 's'} recorded>"

    @property
    def program(self) -> Program | None:
        """The recorded launches that ran last."""
        return self._programs[-1].program.program if self._programs else None

    @property
    def kinds(self) -> int:
        """Count the kinds of calls that have a program."""
        return len({trusted.key for trusted in self._programs})

    def __call__(self, *args: P.args, **named: P.kwargs) -> R:
        if named:
            raise TypeError(f"ag_capture: {', '.join(named)} was given by name; a captured step takes its arguments by "
                            f"position.")
        result: R = self.result(args)
        return result

    def result(self, args: Args) -> Any:
        """Return what a call with these arguments returns."""
        if (here := current()) is not None and here.exports:
            raise ExportError("export_onnx: the model calls a captured step, which is run otherwise than op by op; "
                              "export the function without ag_capture.")
        if here is not None and here.beside() is not None:
            return self._step(*args)
        if here is not None and (recording := recording_here()) is not None:
            recording.refuse(CaptureError("ag_capture: the step calls another captured step; captured steps do not "
                                          "nest. Call the function itself inside the step."))
            return self._step(*args)
        with self._lock:
            if self._busy:  # a signal handler inside a call, which uses the slots
                return self._step(*args)
            self._busy = True
            try:
                quick, is_inside = self._quick
                if quick is not None:
                    given = args if not is_inside else args[0] if len(args) == 1 else None
                    self.replayed = True
                    if type(given) is tuple and (result := quick(given)) is not NotImplemented:
                        return result
                self.replayed = False
                leaves, structure = _leaves(args, self._most is not None)
                if self._most is not None:
                    leaves = _moved(leaves, cast(Device, self._backend))
                return self._replay_or_record(args, leaves, structure)
            finally:
                self._busy = False

    def _replay_or_record(self, args: Args, leaves: Args, structure: object) -> object:
        if self._thread != get_ident() and self._thread != 0:
            self.close()  # results in the other thread share memory, which must not be overwritten while in use
            self._thread = get_ident() if self._thread == -1 else 0
        self._quick, self.replayed = (None, False), True
        for trusted in reversed(self._programs):
            quick = self._made.get(trusted)
            if quick is not None and trusted.key[0] == structure and (result := quick(leaves)) is not NotImplemented:
                self._in_vain = 0
                if trusted is not self._programs[-1] or leaves is args or leaves is args[0]:
                    self._comes_last(trusted, args, leaves)
                return result
        self.replayed = False
        # Of several arguments the structure is their tree; of one it is that of the argument alone.
        tree = tree_flatten(args)[1] if leaves is not args and len(args) == 1 else cast("TreeDef | None", structure)
        if tree is not None and (opaque := opaque_type(tree)) is not None:
            raise CaptureError(f"ag_capture: an argument holds a {opaque}; arguments are tensors, arrays, numbers and "
                               f"strings, in dicts, lists, tuples and dataclasses. Bind other values with a closure.")
        key = _kind(leaves, structure)
        alike = [trusted for trusted in self._programs if trusted.key == key]
        self.replayed = any(trusted.calls > 2 for trusted in alike)
        change: str | None = None
        for trusted in reversed(alike):
            if (change := trusted.program.change()) is None:
                return self._call(trusted, args, leaves, tree)
        if self._most is not None:
            if not alike and self.kinds == self._most:
                raise CrowdedError(f"ag_capture: there are programs of {self._most} kinds of calls, which is the most.")
        elif self._in_vain == _IN_VAIN and not self._gave_up:
            reason = change or self._own_change or "its arguments are of yet another kind"
            self._give_up(f"it was recorded {_IN_VAIN} times and not replayed since, now as {reason}")
        if self._gave_up:
            return self._step(*args)
        return self._record(key, args, leaves, tree)

    def _comes_last(self, trusted: _Trusted, args: Args, leaves: Args) -> None:
        """Note that a program was used last, by a call with these arguments."""
        if self._programs[-1] is not trusted:
            self._programs.remove(trusted)
            self._programs.append(trusted)
        is_inside = len(args) == 1 and leaves is args[0]
        self._quick = self._made.get(trusted) if is_inside or leaves is args else None, is_inside

    def _give_up(self, reason: str) -> None:
        self._gave_up = True
        log.warning("ag_capture: a step runs uncaptured from here on, which is slower: %s.", reason)
        self.close()

    def _record(self, key: tuple[object, ...], args: Args, leaves: Args, tree: TreeDef | None) -> object:
        self._in_vain += 1
        call = RecordedCall(self._step, leaves, tree, self._backend, *self._options, args)
        try:
            call.record()
            program = CapturedProgram(call, self._thread)
        except NotCapturedError as reason:
            if self._options[2] or self._most is not None:  # on trial, or of a job, which goes on or ends
                raise CaptureError(f"ag_capture: {reason}") from None
            self._give_up(str(reason))
            return self._step(*args)
        except BaseException as error:
            call.undo()
            if call.caught and not self._options[2]:  # the step would go on again
                self._give_up(str(error).removeprefix("ag_capture: ").rstrip("."))
            raise
        results = program.results(leaves)
        if program.own_change is not None:
            self._own_change = program.own_change
            program.close()
            return results
        self._programs.append(_Trusted(key, program))
        rivals = self._programs if self._most is None else [t for t in self._programs if t.key == key]
        if len(rivals) > PROGRAMS_KEPT:
            self._forget(rivals[0])
        return results

    def _call(self, trusted: _Trusted, args: Args, leaves: Args, tree: TreeDef | None) -> object:
        self._comes_last(trusted, args, leaves)
        program = trusted.program
        try:
            program.check(leaves)
        except Exception:  # noqa: BLE001 - of whatever kind the checks of ops raise
            return self._step(*args)  # raises the error, after all that the step does before it
        if not trusted.is_due():
            self._in_vain = 0
            result = program.replay(leaves)
            if trusted not in self._made:
                self._made[trusted] = program.compiled_replay(trusted, leaves)
                self._comes_last(trusted, args, leaves)
            return result
        program.look()
        call = RecordedCall(self._step, leaves, tree, self._backend, *self._options, args)
        try:
            call.record()
            difference = call.difference(program.trace, program.effects)
            if difference is not None:
                call.put_back()
                self._forget(trusted)
                since = "" if trusted.calls == 2 else f" Replays before call {trusted.calls} may have been wrong."
                raise CaptureError(f"ag_capture: call {trusted.calls} of the step did something else than the recorded "
                                   f"one: {difference}; a replay would not notice. Pass what changes as an argument, "
                                   f"or do not capture the step.{since}")
            trusted.due *= _GROWTH
            forgotten = call.forget()
        except BaseException:
            call.undo()
            raise
        return program.replay(leaves) if forgotten else call.results(leaves)

    def _forget(self, trusted: _Trusted) -> None:
        self._quick = None, False
        self._made.pop(trusted, None)
        self._programs.remove(trusted)
        trusted.program.close()

    def close(self) -> None:
        """Free all programs and their memory; the next call records anew."""
        with self._lock:
            while self._programs:
                self._forget(self._programs[-1])


def _leaves(args: Args, any_sort: bool) -> tuple[Args, object]:
    """Return the arrays and tensors among arguments, each once, and their structure; None: they are `args` itself."""
    if _are_apart(args):
        return args, None
    if not any_sort:
        _refuse_others(args)
    try:
        if len(args) != 1:
            leaves, tree = tree_flatten(args)
            return tuple(leaves), tree
        leaves, tree = tree_flatten(args[0])
        return args[0] if type(args[0]) is tuple and _are_apart(args[0]) else tuple(leaves), (tree,)
    except (ValueError, RecursionError) as error:
        reason = "they are nested too deep" if isinstance(error, RecursionError) else str(error)
        raise CaptureError(f"ag_capture: the arguments cannot be taken apart: {reason}.") from None


def _refuse_others(args: Args) -> None:
    for i, x in enumerate(args):
        if not (isinstance(x, (Tensor, np.ndarray, dict, list, tuple)) or is_dataclass(x)):
            raise CaptureError(f"ag_capture: argument {i} is a {type_name(x)}; every argument must be an ag tensor or "
                               f"a numpy array, or a dict, list, tuple or dataclass of them. Bind other values with a "
                               f"closure.")
        if isinstance(x, np.ndarray):
            refuse_masked(x, f"ag_capture: argument {i}")


def _moved(leaves: Args, to: Device) -> Args:
    for x in leaves:
        if isinstance(x, Tensor) and x.buffer.backend is not to:
            return tuple([ag_tensor(y, to.name) if isinstance(y, Tensor) else y for y in leaves])
    return leaves


def _are_apart(args: Args) -> bool:
    for x in args:
        if not (type(x) is np.ndarray or isinstance(x, Tensor)):
            return False
    return len({*map(id, args)}) == len(args)


def _kind(leaves: Args, structure: object) -> tuple[object, ...]:
    """Return the cache key of a call: its structure, types, shapes and names of arguments, and settings."""
    kinds: list[object] = [structure]
    device: Device | None = None
    for i, x in enumerate(leaves):
        if isinstance(x, Tensor):
            b = x.buffer
            if x.requires_grad:
                what = "a parameter" if x.node is None else "on the tape"
                raise CaptureError(f"ag_capture: argument {i}, of shape {x.shape}, is {what}, and a replay works on "
                                   f"copies of its arguments; use parameters from a closure, and pass t.detach().")
            if b.backend is not device:
                if device is not None:
                    raise CaptureError(f"ag_capture: the arguments are on {device.name} and {b.backend.name}; a "
                                       f"captured step runs on one device. Move them with ag_to_device.")
                device = b.backend
            if x.peek_grad() is not None:
                raise CaptureError(f"ag_capture: argument {i}, of shape {x.shape}, has a gradient, and a replay works "
                                   f"on copies of its arguments; pass t.detach().")
            kinds += b.dtype, b.shape, x.name
        else:
            if type(x) is not np.ndarray:
                refuse_masked(x, f"ag_capture: argument {i}")
            kinds += x.dtype, x.shape
    return (*kinds, device, *[variable.get() for variable in CONTEXT], Backend.settings.precision)


def ag_capture(step_fn: Callable[P, R], *, recompute: bool = False) -> CapturedStep[P, R]:
    """Record a step on its first calls; later ones replay it, and leave what the step itself would have left.

    docs/capture.md is the contract.  Calls with other shapes or types, in another mode or with other settings are
    recorded for themselves.  Every call returns new tensors.
    Reference: CUDA graphs, PyTorch ``torch.cuda.make_graphed_callables`` and the guards of ``torch.compile``.

    Parameters
    ----------
    step_fn : callable
        Takes tensors and numpy arrays as positional arguments, also in dicts, lists, tuples and dataclasses, with
        numbers and strings beside them; returns tensors, also in such, or None.
    recompute : bool, optional
        Compute cheap results (activations, normalizations, embeddings) a second time in the backward pass rather than
        keep them: a transformer needs a quarter less memory and some percent more time.  The bits are the same.

    Returns
    -------
    CapturedStep
        Call it like `step_fn`.

    Raises
    ------
    CaptureError
        On the first call if the step does what cannot be replayed, such as reading a tensor on the host.  On a later
        one that is compared with the recording, if the step did something else.

    Examples
    --------
    >>> import ag
    >>> step = ag.ag_capture(lambda x: ag.ag_sum(x * x))
    >>> [step(ag.ag_tensor([1.0, float(k)])).item() for k in range(4)]
    [1.0, 2.0, 5.0, 10.0]
    """
    if not callable(step_fn):
        raise TypeError(f"ag_capture: step_fn is a {type(step_fn).__name__}; a function of tensors and arrays is "
                        f"required.")
    return CapturedStep(step_fn, recompute=recompute)
