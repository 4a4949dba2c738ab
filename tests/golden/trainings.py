"""Golden entries that train a model on one device: the benchmarks' W1 to W4 and smaller ones, eager and captured.

Each entry seeds everything itself, so that its bits depend on nothing that ran before.  Uses the public API only, and
the models of tests/curves.  entries.py collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from curves.models import MODELS, in_order_of_parameters, numbers
from curves.workloads import ADAMW, SGD, SMALL_BATCH
from golden.hashing import Found, bits, computed, costs, hash_of

import ag

STEPS = 4
Batches = list[tuple[np.ndarray, np.ndarray]]


@dataclass
class Training:
    """A model, its optimizer, a step that returns the loss, and batches."""

    model: ag.Layer
    optimizer: Any
    step: Callable[..., ag.Tensor]
    batches: Batches

    def state(self) -> dict[str, np.ndarray]:
        """Return weights, buffers and the optimizer's state."""
        return {**{f"model {name}": x for name, x in self.model.state_dict().items()},
                **{f"optimizer {name}": x for name, x in computed(self.optimizer.state_dict()).items()}}


def stepping(model: ag.Layer, optimizer: Any, batches: Batches, max_norm: float | None = None,
             parts: int = 1) -> Training:
    """A training by softmax and cross entropy, with clipping, and with gradients of several passes added up."""

    def step(x: np.ndarray, labels: np.ndarray) -> ag.Tensor:
        for _ in range(parts):
            with ag.with_grad_tape():
                inputs = x if x.dtype.kind == "i" else ag.ag_tensor(x)
                loss = ag.ag_softmax_cross_entropy_loss(model(inputs), labels)
            ag.backward(loss)
        if max_norm is not None:
            ag.clip_grad_norm(model, None, max_norm)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Training(model, optimizer, step, batches)


# ---------------------------------------------------------------------------------------------- models


def vectors(features: int, classes: int, batch: int, largest: float = 1.0) -> Batches:
    """Random vectors with labels, of which the third batch is `largest` times as large."""
    rng = np.random.default_rng(12)
    batches = [(rng.standard_normal((features, batch)).astype(np.float32), rng.integers(0, classes, batch))
               for _ in range(STEPS)]
    batches[2][0][...] *= np.float32(largest)
    return batches


def mlp(sizes: tuple[int, ...], batch: int) -> Training:
    """A multi-layer perceptron with Adam, as in the benchmarks W1 and W2."""
    hidden = [ag.ag_linear(a, b, activation="relu") for a, b in pairwise(sizes[:-1])]
    model = ag.ag_sequential(*hidden, ag.ag_linear(*sizes[-2:]))
    return stepping(model, ag.optimizer_adam(model), vectors(sizes[0], sizes[-1], batch))


def curve(name: str) -> Training:
    """W3 and W4: the GPT with AdamW, whose steps take long, and the ResNet-8 with SGD and momentum."""
    weights, batches = numbers(name, SMALL_BATCH[name])
    model = MODELS[name]()
    for p, w in zip(model.parameters().values(), in_order_of_parameters(weights), strict=True):
        p.data = w.reshape(p.shape)
    optimizer = ag.optimizer_sgd(model, **SGD) if name == "resnet8" else ag.optimizer_adamw(model, **ADAMW)
    return stepping(model, optimizer, batches[: STEPS if name == "resnet8" else STEPS - 1])


def small(make: Callable[..., Any] = ag.optimizer_adam, max_norm: float | None = None, largest: float = 1.0,
          parts: int = 1, **settings: Any) -> Training:
    """A network with norms, dropout and activations of several kinds."""
    model = ag.ag_sequential(
        ag.ag_linear(9, 24, activation="gelu"), ag.ag_layer_norm(24), ag.ag_dropout(0.2),
        ag.ag_residual(ag.ag_sequential(ag.ag_linear(24, 24, activation="silu"), ag.ag_batch_norm(24))),
        ag.ag_linear(24, 17, activation="leaky_relu"), ag.ag_linear(17, 5))
    return stepping(model, make(model, **settings), vectors(9, 5, 13, largest), max_norm, parts)


