"""One script for one process or several: alone, under mpiexec, or launched on one or several hosts.

    python examples/parallel_processes.py
    python -m ag launch -n 2 examples/parallel_processes.py
    python -m ag launch -n 3 examples/parallel_processes.py --checkpoint job.safetensors

The SHA-256 of the weights is the same in each case, also after a rank was killed.
"""

import argparse
import hashlib

from parallel_common import X, Y, make_model

import ag

parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--devices", default="cpu", help="of each process, comma-separated (default: %(default)s)")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--checkpoint", help="file to go on from")
options = parser.parse_args()

world = ag.DistributedWorld.init("mpi", devices=options.devices.split(","))
data = [(X[:, i : i + 1], Y[:, i : i + 1]) for i in range(X.shape[1])]
result = ag.dp_train(make_model, data, ag.ag_mse_loss, lambda model, sample: model(sample[0]),
                     lambda sample: sample[1], n_iter=options.steps, batch=16, stack=1, lr=2e-2, seed=1, verbose=False,
                     world=world, checkpoint=options.checkpoint, resume=options.checkpoint is not None)
if world.rank == 0:
    print(f"{world.size} processes, loss {result.loss_history[0]:.4f} at first, {result.loss:.4f} after "
          f"{len(result.loss_history)} steps")
    print("SHA-256 of the weights:", hashlib.sha256(b"".join(p.numpy().tobytes() for p in result.params.values()))
          .hexdigest())
