"""Samples per second of W2 on several devices, with a core for each."""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable

from common import emit, limit_threads

parser = argparse.ArgumentParser()
parser.add_argument("--devices", required=True, help="comma-separated")
parser.add_argument("--how", choices=("dp_train", "threads"), required=True)
parser.add_argument("--cores", type=int, default=0, help="that all devices have together; 0: one each")
parser.add_argument("--seconds", type=float, default=1.0)
parser.add_argument("--quick", action="store_true")
args = parser.parse_args()
limit_threads(1)
os.environ["OMP_NUM_THREADS"] = str(args.cores or len(args.devices.split(",")))

import numpy as np  # noqa: E402 - after the thread pools are limited
from steps import WORKLOADS, data  # noqa: E402

import ag  # noqa: E402
from ag.engine.cpu_threads import share_cores  # noqa: E402

devices = args.devices.split(",")
w = WORKLOADS["W2"]
samples, labels, _ = data("W2")
one_hot = np.eye(w.sizes[-1], dtype=np.float32)
batches = [(np.ascontiguousarray(x.T), np.ascontiguousarray(one_hot[y].T))
           for x, y in zip(samples, labels, strict=True)]
BLOCKS = 2 if args.quick else 7
WARM = 10  # steps that are not counted


def model() -> ag.Layer:
    a, b, c, d = w.sizes
    return ag.ag_sequential(ag.ag_linear(a, b, activation="relu"), ag.ag_linear(b, c, activation="relu"),
                            ag.ag_linear(c, d))


def with_dp_train(steps: int) -> float:
    """Seconds of so many steps, each with a batch per replica."""
    ends: list[float] = []
    ag.dp_train(model, batches, ag.ag_softmax_cross_entropy_loss, lambda m, s: m(ag.ag_tensor(s[0])), lambda s: s[1],
                devices=devices, n_iter=WARM + steps, verbose=False,
                callback=lambda _step: ends.append(time.perf_counter()))
    return ends[-1] - ends[WARM - 1]


def independent() -> Callable[[int], float]:
    """The same without exchange of gradients: a thread per device, which trains a model of its own."""
    begins, ends = (threading.Barrier(len(devices) + 1) for _ in range(2))
    wanted = [0]

    def work(device: str) -> None:
        share_cores(len(devices))
        with ag.ag_device(device):
            net = model()
            optimizer = ag.optimizer_adam(net)

            def step(x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
                with ag.with_grad_tape():
                    loss = ag.ag_softmax_cross_entropy_loss(net(x), y)
                optimizer.step(ag.backward(loss))
                return loss

            captured = ag.ag_capture(step)  # which only the thread replays that has recorded it
            batch = tuple(ag.ag_tensor(array) for array in batches[0])
            for _ in range(WARM):
                captured(*batch)
            while True:
                begins.wait()
                for _ in range(wanted[0]):
                    loss = captured(*batch)
                loss.item()
                ends.wait()

    for device in devices:
        threading.Thread(target=work, args=(device,), daemon=True).start()

    def train(steps: int) -> float:
        wanted[0] = steps
        begins.wait()
        begin = time.perf_counter()
        ends.wait()
        return time.perf_counter() - begin

    return train


train = with_dp_train if args.how == "dp_train" else independent()
several = max(1, round(args.seconds / BLOCKS / train(1)))
rates = [several * len(devices) * w.batch / train(several) for _ in range(BLOCKS)]
emit(samples_per_s=statistics.median(rates), lo=min(rates), hi=max(rates))
