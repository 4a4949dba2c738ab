"""The functions of random programs on tensors of PyTorch; names, arguments and layouts are ag's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (PyTorch's own name for it)
from machine.programs import Array, Program, compute

Tensor = Any
OPTIMIZERS: dict[str, Callable[[list[Tensor]], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05),
}


class Functions:
    """ag's functions, of PyTorch's."""

    ag_relu, ag_tanh, ag_sigmoid, ag_gelu, ag_silu = torch.relu, torch.tanh, torch.sigmoid, F.gelu, F.silu
    ag_exp, ag_abs, ag_log, ag_sqrt, ag_clamp = torch.exp, torch.abs, torch.log, torch.sqrt, torch.clamp
    ag_leaky_relu, ag_softmax, ag_log_softmax = F.leaky_relu, torch.softmax, torch.log_softmax
    ag_sum, ag_mean, ag_max, ag_concat = torch.sum, torch.mean, torch.amax, torch.cat

    @staticmethod
    def ag_scale(x: Tensor, factor: float) -> Tensor:
        return x * factor

    @staticmethod
    def ag_reshape(x: Tensor, *shape: int) -> Tensor:
        return x.reshape(shape)

    @staticmethod
    def ag_transpose(x: Tensor) -> Tensor:
        return x.permute(*reversed(range(x.ndim)))

    @staticmethod
    def ag_checkpoint(fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return fn(x)

    @staticmethod
    def ag_layer_norm_op(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x.T, (len(x),), eps=eps).T * gamma + beta

    @staticmethod
    def ag_rms_norm_op(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x.T, (len(x),), eps=eps).T * gamma

    @staticmethod
    def ag_batch_norm_op(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
        variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
        return (x - mean) / torch.sqrt(variance + eps) * gamma + beta

    @staticmethod
    def ag_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return F.scaled_dot_product_attention(q.T[None], k.T[None], v.T[None], is_causal=causal)[0].T

    @staticmethod
    def ag_conv2d(x: Tensor, weight: Tensor, padding: int) -> Tensor:
        return F.conv2d(x.permute(3, 0, 1, 2), weight, padding=padding).permute(1, 2, 3, 0)


def train_once(program: Program) -> list[Array]:
    """The loss, the gradients and the parameters, as `run` gives them for one step; the gradients in float32."""
    rng = np.random.default_rng(program.seed)
    params = [torch.tensor(rng.uniform(-1, 1, s).astype(np.float32), requires_grad=True) for s in program.shapes[1:]]
    optimizer = OPTIMIZERS[program.optimizer](params)
    x = torch.tensor(rng.uniform(-1, 1, program.shapes[0]).astype(np.float32))
    loss = compute(program, params, x, Functions)
    loss.backward()
    grads = [p.grad.clone() for p in params if p.grad is not None]
    optimizer.step()
    return [x.detach().numpy() for x in (loss, *grads, *params)]
