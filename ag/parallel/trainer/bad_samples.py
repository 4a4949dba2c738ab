"""Values in samples that are not finite, and where they are: what to say when a loss is not finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ag.autograd.tree import Tree, tree_leaves
from ag.engine.primitive import Array
from ag.parallel.trainer.samples import LoaderSample
from ag.parallel.trainer.weights import Weighted


def bad_values(samples: Iterable[tuple[Tree, Sequence[int]]], columns: Sequence[object] = ()) -> str | None:
    """Say which samples have NaN or infinities in them; None if none has.

    Each item has one or more samples, on the last axis, and their numbers; `columns` are the names of features.
    """
    counts, found = 0, dict[str, list[str]]()
    for sample, numbers in samples:
        counts += len(numbers)
        for name, array in _parts(sample) if numbers else ():  # a leaf may have no samples of its own
            for j in np.flatnonzero(~np.isfinite(rows := _rows(array, len(numbers))).all(0)).tolist():
                place = int(np.argmin(np.isfinite(rows[:, j])))
                is_table = name == "X" and array.ndim == 2
                label = f" ({columns[place]!r})" if is_table and place < len(columns) else ""
                where = f", column {place}{label}" if is_table else ""
                what = "NaN" if np.isnan(rows[place, j]) else "infinities"
                found.setdefault(f"{name} has {what}", []).append(f"sample {numbers[j]} of the data given{where}")
    return next((f"{what} in {len(places)} of the step's {counts} samples, such as {places[0]}"
                 for what, places in found.items()), None)


def _parts(sample: Tree) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of floats in a sample, by name."""
    sample = sample.sample if isinstance(sample, Weighted) else sample
    for name, part in zip(("X", "y"), sample, strict=False) if isinstance(sample, LoaderSample) else [("data", sample)]:
        inner = [(f"{name}[{key!r}]", x) for key, x in part.items()] if isinstance(part, dict) else [(name, part)]
        yield from ((own, x) for own, tree in inner for x in tree_leaves(tree)
                    if isinstance(x, np.ndarray) and x.dtype.kind == "f")


def _rows(array: Array, samples: int) -> Array:
    """Return the values of each sample as a column, in float32, in which they are used."""
    with np.errstate(all="ignore"):
        return array.astype(np.float32).reshape(-1, samples)
