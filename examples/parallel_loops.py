"""Loops over several devices written by hand, as the guide of ML Odyssey has them: gradients accumulated, weights of
models averaged that were trained apart, training with a checkpoint to go back to when a device fails. Run it as
`python examples/parallel_loops.py`. `train_distributed` does the last in one call, also with processes.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from parallel_common import X, Y, check, devices, make_model, train

import ag

DATA = ag.ag_dataloader(X, Y, batch_size=64, shuffle=False)


def train_with_accumulation(model: ag.Layer, x, y, steps: int) -> None:
    """One step of the optimizer, for the gradients of several batches."""
    optimizer = ag.optimizer_sgd(model, lr=0.1)
    for part, target in zip(np.split(x, steps, axis=-1), np.split(y, steps, axis=-1), strict=True):
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(model(ag.ag_tensor(part)), target) / steps
        ag.backward(loss)  # adds to what is in `.grad`
    optimizer.step()
    optimizer.zero_grad()


def average_model_weights(models: list[ag.Layer]) -> None:
    mean = ag.syncgrads([model.state_dict() for model in models])
    for model in models:
        model.load_state_dict({name: weight.numpy() for name, weight in mean.items()})


def train_epoch(model: ag.DataParallel, optimizer, world: ag.DistributedWorld, fails: bool) -> list[float]:
    losses = []
    for batch in DATA:
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(model.forward(batch.x), batch.y)  # each device passes its part of the batch
        model.backward(loss)  # the gradient of the whole batch, in the one set of weights
        world.barrier()  # as the guide has it; gradients are complete without
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if fails:
            raise ag.DeviceError(f"{world.devices[-1]} was lost")
    return losses


def train_with_checkpoints(used: list[str], path: Path, epochs: int = 15) -> list[float]:
    """The last device fails in epoch 7; the others go on from the checkpoint."""
    losses: list[list[float]] = []
    while len(losses) < epochs:
        world = ag.DistributedWorld.init(devices=used)
        model = ag.DataParallel(make_model(), world.devices)
        optimizer = ag.optimizer_adam(model.parameters(), lr=1e-2)
        if losses:
            del losses[ag.ag_load_checkpoint(path, model, optimizer).step :]
        try:
            while len(losses) < epochs:
                losses.append(train_epoch(model, optimizer, world, fails=len(losses) == 7 and len(used) > 1))
                ag.ag_save_checkpoint(path, model, optimizer, step=len(losses))
        except (ag.DeviceError, ag.CommError) as error:  # the latter names a replica, and what it failed with
            print(f"{error}: going on after epoch {len(losses)}")
            used = used[:-1]
    return [loss for epoch in losses for loss in epoch]


used = devices(__doc__, "cpu,cpu:1")
whole, parts, *apart = (make_model() for _ in range(4))
for _ in range(20):
    train_with_accumulation(whole, X, Y, steps=1)
    train_with_accumulation(parts, X, Y, steps=4)
    for model, x, y in zip(apart, np.split(X, 2, axis=-1), np.split(Y, 2, axis=-1), strict=True):
        train_with_accumulation(model, x, y, steps=1)
    average_model_weights(apart)
if not all(np.allclose(model[0].W.numpy(), whole[0].W.numpy(), atol=1e-5) for model in (parts, *apart)):
    sys.exit("FAILED: gradients in parts, and averages after every step, must train as all samples at once do")
with tempfile.TemporaryDirectory() as folder, ag.ag_device(used[0]):
    check(f"by hand on {used}", train_with_checkpoints(used, Path(folder, "job")), train(make_model(), X, Y, used[0]))
