"""A captured step in float32, bf16 and f16, in turn in one process, and the perceptron's in PyTorch.

W3 is the GPT of bench_step.py, the perceptron has layers of 512-1024-1024-512 and Adam.  One thread each; processor
time, as another program may take the core between.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise
from time import process_time
from typing import Any

from common import limit_threads, parsed, parser, seconds_of, table, write

limit_threads(1)

import numpy as np  # noqa: E402 - after the thread pools are limited
from curves.models import numbers, training  # noqa: E402

import ag  # noqa: E402

SIZES = 512, 1024, 1024, 512
Step = Callable[[], float]


def gpt(batch: int) -> Step:
    """A captured step of W3."""
    weights, batches = numbers("gpt", batch)
    run, (x, y) = ag.ag_capture(training("gpt", weights)), batches[0]
    return lambda: run(x, y).item()


def perceptron(batch: int) -> Step:
    """A captured step of the perceptron."""
    net = ag.ag_sequential(*(ag.ag_linear(a, b, activation="relu" if b == 1024 else None)
                             for a, b in pairwise(SIZES)))
    optimizer = ag.optimizer_adam(net, lr=1e-3)
    x, y = (ag.ag_tensor(np.random.default_rng(k).normal(size=(512, batch))) for k in range(2))

    @ag.ag_capture
    def step(x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(net(x), y)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    return lambda: step(x, y).item()


def perceptron_of_torch(batch: int, dtype: str) -> Step:
    """The same in PyTorch, with parameters of this type."""
    import torch

    torch.set_num_threads(1)
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    net = torch.nn.Sequential(linear(512, 1024), relu(), linear(1024, 1024), relu(), linear(1024, 512)).to(kind)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    x, y = (torch.randn(batch, 512, dtype=kind) for _ in range(2))

    def step() -> float:
        loss = torch.nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def main() -> None:
    args = parsed(parser(__doc__, rounds=40))
    results: list[dict[str, Any]] = []
    for name, make, batches in (("W3", gpt, (16, 128)), ("perceptron", perceptron, (128, 512))):
        for batch in batches[: 1 if args.quick else 2]:
            steps: dict[str, Step] = {}
            for dtype in ("f32", "bf16", "f16"):
                ag.ag_dtype(dtype)
                steps[dtype] = make(batch)
            if make is perceptron and args.torch:
                steps |= {f"torch {dtype}": perceptron_of_torch(batch, dtype) for dtype in ("f32", "bf16")}
            times: dict[str, list[float]] = {key: [] for key in steps}
            for count in range(args.rounds + 3):
                for key, step in steps.items():
                    taken = seconds_of(step, process_time)
                    if count >= 3:  # recorded, compared, warm
                        times[key].append(1e3 * taken)
            for key, taken in times.items():
                ratios = [a / b for a, b in zip(taken, times["f32"], strict=True)]
                results.append({"workload": name, "batch": batch, "type": key, "ms": statistics.median(taken),
                                "least_ms": min(taken), "x_f32": statistics.median(ratios),
                                "x_f32_of_least": min(taken) / min(times["f32"])})
    table(["workload", "batch", "type", "ms", "least", "of f32's time", "least of least"],
          [list(result.values()) for result in results])
    write("types", args, results=results)


if __name__ == "__main__":
    main()
