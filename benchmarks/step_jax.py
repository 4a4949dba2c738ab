"""The same step in JAX: `jax.jit` over loss, gradients and update of a whole step, whose state is donated.

Weights, batches and updates are those of step_torch.py, by plain `jax`, without libraries above it.  Images and filters
have their channels last, and the GPT's positions lie side by side in one matrix, as XLA is quickest with.  Must not
know `ag` or PyTorch: it runs in an environment of its own, with `jax` and `numpy`.  bench_step.py calls it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from math import log
from typing import Any

import steps

args = steps.arguments("jit")

threads = int(os.environ["OMP_NUM_THREADS"])  # the limit that all peers have
os.environ["NPROC"] = str(threads)  # from which XLA has the size of its pools of threads; no flag of XLA's says it
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])

import jax  # noqa: E402 - after the thread pools are limited
import jax.numpy as jnp  # noqa: E402
from curves.workloads import ADAMW, CONVS, HEADS, LAYERS, SGD, D  # noqa: E402

jax.config.update("jax_platforms", args.device.partition(":")[0])
jax.config.update("jax_default_matmul_precision", "highest")  # float32 is float32 in all libraries
w = steps.WORKLOADS[args.workload]
BETAS, EPS, NORM_EPS = (0.9, 0.999), 1e-8, 1e-5
STRIDES = {name: stride for name, _into, _out, _kernel, stride in CONVS}
Params = dict[str, jax.Array]
State = tuple[Any, ...]  # parameters, and what the optimizer keeps

# ---------------------------------------------------------------------------------------------- the losses


def cross_entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over all rows."""
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], -1).mean()


def mlp_loss(p: Params, x: jax.Array, labels: jax.Array) -> jax.Array:
    """The perceptron."""
    for i in range(1, len(w.sizes)):
        x = x @ p[f"W{i}"].T + p[f"b{i}"]
        x = jax.nn.relu(x) if i + 1 < len(w.sizes) else x
    return cross_entropy(x, labels)


def normalized(x: jax.Array, axes: int | tuple[int, ...], scale: jax.Array, shift: jax.Array) -> jax.Array:
    """Batch norm by the batch's own statistics, as PyTorch's model has it, or layer norm."""
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + NORM_EPS) * scale + shift


def resnet_loss(p: Params, x: jax.Array, labels: jax.Array) -> jax.Array:
    """A ResNet-8 in train mode."""

    def conv_norm(name: str, x: jax.Array) -> jax.Array:
        filters, stride = p[f"{name}_w"], STRIDES[name]
        pad = filters.shape[0] // 2
        x = jax.lax.conv_general_dilated(x, filters, (stride, stride), ((pad, pad), (pad, pad)),
                                         dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return normalized(x, (0, 1, 2), p[f"{name}_g"], p[f"{name}_b"])

    x = jax.nn.relu(conv_norm("stem", x))
    for stage in ("s0", "s1", "s2"):
        body = conv_norm(f"{stage}_c2", jax.nn.relu(conv_norm(f"{stage}_c1", x)))
        x = jax.nn.relu(body + (conv_norm(f"{stage}_sc", x) if f"{stage}_sc" in STRIDES else x))
    return cross_entropy(x.mean((1, 2)) @ p["fc_w"].T + p["fc_b"], labels)


def gpt_loss(p: Params, x: jax.Array, labels: jax.Array) -> jax.Array:
    """A GPT with norms before the sublayers."""
    n, t = x.shape

    def norm(name: str, h: jax.Array) -> jax.Array:
        return normalized(h, -1, p[f"{name}_g"], p[f"{name}_b"])

    def linear(name: str, h: jax.Array) -> jax.Array:
        return h @ p[f"{name}_w"].T + p[f"{name}_b"]

    h = (p["tok"][x] + p["pos"]).reshape(n * t, D)
    for i in range(LAYERS):
        qkv = linear(f"l{i}_qkv", norm(f"l{i}_ln1", h)).reshape(n, t, 3, HEADS, D // HEADS)
        o = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
        h = h + linear(f"l{i}_proj", o.reshape(n * t, D))
        z = jax.nn.gelu(linear(f"l{i}_fc", norm(f"l{i}_ln2", h)), approximate=True)
        h = h + linear(f"l{i}_out", z)
    return cross_entropy(norm("lnf", h) @ p["head_w"].T, labels.reshape(-1))


# ---------------------------------------------------------------------------------------------- the optimizers


def sgd(state: State, grads: Params) -> State:
    """SGD with momentum."""
    params, moments = state
    moments = {name: SGD["momentum"] * m + grads[name] for name, m in moments.items()}
    return {name: p - SGD["lr"] * moments[name] for name, p in params.items()}, moments


def adam(state: State, grads: Params, lr: float, decay: float = 0.0) -> State:
    """PyTorch's Adam or, with a decay, AdamW."""
    params, firsts, seconds, t = state
    t = t + 1
    firsts = {name: BETAS[0] * m + (1 - BETAS[0]) * grads[name] for name, m in firsts.items()}
    seconds = {name: BETAS[1] * v + (1 - BETAS[1]) * grads[name] ** 2 for name, v in seconds.items()}
    rest, root = (-jnp.expm1(t * log(beta)) for beta in BETAS)  # 1 - beta^t, also where float32 has few digits of it

    def updated(name: str, p: jax.Array) -> jax.Array:
        return (1 - lr * decay) * p - lr * (firsts[name] / rest) / (jnp.sqrt(seconds[name] / root) + EPS)

    return {name: updated(name, p) for name, p in params.items()}, firsts, seconds, t


# ---------------------------------------------------------------------------------------------- the step


def on_device(array: Any) -> jax.Array:
    """Images with channels last, and all else as it is."""
    return jnp.asarray(array.transpose(0, 2, 3, 1) if array.ndim == 4 else array)


def workload() -> tuple[Callable[..., jax.Array], Callable[..., State], Params, list[tuple[jax.Array, jax.Array]]]:
    """Loss, update, parameters and batches."""
    if not w.curve:
        samples, labels, weights = steps.data(args.workload)
        loss_of: Callable[..., jax.Array] = mlp_loss
        update: Callable[..., State] = partial(adam, lr=w.lr)
        batches = list(zip(samples, labels, strict=True))
    else:
        weights, batches = steps.curve_data(args)
        loss_of, update = (resnet_loss, sgd) if w.curve == "resnet8" else (
            gpt_loss, partial(adam, lr=ADAMW["lr"], decay=ADAMW["weight_decay"]))
    weights = {name: v.transpose(2, 3, 1, 0) if v.ndim == 4 else v for name, v in weights.items()}  # filters: HWIO
    params = {name: jnp.asarray(v) for name, v in weights.items()}
    return loss_of, update, params, [(on_device(x), on_device(y.astype("int32"))) for x, y in batches]


def run_steps() -> None:
    loss_of, update, params, batches = workload()

    @partial(jax.jit, donate_argnums=0)
    def whole(state: State, x: jax.Array, labels: jax.Array) -> tuple[State, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(state[0], x, labels)
        return update(state, grads), loss

    def zeros() -> Params:
        return {name: jnp.zeros_like(p) for name, p in params.items()}

    state: State = (params, zeros()) if update is sgd else (params, zeros(), zeros(), jnp.zeros(()))

    def step(i: int) -> jax.Array:
        nonlocal state
        state, loss = whole(state, *batches[i % len(batches)])
        return loss

    steps.measure(args, step, float)


if __name__ == "__main__":
    run_steps()
