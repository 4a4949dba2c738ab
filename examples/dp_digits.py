"""The digits on several devices at once, with a crash in the middle. Run it as `python examples/dp_digits.py`.

The job is started again, and goes on from its checkpoint.  It fails unless weights and losses are, to the bit, those of
a job that did not crash, and at least 95 % of the digits that were held out are read correctly.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from digits_cnn import load_digits, make_model

import ag
from ag import data, ops, optim, training


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on several devices, crash, and resume.")
    parser.add_argument("--devices", default="cpu,cpu:1", help="one per replica (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=150, help="optimizer steps (default: %(default)s)")
    options = parser.parse_args()
    images, digits = load_digits()
    held_out = len(digits) // 5
    test = data.DataLoader(images[..., :held_out], digits[:held_out])
    loader = data.DataLoader(images[..., held_out:], digits[held_out:])

    def train(**job) -> ag.DPResult:
        return ag.dp_train(
            make_model, loader, ops.softmax_cross_entropy_loss, devices=options.devices.split(","), batch=64,
            n_iter=options.steps, lr=5e-3, seed=0, verbose=50, **job,
            scheduler=lambda opt: optim.WarmupSchedule(opt, 10, after=optim.CosineSchedule(opt, T_max=options.steps)))

    def crash(step: ag.DPStep) -> None:
        if step.step == options.steps // 2:
            raise RuntimeError(f"the power is gone in step {step.step}")

    whole = train()
    with tempfile.TemporaryDirectory() as folder:
        job = {"checkpoint": Path(folder) / "job.safetensors", "checkpoint_every": 10, "resume": True}
        try:
            train(**job, callback=crash)
        except RuntimeError as error:
            print(error)
        resumed = train(**job)  # the same command again

    expected, found = whole.model.state_dict(), resumed.model.state_dict()
    equal = np.array_equal(whole.loss_history, resumed.loss_history)
    equal = equal and all(np.array_equal(expected[name], found[name]) for name in expected)
    accuracy = training.evaluate(resumed.model, test, metrics=["accuracy"])["accuracy"]
    print(f"on {', '.join(resumed.devices)}: equal to the bit after a crash: {equal}, accuracy {accuracy:.3f}")
    if not equal or accuracy < 0.95:
        sys.exit("FAILED: weights and losses must be equal, and the accuracy at least 0.95")


if __name__ == "__main__":
    main()
