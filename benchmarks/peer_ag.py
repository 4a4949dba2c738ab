"""A step of this library: eager, captured, or inside `dp_train`."""

from __future__ import annotations

import time

import workloads

args = workloads.arguments("eager", "captured", "dp_train")

import numpy as np  # noqa: E402 - after the thread pools are limited

import ag  # noqa: E402

w = workloads.WORKLOADS[args.workload]
samples, labels, weights = workloads.data(args.workload)
one_hot = np.eye(w.sizes[-1], dtype=np.float32)


def model() -> ag.Layer:
    last = len(w.sizes) - 2
    layers = [ag.ag_linear(a, b, activation="relu" if i < last else None)
              for i, (a, b) in enumerate(zip(w.sizes, w.sizes[1:], strict=False))]
    for i, layer in enumerate(layers, 1):
        layer.W.data = weights[f"W{i}"]
        layer.b.data = weights[f"b{i}"][:, None]
    return ag.ag_sequential(*layers)


def run_steps() -> None:
    xs = [ag.ag_tensor(np.ascontiguousarray(x.T)) for x in samples]
    ys = [ag.ag_tensor(np.ascontiguousarray(one_hot[y].T)) for y in labels]
    net = model()
    optimizer = ag.optimizer_adam(net, lr=w.lr)

    def step(x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(net(x), y)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    run = ag.ag_capture(step) if args.variant == "captured" else step
    workloads.measure(args, f"ag {args.variant}", lambda i: run(xs[i % len(xs)], ys[i % len(ys)]), ag.Tensor.item)


def run_dp_train() -> None:
    pairs = [(np.ascontiguousarray(x.T), np.ascontiguousarray(one_hot[y].T))
             for x, y in zip(samples, labels, strict=True)]

    def train(steps: int) -> ag.DPResult:
        return ag.dp_train(model, pairs, ag.ag_softmax_cross_entropy_loss, lambda m, s: m(ag.ag_tensor(s[0])),
                           lambda s: s[1], n_iter=steps, lr=w.lr, verbose=False, devices=[args.device])

    checked = workloads.CHECKED[args.workload]
    history = train(checked).loss_history
    rates = []
    for _ in range(7):  # the difference of two runs: without building the model and capturing
        times = []
        for steps in (checked, 11 * checked):
            begin = time.perf_counter()
            train(steps)
            times.append(time.perf_counter() - begin)
        rates.append(10 * checked / (times[1] - times[0]))
    workloads.report(args, "ag dp_train", rates, float(history[0]), float(history[-1]))


with ag.ag_device(args.device):
    run_dp_train() if args.variant == "dp_train" else run_steps()
