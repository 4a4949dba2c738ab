"""What `dp_train` hands out: a `DPStep` to the callback after every step, a `DPResult` at the end.

Knows nothing but their fields.  `dp_train` makes them; users' callbacks and `ag.training` read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.names import Making
from ag.parallel.comm.comm import Json

__all__ = ["DPResult", "DPStep"]


class Place(Protocol):
    """A rank's place among those that train together."""

    @property
    def rank(self) -> int:
        """Its number, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def gather(self, value: Json = None) -> list[Json]:
        """The values of all ranks, in their order: anything that JSON can hold."""


@dataclass(frozen=True)
class DPStep:
    """What a callback is given after every step.

    Attributes
    ----------
    step : int
        Number of the step, from 0.
    loss : float
        Mean loss over the step's samples.
    models : list
        The replicas' models, with the new weights.
    ranks : Place, or None
        This rank's place among those that train together, always there in a callback: ``ranks.rank``, ``ranks.size``,
        and ``ranks.gather(value)``, the values of all ranks, such as counts to add up; if one rank calls it, all must.
    """

    __signature__ = Making()
    step: int
    loss: float
    models: list[Any]
    ranks: Place | None = field(default=None, repr=False)


@dataclass(frozen=True, repr=False)
class DPResult:
    """What `dp_train` returns; ``result["loss"]`` works like ``result.loss``.

    Attributes
    ----------
    params : dict of str to Tensor
        Final parameters, on replica 0's device.
    loss_history : ndarray of shape (n_iter,)
        Mean loss of every step, before its update; shorter if the job ended early.
    loss : float
        The last of them.
    model : object
        Replica 0's model; its buffers are those of all replicas.  It is in the modes that training had: call `ag_eval`
        on it before it predicts.
    devices : list of str
        Device of every replica.
    report : list of dict
        Per replica: ``replica``, ``device``, ``driver``; ``samples`` of all steps and ``shard``, those of the last one;
        over all steps ``compute_ms`` that the device has worked on them, ``elapsed_ms`` from giving it the work to
        having the sums on the host, ``wait_ms`` from then until the last replica had its own, ``reduce_ms`` for sums,
        optimizer and new weights; ``bytes_per_step`` moved both ways.  `compute_ms` is from the device's timestamps
        where ``clock`` is ``"device"``: those of the first two steps and every 16th, as they cost time; a sample of
        the steps between counts as long as one of the last such step.  Where it is ``"host"``, there are none, and
        it is `elapsed_ms`.
        Of this rank, ``data_wait_ms`` that it waited for its samples, and ``data_wait_share``, which part of the time
        of all steps that was.  Of the world, ``rank``; ``exchange_ms``, which is part of ``reduce_ms``;
        ``wire_bytes_per_step``, what this rank sent to others in the last step.
    optimizer_state : dict of str to ndarray, or list of dict
        State of the optimizer, to go on with; a list if `optimizer` made a list.
    interrupted : bool
        Whether Ctrl-C ended the job before its last step.
    """

    __signature__ = Making()
    params: dict[str, Tensor]
    loss_history: Array
    loss: float
    model: Any
    devices: list[str]
    report: list[dict[str, Any]]
    optimizer_state: dict[str, Array] | list[dict[str, Array]]
    interrupted: bool = False

    def __getitem__(self, name: str) -> Any:
        names = [f.name for f in fields(self)]
        if name not in names:
            raise KeyError(f"DPResult: there is no {name!r}; it has {', '.join(names)}.")
        return getattr(self, name)

    def __repr__(self) -> str:
        numbers = sum(p.size for p in self.params.values())
        ended = ", interrupted" if self.interrupted else ""
        return (f"DPResult(loss={self.loss:.6g} after {len(self.loss_history)} steps{ended}, {len(self.params)} "
                f"parameters of {numbers:,} numbers, devices={self.devices})")
