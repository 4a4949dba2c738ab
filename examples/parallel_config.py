"""Training described in a file. Run it as `python examples/parallel_config.py [FILE]`.

Started by mpiexec it is a rank among others, each with the devices of the file: batches are shared out among them.
"""

import sys
from pathlib import Path

from parallel_common import X, Y, check, make_model, stages, train

import ag

one = train(make_model(), X, Y, device="cpu")
config = ag.load_config(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_suffix(".yaml"))
world = config.world()
model = config.parallel(make_model() if config.strategy == "data_parallel" else stages(), world)
several = ag.train_distributed(model, ag.ag_dataloader(X, Y, batch_size=64, shuffle=False), world, ag.ag_mse_loss,
                               ag.optimizer_adam(model.parameters(), lr=1e-2), epochs=15, **config.checkpoints())
where = ", ".join(world.devices) + (f" of rank {world.rank} of {world.size}" if world.size > 1 else "")
check(f"{config.strategy} on {where}", several, one)
