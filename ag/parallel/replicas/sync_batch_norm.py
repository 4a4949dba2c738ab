"""Synchronous batch norm: batch statistics over the samples of all replicas.

Each replica adds up its samples, the replicas exchange these sums, and all normalise with the statistics of the whole
batch.  Outside a group of replicas it is a plain `BatchNorm`.
"""

from __future__ import annotations

from typing import TypeVar

from ag.autograd.activation_checkpoint import is_repeating
from ag.autograd.operands import as_input
from ag.autograd.tensor import Tensor, TensorLike
from ag.errors import ShapeError
from ag.nn.mode import objects_in
from ag.nn.norm import BatchNorm
from ag.ops.arithmetic import ag_scale, ag_sub
from ag.ops.convert import ag_cast
from ag.ops.norm import ag_batch_norm_op, move_statistics
from ag.ops.reduce import ag_sum
from ag.parallel.replicas.data_parallel import current_group

__all__ = ["SyncBatchNorm"]

M = TypeVar("M")


class SyncBatchNorm(BatchNorm):
    """Batch norm whose statistics are those of the whole batch, however it is dealt out to replicas.

    Parameters, attributes and errors are those of `ag_batch_norm`.

    Notes
    -----
    Inside `DataParallel` the replicas exchange sums, and gradients flow through these, so outputs and all gradients
    are those of one device with the whole batch; a replica may have no sample at all.  All sums are made in the order
    of the replicas, so the result is the same in every run.  It cannot be inside `ag_checkpoint` there.  Elsewhere it
    is a batch norm, whose trained parameters fit.  Reference: PyTorch ``torch.nn.SyncBatchNorm``.

    Examples
    --------
    >>> import ag
    >>> model = ag.DataParallel(ag.SyncBatchNorm(1), ["cpu", "cpu:1"])
    >>> model(ag.ag_tensor([[1.0, 3.0]])).numpy().round(3).tolist()
    [[-1.0, 1.0]]
    """

    @classmethod
    def convert(cls, model: M) -> M:
        """Make every batch norm in a model synchronous, in place; returns the model."""
        for layer in objects_in(model):
            if type(layer) is BatchNorm:
                layer.__class__ = cls
        return model

    def forward(self, x: TensorLike) -> Tensor:
        """Normalise `x` of shape (num_features, batch) or (num_features, ..., batch)."""
        group = current_group()
        if group is None or not self.training:
            return super().forward(x)
        x = as_input(x, self.gamma)
        if x.ndim < 2 or x.shape[0] != self.num_features:
            raise ShapeError(f"SyncBatchNorm: x is {x.shape}; ({self.num_features}, ..., batch) is required.")
        exact = ag_cast(x, "f32") if x.dtype in ("f16", "bf16") else x
        rows = exact.reshape(self.num_features, exact.size // self.num_features)
        counts = group.exchange(rows.shape[1])
        count = sum(counts)
        if count < 2:
            raise ShapeError(f"SyncBatchNorm: all replicas together have {count} values per feature; the running "
                             f"variance needs at least two in train mode.")

        def mean_over_replicas(x: Tensor) -> Tensor:
            mine = ag_sum(x, dim=1, keepdim=True) if counts[group.rank] else None
            return ag_scale(group.total(mine, x.device), 1.0 / count)

        mean = mean_over_replicas(rows)
        centred = ag_sub(rows, mean) if rows.size else rows
        variance = mean_over_replicas(centred * centred)
        if not is_repeating():
            move_statistics(self.running_mean, self.running_var, mean, variance, count, self.momentum)
        return ag_batch_norm_op(x, self.gamma, self.beta, self.eps, mean, variance) if x.size else x
