"""Ranks, each with devices of its own, train one model. Run it as `python examples/parallel_ranks.py`.

The ranks are threads here; with another communicator they are processes, and the call is the same.  Result, optimizer
state and losses are to the bit those of one process with all devices, also with an uneven number of them per rank.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from parallel_common import X, Y, check, devices, make_model

import ag
from ag.parallel.comm.comm import Comm
from ag.parallel.comm.threads import thread_comms

data = [(X[:, i : i + 1], Y[:, i : i + 1]) for i in range(X.shape[1])]


def train(used: list[str], world: Comm | None = None, micro_batch: int = 4) -> ag.DPResult:
    return ag.dp_train(make_model, data, ag.ag_mse_loss, lambda model, sample: model(sample[0]),
                       lambda sample: sample[1], devices=used, micro_batch=micro_batch, n_iter=60, lr=2e-2, seed=1,
                       verbose=False, world=world)


used = devices(__doc__, "cpu,cpu:1,cpu:2")
places = [used[:1], used[1:]]  # no two ranks of one process share a device
with ThreadPoolExecutor(len(places)) as pool:
    ranks = list(pool.map(train, places, thread_comms(len(places))))

together = train(used)
for result in ranks:
    first = result.report[0]
    print(f"rank {first['rank']} on {', '.join(result.devices)}: {sum(r['samples'] for r in result.report)} samples, "
          f"{first['wire_bytes_per_step']} bytes sent per step")
    if not (np.array_equal(result.loss_history, together.loss_history)
            and all(np.array_equal(p.numpy(), together.params[name].numpy()) for name, p in result.params.items())):
        raise SystemExit("FAILED: every rank must have the result of one process with all devices, to the bit")
print(f"{len(ranks)} ranks and one process with {len(used)} devices: equal to the bit")
check(f"data parallel on {len(ranks)} ranks", list(ranks[0].loss_history),
      list(train(["cpu"], micro_batch=4 * len(used)).loss_history))
