"""One script for one process or several: alone, under mpiexec, or launched on one or several hosts.

    python examples/parallel_processes.py
    python -m ag launch -n 2 examples/parallel_processes.py
    python -m ag launch -n 3 examples/parallel_processes.py --checkpoint job.safetensors

The result is to the bit that of one process, also if a rank is killed meanwhile.
"""

import argparse

import numpy as np
from parallel_common import X, Y, check, make_model

import ag

parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--devices", default="cpu", help="of each process, comma-separated (default: %(default)s)")
parser.add_argument("--checkpoint", help="file to go on from")
options = parser.parse_args()
data = [(X[:, i : i + 1], Y[:, i : i + 1]) for i in range(X.shape[1])]


def train(used: list[str], **more) -> ag.DPResult:
    return ag.dp_train(make_model, data, ag.ag_mse_loss, lambda model, sample: model(sample[0]),
                       lambda sample: sample[1], devices=used, batch=16, stack=1, n_iter=120, lr=2e-2, seed=1,
                       verbose=False, **more)


world = ag.DistributedWorld.init("mpi", devices=options.devices.split(","))  # alone: a world of one
result = train(list(world.devices), world=world, checkpoint=options.checkpoint, resume=options.checkpoint is not None)
if world.rank == 0:
    alone = train([world.devices[0]])
    if not all(np.array_equal(p.numpy(), alone.params[name].numpy()) for name, p in result.params.items()):
        raise SystemExit("FAILED: the result must be that of one process, to the bit")
    check(f"{world.size} processes", list(result.loss_history), list(alone.loss_history))