@contextmanager
def element_type(name: str) -> Iterator[None]:
    """A default element type for a while."""
    previous = ag.ag_dtype(name)
    try:
        yield
    finally:
        ag.ag_dtype(previous)


# ---------------------------------------------------------------------------------------------- running them


def trained(make: Callable[[], Training], capture: bool, dtype: str = "f32", recompute: bool = False,
            scheduled: bool = False) -> Found:
    """Train a few steps; losses and the hash of the state in the end."""
    ag.ag_seed(7)
    with element_type(dtype):
        training = make()
        schedule = ag.lr_scheduler_cosine(training.optimizer, T_max=STEPS, lr_min=1e-4) if scheduled else None
        run = ag.ag_capture(training.step, recompute=recompute) if capture else training.step
        losses = []
        for x, labels in training.batches:
            losses.append(run(x, labels).item())
            if schedule is not None:
                schedule.step()
    return {"losses": bits(losses), "state": hash_of(training.state())}


def counted(make: Callable[[], Training], recompute: bool = False) -> Found:
    """Capture a step and count what a replay costs."""
    ag.ag_seed(7)
    training = make()
    captured = ag.ag_capture(training.step, recompute=recompute)
    for _ in range(2):  # the second call is compared with the first
        captured(*training.batches[0])
    return costs(captured, *training.batches[0])


WORKLOADS: dict[str, Callable[[], Training]] = {
    "W1": lambda: mlp((4, 32, 3), 32),
    "W2": lambda: mlp((784, 512, 256, 10), 16),
    "W3": lambda: curve("gpt"),
    "W4": lambda: curve("resnet8"),
}
SMALL: dict[str, tuple[Callable[[], Training], str]] = {
    "adam": (lambda: small(lr=0.01), "f32"),
    "adamw clipped": (lambda: small(ag.optimizer_adamw, max_norm=0.3, lr=0.01), "f32"),
    "sgd momentum": (lambda: small(ag.optimizer_sgd, max_norm=0.3, lr=0.1, momentum=0.9), "f32"),
    "two passes a step": (lambda: small(ag.optimizer_sgd, parts=2, lr=0.1), "f32"),
    "f16 adamw clipped": (lambda: small(ag.optimizer_adamw, max_norm=0.3, lr=0.01), "f16"),
    "f16 with an overflow": (lambda: small(largest=1e7, lr=0.01), "f16"),
    "bf16 adamw clipped": (lambda: small(ag.optimizer_adamw, max_norm=0.3, lr=0.01), "bf16"),
    "bf16 sgd momentum": (lambda: small(ag.optimizer_sgd, lr=0.1, momentum=0.9), "bf16"),
}
MODES = {"eager": False, "captured": True}


def entries() -> dict[str, Callable[[str], Found]]:
    """Entries by name; each is called with the name of a device, which is the default device."""
    found: dict[str, Callable[[str], Found]] = {}
    for mode, capture in MODES.items():
        for name, make in WORKLOADS.items():
            found[f"{name} {mode}"] = lambda _device, make=make, capture=capture: trained(make, capture)
        for name, (make, dtype) in SMALL.items():
            found[f"{name} {mode}"] = lambda _device, make=make, dtype=dtype, capture=capture: (
                trained(make, capture, dtype, scheduled=True))
    for name, make in WORKLOADS.items():
        found[f"{name} costs"] = lambda _device, make=make: counted(make)
    gpt = WORKLOADS["W3"]
    found["W3 recomputed"] = lambda _device: trained(gpt, True, recompute=True)
    found["W3 recomputed costs"] = lambda _device: counted(gpt, recompute=True)
    return found
