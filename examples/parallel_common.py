"""What the examples of parallel training share: a regression, a loop that trains it, and the check of the losses."""

import argparse
import sys

import numpy as np

import ag

ag.ag_device("cpu")  # models are made here, and are moved to the devices that are named
rng = np.random.default_rng(0)
X = rng.standard_normal((8, 200)).astype(np.float32)  # 200 samples, one per column
Y = np.tanh(rng.standard_normal((4, 8)).astype(np.float32) @ X)


def devices(about: str, default: str) -> list[str]:
    """The devices of the command line."""
    parser = argparse.ArgumentParser(description=about.split("\n\n")[0])
    parser.add_argument("--devices", default=default, help="comma-separated (default: %(default)s)")
    return parser.parse_args().devices.split(",")


def stages() -> list[ag.Layer]:
    """Four layers, the same every time."""
    ag.ag_seed(1)
    return [ag.ag_linear(8, 32, activation="tanh"), ag.ag_linear(32, 32, activation="tanh"),
            ag.ag_linear(32, 16, activation="relu"), ag.ag_linear(16, 4)]


def make_model() -> ag.Layer:
    return ag.ag_sequential(stages())


def train(model: ag.Layer, x, y, device: str, epochs: int = 15) -> list[float]:
    """The losses of every step; targets and batches are on `device`, where the model's results are."""
    with ag.ag_device(device):
        optimizer = ag.optimizer_adam(model.parameters(), lr=1e-2)
        losses = []
        for batch in (b for _ in range(epochs) for b in ag.ag_dataloader(x, y, batch_size=64, shuffle=False)):
            with ag.with_grad_tape():
                loss = ag.ag_mse_loss(model(batch.x), batch.y)
            optimizer.step(ag.backward(loss))
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def check(what: str, several: list[float], one: list[float]) -> None:
    """Print how far the losses are from those of one device, and fail if that is more than rounding."""
    furthest = float(np.abs(np.subtract(several, one)).max())
    print(f"{what}: loss {several[0]:.4f} at first, {several[-1]:.4f} after {len(several)} steps, at most "
          f"{furthest:.1e} from one device")
    if furthest > 1e-4 or several[-1] > several[0] / 4:
        sys.exit("FAILED: the losses must fall, and be within 1e-4 of those of one device")
