"""Replicas that send 1 % of their gradients, against replicas that send all. Run it as `python
examples/compressed_gradients.py`.

What a replica leaves out it adds to its next gradient; momentum is left to it, too.  The run fails when compressed
training has not reached the loss of ordinary training, within 2 %, after 1.2 times as many steps.
"""

import argparse
import sys

import numpy as np
from digits_cnn import load_digits

import ag


def make_network() -> ag.Layer:
    ag.ag_seed(1)
    return ag.ag_sequential(ag.ag_linear(64, 64, activation="relu"), ag.ag_linear(64, 10))


def train(model: ag.DataParallel, optimizer: ag.optimizer_sgd, x: np.ndarray, digits: np.ndarray, steps: int) -> float:
    """The loss over all images after so many steps."""
    for k in range(steps):
        picked = np.random.default_rng(k).integers(0, len(digits), 64)
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(x[:, picked])), digits[picked])
        optimizer.step(ag.backward(loss))
    return ag.ag_softmax_cross_entropy_loss(model.module(ag.ag_tensor(x)), digits).item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with compressed gradients.")
    parser.add_argument("--devices", default="cpu,cpu:1", help="one per replica (default: %(default)s)")
    parser.add_argument("--ratio", type=float, default=0.01, help="part that is sent (default: %(default)s)")
    parser.add_argument("--wire", default="f16", help="f32, f16 or bf16 (default: %(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="of ordinary training (default: %(default)s)")
    options = parser.parse_args()
    devices = options.devices.split(",")
    ag.ag_device(devices[0])
    images, digits = load_digits()
    x = images.reshape(64, -1).astype(np.float32)

    more = round(1.2 * options.steps)
    whole = ag.DataParallel(make_network(), devices)
    lr = 0.2 * (1 - options.momentum)
    reached = train(whole, ag.optimizer_sgd(whole, lr, options.momentum), x, digits, options.steps)
    short = ag.CompressedDataParallel(make_network(), devices, options.ratio, options.wire, momentum=options.momentum)
    loss = train(short, ag.optimizer_sgd(short, lr), x, digits, more)
    dense = len(devices) * sum(4 * p.size for p in whole.parameters().values())
    print(f"all gradients:  loss {reached:.4f} after {options.steps} steps, {dense:,} bytes per step")
    print(f"{options.ratio:.0%} in {options.wire}:      loss {loss:.4f} after {more} steps, {short.bytes_per_step:,} "
          f"bytes per step, {dense / short.bytes_per_step:.0f} times fewer")
    if loss > 1.02 * reached:
        sys.exit("FAILED: compressed training must come within 2 % of the loss in 1.2 times the steps")


if __name__ == "__main__":
    main()
