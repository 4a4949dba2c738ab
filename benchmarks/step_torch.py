"""The same step in PyTorch: eager with its default optimizer or with the fused one, compiled as a whole, or, on a card
of NVIDIA's, the fused one replayed as a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import steps

args = steps.arguments("eager", "fused", "compiled", "graph")

import torch  # noqa: E402 - after the thread pools are limited
from common import THREADS  # noqa: E402
from curves.workloads import ADAMW, SGD  # noqa: E402
from make import gpt_loss, resnet_loss  # noqa: E402 - tests/curves/make.py

torch.set_num_threads(THREADS)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # float32 is float32 in both libraries
torch.backends.cudnn.benchmark = True  # its own best
w = steps.WORKLOADS[args.workload]
BETAS, EPS = (0.9, 0.999), 1e-8
Params = dict[str, torch.Tensor]


def mlp_loss(p: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The perceptron."""
    for i in range(1, len(w.sizes)):
        x = torch.nn.functional.linear(x, p[f"W{i}"], p[f"b{i}"])
        x = x.relu() if i + 1 < len(w.sizes) else x
    return torch.nn.functional.cross_entropy(x, y)


if w.curve:
    weights, batches = steps.curve_data(args)
    loss_of: Any = resnet_loss if w.curve == "resnet8" else gpt_loss
else:
    samples, labels, weights = steps.data(args.workload)
    batches = list(zip(samples, labels, strict=True))
    loss_of = mlp_loss
channels_last = {"memory_format": torch.channels_last} if w.curve == "resnet8" else {}


def tensor(array: Any) -> torch.Tensor:
    found = torch.tensor(array, device=args.device)
    if args.dtype == "bf16" and found.is_floating_point():
        found = found.bfloat16()
    return found.to(**channels_last) if found.dim() == 4 else found


params = {name: tensor(v) for name, v in weights.items()}
batches = [(tensor(x), tensor(y)) for x, y in batches]


def eager() -> Any:
    """A step of autograd and an optimizer of PyTorch's."""
    for p in params.values():
        p.requires_grad_()
    graph = args.variant == "graph"
    fused, more = args.variant == "fused" or graph, {"capturable": True} if graph else {}
    if w.curve == "resnet8":
        optimizer: Any = torch.optim.SGD(params.values(), **SGD, fused=fused)
    elif w.curve:
        optimizer = torch.optim.AdamW(params.values(), **ADAMW, fused=fused, **more)
    else:
        optimizer = torch.optim.Adam(params.values(), lr=w.lr, fused=fused, **more)

    def step_with(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = loss_of(params, x, y)
        loss.backward()
        optimizer.step()
        return loss

    return replayed(step_with) if graph else lambda i: step_with(*batches[i % len(batches)])


def replayed(step_with: Any) -> Any:
    """The step as a CUDA graph that reads one batch; the first steps run eagerly, as PyTorch's documentation has it."""
    static = tuple(x.clone() for x in batches[0])
    side, graph, last = torch.cuda.Stream(), torch.cuda.CUDAGraph(), [static[0]]
    eager_steps = 3

    def step(i: int) -> torch.Tensor:
        for there, x in zip(static, batches[i % len(batches)], strict=True):
            there.copy_(x)
        if i < eager_steps:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                last[0] = step_with(*static).detach()
            torch.cuda.current_stream().wait_stream(side)
        else:
            if i == eager_steps:
                with torch.cuda.graph(graph):
                    last[0] = step_with(*static)
            graph.replay()
        return last[0]

    return step


def compiled() -> Any:
    """Loss, gradients and update in one compiled function."""
    moments = [{name: torch.zeros_like(p) for name, p in params.items()} for _ in range(2)]
    t = torch.zeros((), device=args.device)
    lr = SGD["lr"] if w.curve == "resnet8" else ADAMW["lr"] if w.curve else w.lr
    decay = ADAMW["weight_decay"] if w.curve == "gpt" else 0.0

    def whole(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        grads, loss = torch.func.grad_and_value(lambda p: loss_of(p, x, y))(params)
        t.add_(1)
        root, rest = 1 - BETAS[1]**t, 1 - BETAS[0]**t
        for name, p in params.items():
            g, m, v = grads[name], moments[0][name], moments[1][name]
            if w.curve == "resnet8":
                p.sub_(m.mul_(SGD["momentum"]).add_(g), alpha=lr)
            else:
                m.mul_(BETAS[0]).add_(g, alpha=1 - BETAS[0])
                v.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
                p.mul_(1 - lr * decay).sub_(lr * (m / rest) / (torch.sqrt(v / root) + EPS))
        return loss

    fast = torch.compile(whole, fullgraph=True)

    def step(i: int) -> torch.Tensor:
        with torch.no_grad():
            return fast(*batches[i % len(batches)])

    return step


steps.measure(args, compiled() if args.variant == "compiled" else eager(), lambda loss: float(loss.detach()))
