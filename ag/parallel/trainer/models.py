"""The models of a job must be one model: what is compared before the first step, and what is made equal."""

from __future__ import annotations

from ag.autograd.tensor import Tensor
from ag.errors import CommError
from ag.nn.layer import buffers_of, load_into
from ag.parallel.trainer.replica import Replica

__all__ = ["check_same_tables", "share_constants"]


def check_same_tables(replicas: list[Replica]) -> None:
    """Every replica must have parameters of its own, and like the others; its buffers must be like theirs, too."""
    first = replicas[0]
    owners: dict[int, int] = {}
    for replica in replicas:
        _check_same("parameter", first.params, replica.params, replica.index)
        _check_same("buffer", first.buffers.tensors, replica.buffers.tensors, replica.index)
        for name, p in replica.params.items():
            if owners.setdefault(p.id, replica.index) != replica.index:
                raise CommError(f"dp_train: parameter {name} of replica {replica.index} is the same tensor as on "
                                f"replica {owners[p.id]}; make_model must create new parameters on every call.")


def _check_same(kind: str, first: dict[str, Tensor], other: dict[str, Tensor], index: int) -> None:
    theirs, mine = ([(name, x.shape, x.dtype) for name, x in tensors.items()] for tensors in (first, other))
    for a, b in zip(theirs, mine, strict=False):
        if a != b:
            raise CommError(f"dp_train: replica 0 has {kind} {a} where replica {index} has {b}; make_model must build "
                            f"the same model every time.")
    if len(mine) != len(theirs):
        raise CommError(f"dp_train: replica 0 has {len(theirs)} {kind}s and replica {index} {len(mine)}; make_model "
                        f"must build the same model every time.")


def share_constants(replicas: list[Replica]) -> None:
    """Give all models the first one's buffers that no step moves."""
    def constants(replica: Replica) -> dict[str, Tensor]:
        return {name: x for name, x in buffers_of(replica.model).items() if name not in replica.buffers.tensors}

    values = {name: x.numpy() for name, x in constants(replicas[0]).items()}
    for replica in replicas[1:]:
        load_into(constants(replica), values, source="dp_train: a buffer of replica 0")
