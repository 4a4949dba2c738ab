"""Data parallelism: every batch is dealt out to replicas. Run it as `python examples/parallel_data.py`.

The gradients of all replicas reach the one module, so weights are those of one device; the last batch is smaller.
"""

from parallel_common import X, Y, check, devices, make_model, train

import ag

one = train(make_model(), X, Y, device="cpu")
used = devices(__doc__, "cpu,cpu:1,cpu:2")
module = make_model()
several = train(ag.DataParallel(module, used), X, Y, used[0])
check(f"data parallel on {', '.join(used)}", several, one)
