"""dp_train on synthetic regression with several replica counts, and checks that it did what it promises.

The Python counterpart of ggmlR's inst/examples/dp_train_demo.R: the same task, network and checks, and at the end
checks of what ggmlR does not promise: replicas that stay equal, and results that do not depend on how many there are.
Run it as `python examples/dp_train_demo.py`; it prints a line per check and fails when one fails.
"""

from __future__ import annotations

import argparse
import sys
from hashlib import sha256

import numpy as np

import ag

D_IN, D_HIDDEN, D_OUT = 4, 16, 2
SAMPLES = 128
STEPS = 100
LEARNING_RATE = 5e-3


def make_data(rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Samples of y = W x + noise."""
    W = np.array([[0.5, 0.8, 0.2, -0.4], [-0.3, -0.1, 0.6, 0.9]])
    x = rng.normal(size=(D_IN, SAMPLES))
    y = W @ x + rng.normal(scale=0.05, size=(D_OUT, SAMPLES))
    return [{"x": x[:, i : i + 1], "y": y[:, i : i + 1]} for i in range(SAMPLES)]


class TwoLayers:
    """A model of one's own needs no base class: `forward` and `parameters` are enough."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.W1 = ag.ag_param(rng.normal(scale=np.sqrt(2 / D_IN), size=(D_HIDDEN, D_IN)))
        self.b1 = ag.ag_param(np.zeros((D_HIDDEN, 1)))
        self.W2 = ag.ag_param(rng.normal(scale=np.sqrt(2 / D_HIDDEN), size=(D_OUT, D_HIDDEN)))
        self.b2 = ag.ag_param(np.zeros((D_OUT, 1)))

    def forward(self, x) -> ag.Tensor:
        return self.W2 @ ag.ag_relu(self.W1 @ x + self.b1) + self.b2

    def parameters(self) -> dict[str, ag.Tensor]:
        return {"W1": self.W1, "b1": self.b1, "W2": self.W2, "b2": self.b2}


def digest(model: TwoLayers) -> str:
    """SHA-256 of all parameters."""
    return sha256(b"".join(p.numpy().tobytes() for p in model.parameters().values())).hexdigest()


def train(data: list[dict[str, np.ndarray]], devices: list[str], **options) -> ag.DPResult:
    """One run. Replicas draw different initial weights on purpose: `dp_train` gives all of them those of replica 0."""
    rng = np.random.default_rng(42)
    return ag.dp_train(
        make_model=lambda: TwoLayers(rng),
        data=data,
        loss_fn=ag.ag_mse_loss,
        forward_fn=lambda model, sample: model.forward(sample["x"]),
        target_fn=lambda sample: sample["y"],
        devices=devices,
        n_iter=STEPS,
        lr=LEARNING_RATE,
        max_norm=5.0,
        seed=42,  # which decides the order of the samples
        **options,
    )


class Checks:
    """Prints a line per check and remembers whether one failed."""

    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, passed: bool, what: str) -> None:
        print(f"  {'PASS' if passed else 'FAIL'}  {what}")
        self.failed += not passed


def main() -> int:
    parser = argparse.ArgumentParser(description="Train with 1, 2 and more replicas and check the results.")
    parser.add_argument("--devices", metavar="NAME,NAME", help="such as cpu,cpu:1 or vulkan:0,vulkan:1; "
                        "default: every Vulkan device, or the CPU")
    names = parser.parse_args().devices
    found = ag.ag_vulkan_devices()
    cards = [info for info in found if info.kind != "cpu"] or found  # without one, software drivers stand for cards
    available = names.split(",") if names else [info.name for info in cards] or ["cpu"]

    before = ag.ag_default_device()
    rng = np.random.default_rng(7)
    data = make_data(rng)
    print(f"devices: {', '.join(available)}; {SAMPLES} samples, x of shape ({D_IN}, 1), y of shape ({D_OUT}, 1)\n")

    results: dict[int, ag.DPResult] = {}
    distinct: dict[int, int] = {}  # replicas -> the most different SHA-256 that were seen after one step
    for count in (1, 2, max(4, len(available))):
        devices = [available[i % len(available)] for i in range(count)]
        print(f"--- {count} replica(s) on {', '.join(devices)}; {count} sample(s) per step")
        seen: list[int] = []
        result = results[count] = train(data, devices, verbose=25, callback=lambda step, seen=seen: seen.append(
            len({digest(model) for model in step.models})))
        distinct[count] = max(seen)
        print(f"loss {result.loss_history[0]:.4f} -> {result.loss:.4f}\n")
    last = results[max(results)]

    print("--- inference with replica 0 of the last run, 4 new samples")
    with ag.ag_device(last.devices[0]):
        prediction = last.model.forward(ag.ag_tensor(rng.normal(size=(D_IN, 4)))).numpy()
    print(prediction.round(3), "\n")

    print("--- checks")
    check = Checks()
    third = STEPS // 3
    ends = {count: result.loss_history[-third:].mean() for count, result in results.items()}
    for count, result in results.items():
        losses = result.loss_history
        check(len(losses) == STEPS, f"{count} replica(s): loss_history has one loss per step")
        check(bool(np.isfinite(losses).all()), f"{count} replica(s): every loss is finite")
        check(ends[count] < losses[:third].mean(), f"{count} replica(s): the loss decreases")
    check(all(hasattr(last, name) for name in ("params", "loss_history", "model")),
          "the result has params, loss_history and model")
    check(ends[2] <= 1.5 * ends[1], "2 replicas train at least about as well as 1")
    check(ag.ag_default_device() == before, "the default device is what it was before")
    check(bool(np.isfinite(prediction).all()), "the predictions are finite")

    for count, most in distinct.items():
        check(most == 1, f"{count} replica(s): parameters have one SHA-256 after every step")
    # The same 4 samples per step, dealt out in three ways to replicas on one device.
    ways = [train(data, [available[0]] * n, batch=4, stack=1, verbose=False) for n in (1, 2, 4)]
    check(len({digest(way.model) for way in ways}) == 1,
          f"4 samples per step on 1, 2 or 4 replicas on {available[0]}: the same parameters, bit for bit")
    check(all(np.array_equal(way.loss_history, ways[0].loss_history) for way in ways), "... and the same losses")

    print(f"\n{check.failed} checks failed" if check.failed else "\nall checks passed")
    return 1 if check.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ag.AgError as error:
        sys.exit(f"dp_train_demo: {error}")
