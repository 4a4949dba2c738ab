"""What each way to train in parallel costs, on one network: `python examples/parallel_modes.py`.

Time per step and the parameters that the fullest device holds.  Every CPU device has one thread of numpy's.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is loaded

import argparse
import statistics
from time import perf_counter

import numpy as np

import ag

parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--devices", default="cpu,cpu:1", help="two of them (default: %(default)s)")
parser.add_argument("--width", type=int, default=1024, help="of the layers (default: %(default)s)")
parser.add_argument("--steps", type=int, default=20, help="of each (default: %(default)s)")
options = parser.parse_args()
used, width = options.devices.split(","), options.width
X, Y = np.random.default_rng(0).standard_normal((2, width, 256)).astype(np.float32)


def layers() -> list[ag.Layer]:
    ag.ag_seed(1)
    return [ag.ag_linear(width, width, activation="relu") for _ in range(4)]


def tensor_parallel() -> ag.Layer:
    parts = []
    for first, second in zip(*[iter(layers())] * 2, strict=True):
        column = ag.ColumnParallelLinear.from_linear(first, used)
        column.gather_output = False
        parts += [column, ag.RowParallelLinear.from_linear(second, used)]
    return ag.ag_sequential(parts)


def ordinary(model: ag.Layer, device: str):
    x, y = ag.ag_tensor(X, device=used[0]), ag.ag_tensor(Y, device=device)

    def gradients() -> ag.Gradients:
        with ag.with_grad_tape():
            return ag.backward(ag.ag_mse_loss(model(x), y))

    return gradients


def step(name: str) -> float:
    """Seconds of a step."""
    begin = perf_counter()
    modes[name][1]()  # gradients
    optimizers[name].step()
    optimizers[name].zero_grad()
    ag.ag_synchronize()
    return perf_counter() - begin


def held(name: str) -> float:
    """MiB of parameters on the fullest device; replicas have a copy each."""
    params = modes[name][0].parameters().values()
    return max(sum(4 * p.size for p in params if name == "DataParallel" or p.device == d) for d in used) / 2**20


one, replicas = (ag.ag_sequential(layers()).to(used[0]) for _ in range(2))
spread, split = tensor_parallel(), ag.ModelParallel(layers(), [used[0], used[0], used[1], used[1]])
several, (a, b, c, d) = ag.DataParallel(replicas, used), layers()
pipe = ag.Pipeline([ag.ag_sequential(a, b), ag.ag_sequential(c, d)], used, micro_batches=4)
x, y = ag.ag_tensor(X, device=used[0]), ag.ag_tensor(Y, device=used[1])
modes = {"one device": (one, ordinary(one, used[0])), "DataParallel": (several, ordinary(several, used[0])),
         "tensor parallel": (spread, ordinary(spread, used[0])), "ModelParallel": (split, ordinary(split, used[1])),
         "Pipeline": (pipe, lambda: pipe.step(x, y, ag.ag_mse_loss))}
optimizers = {name: ag.optimizer_sgd(model.parameters(), lr=1e-3) for name, (model, _) in modes.items()}
seconds = [{name: step(name) for name in modes} for _ in range(options.steps + 2)][2:]  # in turn, as load varies
for name in modes:
    median = statistics.median(s[name] for s in seconds)
    ratio = statistics.median(s[name] / s["one device"] for s in seconds)
    print(f"{name:16} {1e3 * median:7.1f} ms per step, {ratio:4.2f} of one device, {held(name):5.1f} MiB of parameters")
