"""Golden entries of training on several devices: `dp_train`, ZeRO, and models divided over devices.

On the CPU replicas have devices of their own; those of a Vulkan device share it.  entries.py collects them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from golden.hashing import Found, bits, computed, hash_of

import ag

STEPS = 4
BATCH = 8  # samples of a step, of 13: some come twice, and the last share begins anew


def places(device: str, n: int) -> list[str]:
    """Devices for n replicas."""
    return [f"cpu:{i}" if device == "cpu" else device for i in range(n)]


# ---------------------------------------------------------------------------------------------- dp_train


def samples() -> list[tuple[np.ndarray, np.ndarray]]:
    """13 samples of 2 or 3 columns; 13 divides by no number of replicas."""
    rng = np.random.default_rng(41)
    return [((1 + rng.standard_normal((4, 2 + i % 2))).astype(np.float32), rng.integers(0, 3, 2 + i % 2))
            for i in range(13)]


def normed() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(4, 6, activation="tanh"), ag.ag_batch_norm(6), ag.ag_dropout(0.25),
                            ag.ag_linear(6, 3))


def dp_trained(devices: list[str], **options: Any) -> Found:
    """A job of `dp_train`: losses, weights with running statistics, state of the optimizer."""
    settings = {"n_iter": STEPS, "seed": 6, "verbose": False, "max_norm": 0.5, "shuffle": False}
    if "micro_batch" not in options:
        settings["micro_batch"] = BATCH // len(devices)
    result = ag.dp_train(normed, samples(), ag.ag_softmax_cross_entropy_loss, lambda model, s: model(s[0]),
                         lambda s: s[1], devices=devices, **settings, **options)
    return {"losses": bits(result.loss_history), "model": hash_of(result.model.state_dict()),
            "optimizer": hash_of(computed(result.optimizer_state))}


def momentum(params: dict[str, ag.Tensor]) -> Any:
    return ag.optimizer_sgd(params, lr=0.1, momentum=0.9)


def stepped(optimizer: Any) -> Any:
    return ag.lr_scheduler_step(optimizer, 2, 0.5)


def dp_entries() -> dict[str, Callable[[str], Found]]:
    """Jobs with 1, 2 and 4 replicas."""
    found: dict[str, Callable[[str], Found]] = {}
    for n in (1, 2, 4):
        for capture in ("auto", False):
            mode = "captured" if capture else "eager"
            found[f"dp_train {n} adam {mode}"] = lambda device, n=n, capture=capture: dp_trained(
                places(device, n), lr=0.01, capture=capture)
            found[f"dp_train {n} momentum accumulating {mode}"] = lambda device, n=n, capture=capture: dp_trained(
                places(device, n), optimizer=momentum, scheduler=stepped, capture=capture,
                micro_batch=BATCH // n // 2, accumulate=2)
        found[f"dp_train {n} last share smaller"] = lambda device, n=n: dp_trained(
            places(device, n), lr=0.01, micro_batch=-(-13 // n))  # 13 samples, for up to 16 places
    found["dp_train 2 synchronous batch norm"] = lambda device: dp_trained(
        places(device, 2), lr=0.01, sync_batch_norm=True)
    found["dp_train 3 of unequal shares"] = lambda device: dp_trained(
        places(device, 3), lr=0.01, micro_batch=3, balance=[3, 1, 2])
    return found


# ---------------------------------------------------------------------------------------------- other ways


def network() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(5, 9, activation="tanh"), ag.ag_batch_norm(9),
                            ag.ag_residual(ag.ag_sequential(ag.ag_linear(9, 9), ag.ag_dropout(0.2))),
                            ag.ag_linear(9, 3))


def looped(model: Any, optimizer: Any, clip: Callable[[float], Any]) -> Found:
    """Train a model that lies on several devices, with batches of unequal size."""
    rng = np.random.default_rng(23)
    x, labels = rng.standard_normal((5, 11)).astype(np.float32), rng.integers(0, 3, 11)
    losses = []
    for k in range(STEPS):
        n = 11 - k % 3
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(x[:, :n])), labels[:n])
        ag.backward(loss)
        clip(0.3)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": bits(losses), "model": hash_of(model.state_dict()),
            "optimizer": hash_of(computed(optimizer.state_dict()))}


def zero(device: str, stage: int, count: int) -> Found:
    """ZeRO with Adam and clipping."""
    ag.ag_seed(4)
    optimizer = ag.ZeroOptimizer(network(), ag.optimizer_adam, places(device, count), stage, lr=0.02)
    return looped(optimizer.model, optimizer, optimizer.clip_grad_norm)


def wrapped(wrap: Callable[..., Any]) -> Found:
    """A model that `wrap` puts on devices, with SGD and momentum."""
    ag.ag_seed(4)
    model = wrap()
    optimizer = ag.optimizer_sgd(model, lr=0.1, momentum=0.9)
    return looped(model, optimizer, lambda max_norm: ag.clip_grad_norm(model, None, max_norm))


def tensor_parallel(device: str) -> Found:
    pair = places(device, 2)
    return wrapped(lambda: ag.ag_sequential(
        ag.ColumnParallelLinear(5, 8, pair, activation="relu", gather_output=False), ag.RowParallelLinear(8, 3, pair)))


def pipeline(device: str) -> Found:
    """Steps of a pipeline with two stages; they have no dropout, whose masks depend on the schedule."""
    ag.ag_seed(4)
    stages = [ag.ag_sequential(ag.ag_linear(5, 9, activation="tanh"), ag.ag_layer_norm(9)), ag.ag_linear(9, 3)]
    pipe = ag.Pipeline(stages, places(device, 2), micro_batches=3)
    optimizer = ag.optimizer_adam(pipe, lr=0.02)
    rng = np.random.default_rng(23)
    x, y = rng.standard_normal((5, 12)).astype(np.float32), rng.standard_normal((3, 12)).astype(np.float32)
    losses = []
    for _ in range(STEPS):
        losses.append(pipe.step(ag.ag_tensor(x), ag.ag_tensor(y), ag.ag_mse_loss).item())
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": bits(losses), "model": hash_of(pipe.state_dict()),
            "optimizer": hash_of(computed(optimizer.state_dict()))}


def entries() -> dict[str, Callable[[str], Found]]:
    """Entries by name; each is called with the name of a device, which is the default device."""
    found = dp_entries()
    for stage in (1, 2, 3):
        for count in (1, 3):
            found[f"zero stage {stage} on {count}"] = lambda device, stage=stage, count=count: (
                zero(device, stage, count))
    found["data parallel"] = lambda device: wrapped(lambda: ag.DataParallel(network(), places(device, 2)))
    found["compressed data parallel"] = lambda device: wrapped(
        lambda: ag.CompressedDataParallel(network(), places(device, 2), compression_ratio=0.25, warmup_steps=1))
    found["model parallel"] = lambda device: wrapped(
        lambda: ag.ModelParallel([ag.ag_linear(5, 9, activation="tanh"), ag.ag_batch_norm(9), ag.ag_linear(9, 3)],
                                 [places(device, 2)[i] for i in (0, 1, 1)]))
    found["tensor parallel"] = tensor_parallel
    found["pipeline"] = pipeline
    return found
