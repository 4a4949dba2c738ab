"""One kind of overhead.py's figures, in a process that does nothing else."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import emit, limit_threads, seconds_of

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=("eager", "capture", "memory", "dp_train", "replicas"), required=True)
parser.add_argument("--device", default="cpu")
parser.add_argument("--seconds", type=float, default=1.0)
parser.add_argument("--recompute", action="store_true", help="of `memory`")
parser.add_argument("--quick", action="store_true")
args = parser.parse_args()
limit_threads(1 if args.quick else 2)

import ag  # noqa: E402, I001 - after the thread pools are limited, and before numpy

import curves.models  # noqa: E402
import curves.workloads  # noqa: E402
import numpy as np  # noqa: E402
from ag.engine.compile import pipeline  # noqa: E402

BLOCK = 50  # calls: far shorter than a process's turn on a busy machine
TINY, BATCH = {"D": 8, "T": 4}, 2  # a GPT whose arrays take no time
LAYERS = (2, 4) if args.quick else (32, 64, 96)
WIDTHS = (20, 25) if args.quick else (2000, 2500)  # of a perceptron with 10 million parameters
Work = Callable[[], Any]


def best(work: Work, calls: int = 1) -> float:
    """Seconds of a call: of the quickest block of them, for some time."""
    def block() -> None:
        for _ in range(calls):
            work()

    block()
    found, end = [seconds_of(block)], time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        found.append(seconds_of(block))
    return min(found) / calls


# ---------------------------------------------------------------------------------------------- eager calls


def eager() -> None:
    """Ops of small tensors without the tape, and a step of four ops with it."""
    x, y = (ag.ag_tensor(np.random.default_rng(i).standard_normal((4, 8))) for i in range(2))
    ops: dict[str, Work] = {"add": lambda: x + y, "relu": lambda: ag.ag_relu(x), "reshape": lambda: x.reshape(8, 4),
                            "sum": lambda: ag.ag_sum(x), "softmax": lambda: ag.ag_softmax(x)}
    for name, work in ops.items():
        emit(what=f"eager {name}", value=1e6 * best(work, BLOCK), unit="us")
    w, b = ag.ag_param(np.eye(3, 4)), ag.ag_param(np.zeros((3, 1)))
    optimizer = ag.optimizer_adam([w, b])

    def step() -> None:
        with ag.with_grad_tape():
            loss = ag.ag_sum(ag.ag_relu(w @ x + b))
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()

    emit(what="eager step of four ops", value=1e6 * best(step, BLOCK // 10), unit="us")


# ---------------------------------------------------------------------------------------------- captured steps


def gpt(layers: int) -> tuple[Any, Any]:
    """A step of a GPT with arrays of a few numbers, and its operand."""
    for module in (curves.models, curves.workloads):
        vars(module).update(TINY, LAYERS=layers)
    weights, _ = curves.workloads.gpt(BATCH, True)
    return curves.models.training("gpt", weights), np.zeros((TINY["T"], BATCH), np.int64)


def capture() -> None:
    """What the first call of a captured step takes, and what of it is the compiler's; the quickest of several."""
    original, compiled = pipeline.compile_program, []

    def timed(*given: Any) -> Any:
        begin = time.perf_counter()
        made = original(*given)
        compiled.append(time.perf_counter() - begin)
        return made

    pipeline.compile_program = timed
    for layers in LAYERS:
        compiled.clear()
        whole = []
        for _ in range(2 if args.quick else 5):
            step, ids = gpt(layers)
            step(ids, ids)
            captured = ag.ag_capture(step)
            gc.collect()
            whole.append(seconds_of(lambda: captured(ids, ids).item()))  # noqa: B023 - called at once
        emit(what=f"compile {layers} layers", value=min(compiled), unit="s")
        emit(what=f"first captured call, {layers} layers", value=min(whole), unit="s")


