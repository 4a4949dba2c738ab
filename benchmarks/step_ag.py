"""A step of this library: eager, captured, inside `dp_train`, or captured without kernels in C (`numpy`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import steps

args = steps.arguments("eager", "captured", "dp_train", "numpy")
if args.variant == "numpy":
    os.environ["AG_CPU"] = "numpy"

import ag  # noqa: E402, I001 - after the thread pools are limited, and before numpy, as ag tells its threads to sleep

import numpy as np  # noqa: E402
from curves.models import numbers, training  # noqa: E402
from curves.workloads import BATCH, SMALL_BATCH  # noqa: E402

w = steps.WORKLOADS[args.workload]
MEASURED = 2000  # steps of dp_train


def mlp(weights: dict[str, Any]) -> ag.Layer:
    """The perceptron with its initial weights."""
    last = len(w.sizes) - 2
    layers = [ag.ag_linear(a, b, activation="relu" if i < last else None) for i, (a, b) in enumerate(pairwise(w.sizes))]
    for i, layer in enumerate(layers, 1):
        layer.W.data = weights[f"W{i}"]
        layer.b.data = weights[f"b{i}"][:, None]
    return ag.ag_sequential(*layers)


def mlp_batches() -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Batches with samples last, one-hot targets, and weights."""
    samples, labels, weights = steps.data(args.workload)
    one_hot = np.eye(w.sizes[-1], dtype=np.float32)
    return ([np.ascontiguousarray(x.T) for x in samples], [np.ascontiguousarray(one_hot[y].T) for y in labels], weights)


def mlp_training() -> tuple[Callable[..., ag.Tensor], list[tuple[Any, Any]]]:
    """A step with Adam, and resident batches."""
    xs, ys, weights = mlp_batches()
    net = mlp(weights)
    optimizer = ag.optimizer_adam(net, lr=w.lr)

    def step(x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(net(x), y)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    return step, [(ag.ag_tensor(x), ag.ag_tensor(y)) for x, y in zip(xs, ys, strict=True)]


def curve_training() -> tuple[Callable[..., ag.Tensor], list[tuple[Any, Any]]]:
    """A step of W3 or W4, and batches: images resident, character and class numbers on the host."""
    weights, batches = numbers(w.curve, (SMALL_BATCH if args.quick else BATCH)[w.curve])
    return training(w.curve, weights), [(x if x.dtype.kind == "i" else ag.ag_tensor(x), y) for x, y in batches]


def step_and_batches() -> tuple[Callable[..., ag.Tensor], list[tuple[Any, Any]]]:
    """The workload's step, to be called with a batch, and its batches."""
    return curve_training() if w.curve else mlp_training()


def run_steps() -> None:
    step, batches = step_and_batches()
    run = ag.ag_capture(step) if args.variant in ("captured", "numpy") else step
    steps.measure(args, lambda i: run(*batches[i % len(batches)]), ag.Tensor.item)


def run_dp_train() -> None:
    xs, ys, weights = mlp_batches()
    pairs = list(zip(xs, ys, strict=True))

    def train(count: int) -> ag.DPResult:
        return ag.dp_train(lambda: mlp(weights), pairs, ag.ag_softmax_cross_entropy_loss,
                           lambda m, s: m(ag.ag_tensor(s[0])), lambda s: s[1], n_iter=count, lr=w.lr, verbose=False,
                           devices=[args.device], shuffle=False)

    first = steps.checked(args)
    history = train(first).loss_history
    found = []
    # the difference of two runs: without building the model and capturing, which takes as long as hundreds of steps
    for _ in range(2 if args.quick else steps.BLOCKS):
        times = []
        for count in (first, first + MEASURED):
            begin = time.perf_counter()
            train(count)
            times.append(time.perf_counter() - begin)
        found.append((times[1] - times[0]) / MEASURED)
    steps.report(args, found, float(history[0]), float(history[-1]))


if __name__ == "__main__":
    ag.ag_dtype(args.dtype)
    with ag.ag_device(args.device):
        run_dp_train() if args.variant == "dp_train" else run_steps()
