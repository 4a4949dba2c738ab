"""The losses that are compared with PyTorch, their options and operands: the batch is last.

Capitals are operands with a gradient; ``None`` among the options of a row stands for what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
CLASSES, BATCH = 5, 7
SHAPE = (CLASSES, BATCH)
REDUCTIONS = [{"reduction": name} for name in ("mean", "sum", "none")]


def ids(rng: Rng, *shape: int) -> Array:
    return rng.integers(0, CLASSES, shape)


def ignored(rng: Rng, *shape: int) -> Array:
    return np.where(rng.random(shape) < 0.3, -100, ids(rng, *shape))


def soft(rng: Rng, *shape: int) -> Array:
    x = rng.random(shape)
    return np.asarray(x / x.sum(0))


def signs(rng: Rng, *shape: int) -> Array:
    return rng.choice([-1.0, 1.0], shape)


def positive(rng: Rng, *shape: int) -> Array:
    return rng.uniform(0.2, 2, shape)


def chance(rng: Rng, *shape: int) -> Array:
    return rng.uniform(0.02, 0.98, shape)


def normal(rng: Rng, *shape: int) -> Array:
    return rng.standard_normal(shape) * 2


def counts(rng: Rng, *shape: int) -> Array:
    return rng.poisson(2, shape).astype(float)


Draw = Callable[..., Array]
Operands = list[tuple[Draw, tuple[int, ...], bool]]  # how, in which shape, and whether it gets a gradient


def of(draw: Draw, *shape: int, gradient: bool = False) -> tuple[Draw, tuple[int, ...], bool]:
    return draw, shape or SHAPE, gradient


X, P, T = of(normal, gradient=True), of(chance, gradient=True), of(normal, gradient=True)
BATCHED = of(ids, BATCH)
WEIGHT = {"weight": of(positive, CLASSES)}
OF_ALL = {"weight": of(positive)}
NONE: dict[str, Any] = {}

# loss: operands, and its options beside the reductions
ROWS: list[tuple[str, Operands, list[dict[str, Any]]]] = [
    ("cross_entropy", [X, BATCHED], [NONE, WEIGHT, {"label_smoothing": 0.2}, {**WEIGHT, "label_smoothing": 0.2},
                                     {"ignore_index": 2}, {"ignore_index": 2, **WEIGHT, "label_smoothing": 0.1}]),
    ("cross_entropy", [X, of(ignored, BATCH)], [NONE, {**WEIGHT, "label_smoothing": 0.2}]),
    ("cross_entropy", [of(normal, CLASSES, 2, 3, 4, gradient=True), of(ignored, 2, 3, 4)], [NONE, WEIGHT]),
    ("cross_entropy", [X, of(soft, gradient=True)], [NONE, WEIGHT, {**WEIGHT, "label_smoothing": 0.2}]),
    ("nll_loss", [X, BATCHED], [NONE, WEIGHT, {"ignore_index": 2}]),
    ("nll_loss", [of(normal, CLASSES, 3, 4, gradient=True), of(ignored, 3, 4)], [NONE, WEIGHT]),
    ("multi_margin_loss", [X, BATCHED], [NONE, {"p": 2}, {"margin": 0.5, **WEIGHT}, {"p": 2, "margin": 2.0, **WEIGHT}]),
    ("binary_cross_entropy", [P, of(chance, gradient=True)], [NONE, OF_ALL]),
    ("binary_cross_entropy_with_logits", [X, of(chance, gradient=True)], [
        NONE, OF_ALL, {"pos_weight": of(positive, CLASSES)}, {**OF_ALL, "pos_weight": of(positive, CLASSES)}]),
    ("sigmoid_focal_loss", [X, of(chance, gradient=True)], [NONE, {"alpha": -1.0}, {"alpha": 0.6, "gamma": 1.5}]),
    ("dice_loss", [of(chance, 2, 3, 4, 5, gradient=True), of(chance, 2, 3, 4, 5)], [NONE, {"smooth": 0.0}]),
    ("kl_div", [X, of(chance, gradient=True)], [NONE]),
    ("kl_div", [X, T], [{"log_target": True}]),
    ("l1_loss", [X, T], [NONE, OF_ALL]),
    ("mse_loss", [X, T], [NONE]),
    ("huber_loss", [X, T], [NONE, {"delta": 0.3}, {**OF_ALL, "delta": 2.0}]),
    ("smooth_l1_loss", [X, T], [NONE, {"beta": 0.3}, {"beta": 0.0}]),
    ("gaussian_nll_loss", [X, T, of(positive, gradient=True)], [NONE, {"full": True, "eps": 0.7}]),
    ("gaussian_nll_loss", [X, T, of(positive, 1, BATCH, gradient=True)], [NONE]),
    ("poisson_nll_loss", [X, of(counts)], [NONE, {"full": True}]),
    ("poisson_nll_loss", [of(positive, gradient=True), of(counts)], [{"log_input": False, "full": True, "eps": 0.01}]),
    ("margin_ranking_loss", [X, T, of(signs)], [NONE, {"margin": 0.5}]),
    ("hinge_embedding_loss", [X, of(signs)], [NONE, {"margin": 0.5}]),
    ("soft_margin_loss", [X, of(signs)], [NONE]),
    ("cosine_embedding_loss", [X, T, of(signs, BATCH)], [NONE, {"margin": 0.2}]),
    ("triplet_margin_loss", [X, T, of(normal, gradient=True)], [
        NONE, {"p": 1.0}, {"margin": 2.0, "swap": True}, {"p": 3.0, "eps": 0.1}]),
]


class Case(NamedTuple):
    name: str
    operands: Operands
    options: dict[str, Any]

    def __str__(self) -> str:
        given = [f"{k}={v}" if not isinstance(v, tuple) else k for k, v in self.options.items()]
        shapes = ["x".join(map(str, shape)) + how.__name__ for how, shape, _ in self.operands]
        return f"{self.name}-{'-'.join([*shapes, *given])}"

    def drawn(self, seed: int) -> tuple[list[Array], dict[str, Any]]:
        """Operands and options."""
        rng = np.random.default_rng(seed)
        made = [how(rng, *shape) for how, shape, _ in self.operands]
        return made, {k: v[0](rng, *v[1]) if isinstance(v, tuple) else v for k, v in self.options.items()}

    @property
    def gradients(self) -> list[int]:
        return [i for i, (_, _, gradient) in enumerate(self.operands) if gradient]


def cases() -> Iterator[Case]:
    for name, operands, several in ROWS:
        more = [{"reduction": "batchmean"}] if name == "kl_div" else []
        for options, reduction in product(several, REDUCTIONS + more):
            yield Case(name, operands, {**options, **reduction})


def told(losses: Array, gradients: list[Array]) -> list[float]:
    """A number for the losses and one for each gradient, to which every element contributes differently."""
    return [float((np.asarray(x, np.float64) * np.cos(1 + np.arange(x.size)).reshape(x.shape)).sum())
            for x in (losses, *gradients)]


def factors(shape: tuple[int, ...]) -> Array:
    """Factors of the losses in the backward pass, where nothing reduces them."""
    return np.sin(1 + np.arange(int(np.prod(shape)))).reshape(shape)
