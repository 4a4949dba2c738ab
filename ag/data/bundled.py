"""Small data sets that come with the package; ``sets/README.md`` names their sources and licences."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ag.engine.primitive import Array

__all__ = ["load_digits", "load_iris", "load_shakespeare", "load_sonnets"]


class DataSet(NamedTuple("DataSet", [("X", Array), ("y", Array)])):
    """A pair ``X, y`` with samples on the first axis, and the names of the columns of X and of the classes."""

    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]


def load_iris() -> DataSet:
    """Return Fisher's iris data: ``X`` of shape (150, 4), in centimetres, and ``y``, the kinds of the flowers.

    Reference: scikit-learn ``load_iris``.

    Examples
    --------
    >>> ag.data.load_iris().X.shape, ag.data.load_iris().target_names
    ((150, 4), ('setosa', 'versicolor', 'virginica'))
    """
    header, *rows = [line.split(",") for line in _text("iris.csv").split()]
    kinds, ids = np.unique([row[-1] for row in rows], return_inverse=True)
    return _data_set(np.array([row[:-1] for row in rows], float), ids, header[:-1], kinds.tolist())


def load_digits() -> DataSet:
    """Return handwritten digits: ``X`` of shape (1797, 64), images of 8 x 8 pixels from 0 to 16, and ``y``.

    Reference: scikit-learn ``load_digits``.

    Examples
    --------
    >>> X, y = ag.data.load_digits()
    >>> X.reshape(-1, 1, 8, 8).shape  # (samples, channels, height, width), as `fit` takes images
    (1797, 1, 8, 8)
    """
    table = np.loadtxt(_text("digits.csv.gz").splitlines(), delimiter=",")
    return _data_set(table[:, :-1], table[:, -1], [f"pixel_{k // 8}_{k % 8}" for k in range(64)], "0123456789")


def load_sonnets() -> str:
    """Return five sonnets by Shakespeare, 3086 characters.

    Examples
    --------
    >>> ag.data.load_sonnets()[:39]
    "Shall I compare thee to a summer's day?"
    """
    return _text("sonnets.txt")


def load_shakespeare() -> str:
    """Return Shakespeare's play "As You Like It".

    Examples
    --------
    >>> len(ag.data.load_shakespeare())
    125179
    """
    return _text("as_you_like_it.txt.gz")


def _text(name: str) -> str:
    found = Path(__file__).with_name("sets").joinpath(name).read_bytes()
    return (gzip.decompress(found) if name.endswith(".gz") else found).decode("ascii")


def _data_set(X: Array, y: Array, feature_names: Iterable[str], target_names: Iterable[str]) -> DataSet:
    made = DataSet(X.astype(np.float32), y.astype(np.int64))
    made.feature_names, made.target_names = tuple(feature_names), tuple(target_names)
    return made
