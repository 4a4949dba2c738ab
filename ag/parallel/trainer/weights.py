"""Weights of samples: a sample carries its weight to the loss, which is the weighted mean of those passed at once.

A stack counts the sum of its weights, so the loss of a step is ``sum(w * loss) / sum(w)``, whatever the stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import NamedTuple
from zlib import crc32

import numpy as np

from ag.autograd.operands import host_values
from ag.autograd.tree import Tree
from ag.engine.primitive import Array
from ag.errors import DtypeError, ShapeError

_FAR = 32  # powers of 2


class Weighted(NamedTuple):
    """A sample, or several on the last axis, and what each counts."""

    sample: Tree
    weights: Array

    def total(self) -> float:
        """Return what all count together."""
        return float(self.weights.sum())


def refuse_unweighted(function: str, loss: object) -> None:
    """Refuse a loss that takes no weights."""
    try:
        takes = callable(loss) and "sample_weight" in signature(loss).parameters
    except ValueError:  # it does not tell
        takes = False
    if not takes:
        raise TypeError(f"{function}: samples have weights, and the loss {getattr(loss, '__name__', loss)!s:.60} takes "
                        f"none; write def loss(output, target, sample_weight), the weighted mean, or use "
                        f"'cross_entropy', 'mse' or 'bce_with_logits'.")


def sample_weights(function: str, count: int, sample_weight: object, class_weight: object,
                   targets: Callable[[], object]) -> Array | None:
    """Return what each of `count` samples counts, by itself times by its class; None if nobody has said."""
    if sample_weight is None and class_weight is None:
        return None
    weights = np.ones(count) if sample_weight is None else host_values(sample_weight, function)
    if weights.dtype.kind not in "biuf":
        raise DtypeError(f"{function}: sample_weight is of type {weights.dtype}; numbers are required.")
    if weights.shape != (count,):
        raise ShapeError(f"{function}: sample_weight is {weights.shape}; ({count},), a number per sample, is required.")
    parts = np.ones((2, count))  # what the samples count themselves, and for their classes
    parts[0] = weights
    if class_weight is not None:
        parts[1] = _of_classes(function, class_weight, targets(), parts[0])
    counted: Array = _in_range(parts[0]) * _in_range(parts[1])
    if not ((parts >= 0) & (parts < np.inf)).all() or not counted.any():
        raise ValueError(f"{function}: the weights of samples or classes go from {parts.min()} to {parts.max()}; "
                         f"finite numbers of at least 0 are required, that are not all zero.")
    return counted


def checksum(weights: Array | None) -> str:
    """Return what tells other weights from these."""
    return "None" if weights is None else f"an array of checksum {crc32(weights.tobytes()):08x}"


def _in_range(weights: Array) -> Array:
    """Return weights that float32 can add up, in the same ratios to the bit: those that are far from 1 are scaled."""
    power = int(np.frexp(weights.max())[1])
    return np.ldexp(weights, -power) if abs(power) > _FAR else weights


def _of_classes(function: str, given: object, targets: object, weights: Array) -> Array:
    """Return what each sample counts for its class; "balanced": all classes count the same together."""
    if not isinstance(targets, np.ndarray):
        raise TypeError(f"{function}: class_weight is given, and the class of each sample is not in memory; give "
                        f"sample_weight instead, an array with a number for each sample.")
    if targets.size != len(weights) or (targets.dtype.kind == "f" and (targets % 1).any()):
        raise ValueError(f"{function}: class_weight is given, and the targets are no class ids; give ids, or "
                         f"sample_weight.")
    classes, numbers = np.unique(targets.ravel(), return_inverse=True)
    if isinstance(given, str) and given == "balanced":
        counts = np.bincount(numbers, weights)
        each = weights.sum() / max(1, np.count_nonzero(counts))
        return np.asarray(each / np.where(counts > 0, counts, np.inf))[numbers]
    if not isinstance(given, Mapping):
        raise TypeError(f"{function}: class_weight is {given!r:.60}; use 'balanced', or a dict of class to weight.")
    odd = [key for key in given if key not in classes.tolist()]
    if odd and len(given) - len(odd) < len(classes):  # otherwise some samples lack a class, such as a fold
        raise ValueError(f"{function}: class_weight has the class {odd[0]!r}, and the targets have "
                         f"{', '.join(map(repr, classes.tolist()[:10]))} only; name these, or each of them besides it.")
    return np.array([given.get(label, 1.0) for label in classes.tolist()], np.float64)[numbers]
