"""The same step in PyTorch: eager with its default Adam, or with the fused one."""

from __future__ import annotations

import workloads

args = workloads.arguments("eager", "fused")

import torch  # noqa: E402 - after the thread pools are limited

torch.set_num_threads(workloads.THREADS)
w = workloads.WORKLOADS[args.workload]
samples, labels, weights = workloads.data(args.workload)
torch.backends.cuda.matmul.allow_tf32 = False  # float32 is float32 in both libraries
xs = [torch.from_numpy(x).to(args.device) for x in samples]
ys = [torch.from_numpy(y).to(args.device) for y in labels]
params = {name: torch.from_numpy(v).to(args.device).requires_grad_() for name, v in weights.items()}
optimizer = torch.optim.Adam(list(params.values()), lr=w.lr, fused=args.variant == "fused")
layers = len(w.sizes) - 1


def step(i: int) -> torch.Tensor:
    x = xs[i % len(xs)]
    optimizer.zero_grad()
    for k in range(1, layers + 1):
        x = torch.nn.functional.linear(x, params[f"W{k}"], params[f"b{k}"])
        x = x.relu() if k < layers else x
    loss = torch.nn.functional.cross_entropy(x, ys[i % len(ys)])
    loss.backward()
    optimizer.step()
    return loss


workloads.measure(args, f"torch {args.variant}", step, lambda loss: float(loss.detach()))
