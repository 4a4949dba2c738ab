"""The cases of `ops` in PyTorch, float32 without TF32, in the memory layout that is best for it."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

from common import THREADS, emit, limit_threads, repeated
from ops import SIZES, Case

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--seconds", type=float, default=1.0)
parser.add_argument("--sizes", choices=list(SIZES), required=True)
args = parser.parse_args()
limit_threads()

import torch  # noqa: E402 - after the thread pools are limited
import torch.nn.functional as F  # noqa: E402, N812

torch.set_num_threads(THREADS)
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True
Work = Callable[[], Any]


def tensor(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device=args.device, requires_grad=grad)


def gradient(y: torch.Tensor, *inputs: torch.Tensor) -> Work:
    """The backward pass from `y` to some inputs."""
    g = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, inputs, g, retain_graph=True)


def step(op: Callable[..., torch.Tensor], *operands: torch.Tensor) -> Work:
    """The op and the gradients of its operands."""
    weights = torch.randn_like(op(*operands))
    for x in operands:
        x.requires_grad_()

    def both() -> Any:
        y = op(*operands)
        return torch.autograd.grad((y * weights).sum() if y.ndim else y, operands)

    return both


def works(case: Case) -> list[Work]:
    """Ways to compute a case; the quickest counts."""
    s = case.sizes

    def made(op: Callable[..., torch.Tensor], *operands: torch.Tensor) -> Work:
        return step(op, *operands) if case.op.endswith(" step") else lambda: op(*operands)

    if case.op.startswith("matmul"):
        m, k, n = s
        a, b = {"matmul dW": ((m, k), (n, k)), "matmul dX": ((k, m), (k, n))}.get(case.op, ((m, k), (k, n)))
        x, y = tensor(*a), tensor(*b)
        return [{"matmul dW": lambda: x @ y.T, "matmul dX": lambda: x.T @ y}.get(case.op, lambda: x @ y)]
    if case.op.startswith("conv"):
        return [_conv(case, layout) for layout in (torch.contiguous_format, torch.channels_last)]
    if case.op.startswith("einsum"):
        x, y = tensor(s[0], s[1], s[2]), tensor(s[0], s[2], s[1])
        return [made(lambda x, y: torch.einsum("bmk,bkn->bmn", x, y), x, y)]
    if case.op.startswith("attention"):
        matrices, length, features = s
        q, k, v = (tensor(1, matrices, length, features, grad="backward" in case.op) for _ in range(3))
        if case.op == "attention":
            return [lambda: F.scaled_dot_product_attention(q, k, v)]
        if case.op.startswith("attention masked"):
            mask = torch.rand(1, matrices, 1, length, device=args.device) < 0.9
            return [made(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), q, k, v)]
        return [gradient(F.scaled_dot_product_attention(q, k, v), q, k, v)]
    if case.op == "AdamW":
        p = tensor(s[0], grad=True)
        p.grad = tensor(s[0])
        return [torch.optim.AdamW([p], lr=1e-3, fused=True).step]
    x = tensor(*reversed(s))  # samples first
    if case.op == "add":
        y = tensor(*s)
        return [lambda: x + y]
    if case.op == "sum":
        return [lambda: x.sum()]
    if case.op.startswith("where"):
        mask = x > 0
        return [made(lambda x, y: torch.where(mask, x, y), x, torch.randn_like(x))]
    if case.op.startswith("bce"):
        y = torch.rand_like(x)
        return [made(lambda x: F.binary_cross_entropy_with_logits(x, y), x)]
    if case.op.startswith("gather"):
        ids = torch.randint(0, x.shape[1], x.shape, device=args.device)
        return [made(lambda x: x.gather(1, ids), x)]
    if case.op == "softmax":
        return [lambda: x.softmax(1)]
    if case.op == "softmax-CE":
        x.requires_grad_()
        labels = torch.randint(0, s[0], (s[1],), device=args.device)
        return [lambda: torch.autograd.grad(F.cross_entropy(x, labels), x)]
    gamma, beta = tensor(s[0], grad=True), tensor(s[0], grad=True)
    if case.op == "layer norm":
        return [lambda: F.layer_norm(x, (s[0],), gamma.detach(), beta.detach())]
    if case.op == "RMS norm":
        return [lambda: F.rms_norm(x, (s[0],), gamma.detach(), 1e-6)]
    x.requires_grad_()
    if case.op == "RMS norm backward":
        return [gradient(F.rms_norm(x, (s[0],), gamma, 1e-6), x, gamma)]
    return [gradient(F.layer_norm(x, (s[0],), gamma, beta), x, gamma, beta)]


def _conv(case: Case, layout: Any) -> Work:
    batch, into, out, side, kernel = case.sizes
    x, w = (t.to(memory_format=layout) for t in (tensor(batch, into, side, side), tensor(out, into, kernel, kernel)))
    if case.op == "conv":
        return lambda: F.conv2d(x, w, padding=kernel // 2)
    if case.op.startswith("conv transposed"):
        turned = tensor(into, out, kernel, kernel).to(memory_format=layout)
        by = {"padding": kernel // 2}
        if case.op.endswith(" step"):
            return step(lambda x, w: F.conv_transpose2d(x, w, **by), x, turned)
        return lambda: F.conv_transpose2d(x, turned, **by)
    x.requires_grad_(), w.requires_grad_()
    return gradient(F.conv2d(x, w, padding=kernel // 2), x if case.op == "conv dgrad" else w)


def on_card(work: Work) -> list[float]:
    """Seconds per call on a CUDA device, by its own events, in blocks that are submitted ahead."""
    def block(count: int) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / count

    block(3)
    count = min(max(round(args.seconds / 7 / max(block(1), 1e-7)), 1), 1000)
    return [block(count) for _ in range(7)]


for case in SIZES[args.sizes]:
    torch.set_float32_matmul_precision(case.precision)
    timed = [on_card(w) if args.device.startswith("cuda") else repeated(w, args.seconds) for w in works(case)]
    emit(case=case.name, us=1e6 * min(statistics.median(t) for t in timed))
