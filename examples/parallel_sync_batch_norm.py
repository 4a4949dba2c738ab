"""Batch norm over the samples of all replicas. Run it as `python examples/parallel_sync_batch_norm.py`.

A batch of 64 on three replicas is three times 21 or 22 samples; statistics are those of all 64 all the same.
"""

from parallel_common import X, Y, check, devices, stages, train

import ag


def make_model() -> ag.Layer:
    first, *rest = stages()
    return ag.ag_sequential(first, ag.ag_batch_norm(32), *rest)


one = train(make_model(), X, Y, device="cpu")
used = devices(__doc__, "cpu,cpu:1,cpu:2")
model = ag.SyncBatchNorm.convert(make_model())  # every batch norm in it, in place
several = train(ag.DataParallel(model, used), X, Y, used[0])
check(f"synchronous batch norm on {', '.join(used)}", several, one)
