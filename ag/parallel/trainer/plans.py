"""Plans: how a replica computes the gradients of a sample, by its structure: by a captured step, or eagerly.

A captured step (`ag.autograd.capture`) replays only what it has seen twice: where what the user's functions do depends
on more than the arrays of a sample, the second call tells, and from then on samples run eagerly.  That call is made to
its end, so the functions are called once per sample, whatever they draw or count.  A difference that is
found later, when samples were replayed already, ends the job.  Knows samples as trees of arrays, and a function that
leaves their gradients somewhere; no model and no weights.  A replica has one set of plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

from ag.autograd.capture import CapturedStep
from ag.autograd.create import ag_tensor
from ag.autograd.tensor import Tensor
from ag.engine.backend import Backend
from ag.engine.random import Streams
from ag.errors import CaptureError
from ag.log import log
from ag.parallel.comm.tree import Leaf, Tree, TreeDef, array_kinds, opaque_type, tree_flatten, tree_unflatten

__all__ = ["CapturePolicy", "Numbers", "Plans"]

RECORDED = 6  # times that a step is recorded, if it is not replayed more often
PROGRAMS_KEPT = 32  # captured steps per replica; samples of yet other shapes run eagerly

Numbers = tuple[int, int | None, int]  # the streams of a sample, as `Streams.numbered` takes them


class CapturePolicy:
    """Whether replicas replay captured steps; "auto" stops doing so at the first step that cannot be captured.

    Attributes
    ----------
    on : bool
    must : bool
        Whether a step that cannot be captured is an error.
    """

    def __init__(self, wanted: bool | str) -> None:
        self.on = bool(wanted)
        self.must = wanted is True
        self._out = False
        self._one = Lock()  # replicas call from their device's thread, and a warning is logged once

    def refused(self, error: Exception) -> None:
        """Go on uncaptured and log why; with ``capture=True``, raise `error`."""
        if self.must:
            raise error
        with self._one:
            on, self.on = self.on, False
        if on:
            log.warning("dp_train: steps run uncaptured, which is slower: %s", error)

    def ran_out(self) -> None:
        """Log once that samples have too many structures to keep a captured step for each."""
        with self._one:
            out, self._out = self._out, True
        if not out:
            log.warning("dp_train: the samples have more than %d different shapes or numbers in them; from the next "
                        "on they run uncaptured, which is slower. Give numbers that differ as arrays.", PROGRAMS_KEPT)


class _Plan:
    """The captured step of a structure, and how often it draws random numbers at most."""

    def __init__(self, captured: CapturedStep[..., None]) -> None:
        self.captured = captured
        self.draws = 0
        self.replayed = self.recorded = 0  # calls


class Plans:
    """The plans of a replica.

    Parameters
    ----------
    backend : Backend
    compute : callable
        ``compute(sample)`` leaves the sample's gradients in the replica's row.
    policy : CapturePolicy
    calls : sequence of callable, optional
        Functions of the user's that `compute` calls.
    """

    def __init__(self, backend: Backend, compute: Callable[[Tree], None], policy: CapturePolicy,
                 calls: Sequence[object] = ()) -> None:
        self._backend, self._calls = backend, calls
        self._compute = compute
        self._policy = policy
        self._streams = Streams(backend)
        self._plans: dict[TreeDef, _Plan] = {}
        self._of_arrays: dict[tuple[object, ...], _Plan] = {}  # the same, for tuples of arrays, which most samples are
        self._begun = self._computed = 0  # samples for which Python ran, and those of them that were finished

    @property
    def drawn(self) -> int:
        """How often the last sample has drawn random numbers."""
        return self._streams.drawn

    def clear(self) -> None:
        """Forget all plans, with their programs."""
        self._plans.clear()
        self._of_arrays.clear()

    def run(self, sample: Tree, numbers: Numbers) -> None:
        """Leave the gradients of a sample, which draws from these streams, in the replica's row."""
        found = self._plan_of(sample) if self._policy.on else None
        if found is None:
            self._eagerly(sample, numbers)
            return
        plan, leaves = found
        begun, computed = self._begun, self._computed
        try:
            self._streams.prepare(*numbers, plan.draws)
            plan.captured.result(leaves)
        except (CaptureError, TypeError) as error:  # a TypeError of C code, perhaps, which a stand-in is no array for
            if plan.replayed or (isinstance(error, TypeError) and self._policy.must):
                raise  # among them what was replayed wrongly, nobody knows since when
            self._policy.refused(error)
            if self._computed == computed:  # otherwise all was done, and only cannot be replayed
                self._eagerly(sample, numbers)
            return
        plan.draws = max(plan.draws, self._streams.drawn)
        if self._begun == begun:
            plan.replayed += 1
            return
        plan.recorded += 1
        if plan.recorded > max(RECORDED, plan.replayed):
            self._policy.refused(CaptureError(
                "dp_train: the callback, the data or the functions of the job change what the functions read, such as "
                "an attribute of the model, so a step had to be recorded again and again; pass what changes as part "
                "of the samples."))

    def _here(self, leaf: Leaf) -> Leaf:
        """An array of a sample, on the replica's device if it is a tensor."""
        elsewhere = isinstance(leaf, Tensor) and leaf.buffer.backend is not self._backend
        return ag_tensor(leaf, self._backend.name) if elsewhere else leaf

    def _eagerly(self, sample: Tree, numbers: Numbers) -> None:
        self._streams.prepare(*numbers, 0)
        self._call(sample)

    def _call(self, sample: Tree) -> None:
        with self._streams.counted():
            self._compute(sample)

    def _recorded(self, treedef: TreeDef, leaves: Sequence[Leaf]) -> None:
        self._begun += 1
        self._call(tree_unflatten(treedef, leaves))
        self._computed += 1

    def _plan_of(self, sample: Tree) -> tuple[_Plan, tuple[Leaf, ...]] | None:
        """The plan for samples like this, perhaps a new one, and its arguments; None if they run eagerly."""
        kinds = array_kinds(sample)
        if kinds is not None and (known := self._of_arrays.get(kinds)) is not None:
            return known, sample
        leaves, treedef = tree_flatten(sample)
        plan = self._plans.get(treedef)
        if plan is None:
            plan = self._new_plan(treedef, kinds)
        return None if plan is None else (plan, tuple(map(self._here, leaves)))

    def _new_plan(self, treedef: TreeDef, kinds: tuple[object, ...] | None) -> _Plan | None:
        kind = opaque_type(treedef)
        if kind is not None:
            self._policy.refused(CaptureError(
                f"dp_train: a sample holds a {kind}, and a replay would not see what changes in it; give samples "
                f"as arrays, numbers and strings, and dicts, lists and tuples of them."))
            return None
        if len(self._plans) == PROGRAMS_KEPT:
            self._policy.ran_out()
            return None
        step: CapturedStep[..., None] = CapturedStep(
            lambda *xs: self._recorded(treedef, xs), self._backend, calls=self._calls, trial=not self._policy.must,
            several=True)
        plan = self._plans[treedef] = _Plan(step)
        if kinds is not None:
            self._of_arrays[kinds] = plan
        return plan
