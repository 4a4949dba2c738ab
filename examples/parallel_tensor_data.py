"""Tensor times data parallelism: replicas that are each on two devices. `python examples/parallel_tensor_data.py`."""

from parallel_common import X, Y, check, devices, make_model, stages, train

import ag

one = train(make_model(), X, Y, device="cpu")
used = devices(__doc__, "cpu,cpu:1,cpu:2,cpu:3")
groups = [used[i : i + 2] for i in range(0, len(used), 2)]  # of each replica
first, second, *rest = stages()
column = ag.ColumnParallelLinear.from_linear(first, groups[0])
column.gather_output = False
model = ag.ag_sequential(column, ag.RowParallelLinear.from_linear(second, groups[0]),
                         *(layer.to(used[0]) for layer in rest))
several = train(ag.DataParallel(model, groups), X, Y, used[0])
check(f"{len(groups)} replicas of two devices each", several, one)