def resident(name: str) -> float:
    """A row of /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{name}:"))


def memory() -> None:
    """How far the process grows above what it holds before the first step of W3."""
    weights, batches = curves.models.numbers("gpt", curves.workloads.BATCH["gpt"])
    step = curves.models.training("gpt", weights)
    tiny = ag.ag_capture(lambda x: ag.ag_sum(ag.ag_relu(x)))
    for _ in range(4):
        tiny(ag.ag_tensor([1.0]))  # what the first captured step of a process loads
    captured = ag.ag_capture(step, recompute=args.recompute)
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", "utf-8")  # the peak begins anew
    for x, y in batches[: 3 if args.quick else 6]:
        captured(x, y).item()
    gc.collect()
    for what, row in (("peak", "VmHWM"), ("afterwards", "VmRSS")):
        emit(what=f"W3 captured{', recompute' * args.recompute}, {what}", value=resident(row) - before, unit="MB")


# ---------------------------------------------------------------------------------------------- replicas


def perceptron() -> ag.Layer:
    wide, wider = WIDTHS
    return ag.ag_sequential(ag.ag_linear(wide, wider, activation="relu"), ag.ag_linear(wider, wide))


def trained(model: Callable[[], ag.Layer], data: list[Any], devices: list[str], steps: int,
            each: int = 1) -> list[float]:
    """Seconds of each step of `dp_train` but the first three."""
    ends: list[float] = []
    ag.dp_train(model, data, ag.ag_mse_loss, devices=devices, n_iter=3 + steps, micro_batch=each,
                verbose=False, seed=1, callback=lambda _step: ends.append(time.perf_counter()))
    return [b - a for a, b in pairwise(ends[2:])]


def dp_train() -> None:
    """A step of one replica with 10 million parameters, and a captured one without it."""
    data = [np.random.default_rng(i).standard_normal((WIDTHS[0], 8), np.float32) for i in range(4)]
    step_s = min(trained(perceptron, data, ["cpu"], 3 if args.quick else 40))
    model, x = perceptron(), ag.ag_tensor(data[0])
    optimizer = ag.optimizer_adam(model)

    def loss_and_gradients() -> tuple[ag.Tensor, Any]:
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(model(x), x)
        return loss, ag.backward(loss)

    def passed() -> list[ag.Tensor]:
        loss, gradients = loss_and_gradients()
        optimizer.zero_grad()
        return [loss, *(gradients[p] for p in model.parameters().values())]  # which are computed only if somebody asks

    def stepped() -> list[ag.Tensor]:
        loss, gradients = loss_and_gradients()
        optimizer.step(gradients)
        optimizer.zero_grad()
        return [loss]

    runs = [ag.ag_capture(step) for step in (passed, stepped)]
    pass_s, captured_s = (best(lambda run=run: run()[0].item()) for run in runs)
    for what, seconds in (("step", step_s), ("the pass", pass_s), ("a captured step", captured_s)):
        emit(what=f"10 M parameters, {what}", value=1e3 * seconds, unit="ms")


def replicas() -> None:
    """Steps of one, two, four and eight replicas on as many CPU devices: a sample each, and eight for all together."""
    data = [np.random.default_rng(i).standard_normal((64, 32), np.float32) for i in range(8)]

    def model() -> ag.Layer:
        return ag.ag_sequential(*[ag.ag_linear(64, 64, activation="relu") for _ in range(4)])

    for count in (1, 2, 4, 8):
        devices = ["cpu", *(f"cpu:{i}" for i in range(1, count))]
        for what, each in (("a sample each", 1), ("8 samples in all", 8 // count)):
            def job_s(steps: int, devices: list[str] = devices, each: int = each) -> float:
                return seconds_of(partial(ag.dp_train, model, data, ag.ag_mse_loss, devices=devices, n_iter=steps,
                                          micro_batch=each, verbose=False, seed=1))

            few, many = (20, 520) if args.quick else (300, 1300)
            job_s(few)  # everything is slower for the first time
            seconds = (job_s(many) - job_s(few)) / (many - few)  # without what a job begins with
            emit(what=f"{count} replicas, {what}", value=1e3 * seconds, unit="ms")


with ag.ag_device(args.device):
    {"eager": eager, "capture": capture, "memory": memory, "dp_train": dp_train, "replicas": replicas}[args.kind]()
