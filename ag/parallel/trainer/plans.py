"""Plans: how a replica computes the gradients of a sample, by its structure: by a captured step, or eagerly.

A captured step replays only what it has recorded twice alike; otherwise samples of that structure run eagerly.  If
recording fails, the call still finishes eagerly, so user functions run exactly once per sample.  A difference that is
found after replays ends the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from threading import Lock

from ag.autograd.create import ag_tensor
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Leaf, Tree, TreeDef, array_kinds, opaque_type, take_over, tree_flatten, tree_unflatten
from ag.capture.step import CapturedStep
from ag.engine.backend import Backend
from ag.engine.random import Streams
from ag.errors import CaptureError
from ag.log import log

RECORDED = 6  # times that a step is recorded, if it is not replayed more often
PROGRAMS_KEPT = 32  # captured steps per replica; samples of yet other shapes run eagerly

Numbers = tuple[int, int | None, int]  # the streams of a sample, as `Streams.numbered` takes them


class CapturePolicy:
    """A switch for captured steps; "auto" turns it off at the first step that cannot be captured."""

    def __init__(self, wanted: bool | str) -> None:
        self.on = bool(wanted)
        self.must = wanted is True  # a step that cannot be captured is an error
        self._out = False
        self._one = Lock()  # replicas call from their device's thread, and a warning is logged once

    def refused(self, error: Exception) -> None:
        """Continue uncaptured and log why; with ``capture=True``, raise `error`."""
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
    """The captured step of a structure."""

    def __init__(self, captured: CapturedStep[..., None]) -> None:
        self.captured = captured
        self.draws = 0  # of random numbers in a call, at most
        self.replayed = self.recorded = 0  # calls


class Plans:
    """The plans of a replica."""

    def __init__(self, backend: Backend, compute: Callable[[Tree], None], policy: CapturePolicy,
                 calls: Sequence[object] = ()) -> None:
        self._backend, self._calls = backend, calls  # functions of the user that `compute` calls
        self._compute = compute  # compute(sample) writes the sample's gradients to the replica's row
        self._policy = policy
        self._streams = Streams(backend)
        self._plans: dict[TreeDef, _Plan] = {}
        self._of_arrays: dict[tuple[object, ...], _Plan] = {}  # the same, for tuples of arrays, which most samples are
        self._sample: Tree = None  # of the last call, as it was given
        self._begun = self._computed = 0  # samples for which Python ran, and those of them that were finished

    @property
    def drawn(self) -> int:
        """Return how often the last sample has drawn random numbers."""
        return self._streams.drawn

    def clear(self) -> None:
        """Release all plans with their programs."""
        self._plans.clear()
        self._of_arrays.clear()

    def run(self, sample: Tree, numbers: Numbers) -> None:
        """Write the gradients of a sample, which draws from these streams, to the replica's row."""
        self._sample = sample
        found = self._plan_of(sample) if self._policy.on else None
        if found is None:
            self._eagerly(sample, numbers)
            return
        plan, leaves = found
        begun, computed = self._begun, self._computed
        try:
            self._streams.prepare(*numbers, plan.draws)
            plan.captured.result(leaves)
        except (CaptureError, TypeError) as error:  # C code raises TypeError for a placeholder where it needs an array
            if plan.replayed or (isinstance(error, TypeError) and self._policy.must):
                raise  # earlier replays may have been wrong
            self._policy.refused(error)
            if self._computed == computed:  # otherwise the call was complete, and only cannot be replayed
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
        """Move a tensor of a sample to the replica's device; arrays stay."""
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
        sample = tree_unflatten(treedef, leaves)
        self._call(sample)
        self._computed += 1
        now, structure = tree_flatten(sample)
        if structure != treedef or not all(map(is_, now, leaves)):
            take_over(self._sample, sample, dict(zip(map(id, leaves), tree_flatten(self._sample)[0], strict=True)))
            raise CaptureError("dp_train: a function of the job changes lists or dicts in its samples, and a replay "
                               "would not; keep what changes elsewhere.")

    def _plan_of(self, sample: Tree) -> tuple[_Plan, tuple[Leaf, ...]] | None:
        """Return the plan for samples like this, perhaps a new one, and its arguments; None if they run eagerly."""
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
