"""Tensor parallelism: the weights of layers spread over devices. Run it as `python examples/parallel_tensor.py`.

The first layer has its output features in parts, the second its input features, so nothing is exchanged between
the two; the first device holds three parts of four.
"""

from parallel_common import X, Y, check, devices, make_model, stages, train

import ag

one = train(make_model(), X, Y, device="cpu")
used = devices(__doc__, "cpu,cpu:1")
shares = [3.0] + [1.0] * (len(used) - 1)
first, second, *rest = stages()
column = ag.ColumnParallelLinear.from_linear(first, used, shares)
column.gather_output = False  # the next layer takes the parts
model = ag.ag_sequential(column, ag.RowParallelLinear.from_linear(second, used, shares),
                         *(layer.to(used[0]) for layer in rest))
several = train(model, X, Y, used[0])
print(f"{first.out_features} features in parts of {column.sizes} on {', '.join(used)}")
check("tensor parallel", several, one)
