"""What each device keeps when optimizer state, gradients and parameters are shared out, stage by stage. Run it as
`python examples/zero_memory.py`.

Every stage trains the same model; on devices that are alike, the weights come out the same to the bit.  The run fails
when they are not the same within 1e-4.
"""

import argparse
import gc
import sys

import numpy as np

import ag
from ag.engine.device import backend_of

WIDTH, LAYERS, STEPS = 128, 8, 5


def live(devices: list[str]) -> list[int]:
    """Bytes in use on each device."""
    gc.collect()
    return [backend_of(device).arena.stats().live for device in devices]


def run(devices: list[str], stage: int) -> tuple[dict[str, np.ndarray], list[int]]:
    """Weights after training, and what stays on each device while there are gradients."""
    before = live(devices)
    ag.ag_seed(1)
    model = ag.ag_sequential(*(ag.ag_linear(WIDTH, WIDTH, activation="tanh") for _ in range(LAYERS)))
    zero = ag.ZeroOptimizer(model, ag.optimizer_adam, devices, stage, lr=1e-3)
    x = np.random.default_rng(0).standard_normal((WIDTH, 8)).astype(np.float32)
    for _ in range(STEPS):
        zero.zero_grad()
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(zero.model(ag.ag_tensor(x)), ag.ag_tensor(x))
        ag.backward(loss)
        zero.clip_grad_norm(1.0)
        zero.step()
    del loss
    return zero.model.state_dict(), [now - then for now, then in zip(live(devices), before, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the stages of ZeroOptimizer.")
    parser.add_argument("--devices", default="cpu,cpu:1,cpu:2,cpu:3", help="one per replica (default: %(default)s)")
    devices = parser.parse_args().devices.split(",")
    ag.ag_device(devices[0])
    expected: dict[str, np.ndarray] = {}
    for stage in (1, 2, 3):
        weights, held = run(devices, stage)
        expected = expected or weights
        apart = max(float(np.abs(weights[name] - w).max()) for name, w in expected.items())
        shown = ", ".join(f"{device} {n / 1024:.0f} KiB" for device, n in zip(devices, held, strict=True))
        print(f"stage {stage}: {shown}; largest difference from stage 1: {apart:g}")
        if not apart <= 1e-4:
            sys.exit("FAILED: the stages must train the same weights")


if __name__ == "__main__":
    main()
