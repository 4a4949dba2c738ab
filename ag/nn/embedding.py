"""Embedding: a layer that looks up a vector for each class id."""

from __future__ import annotations

from math import sqrt
from types import MappingProxyType

from ag.autograd.create import ag_param
from ag.autograd.tensor import ArrayLike, Tensor
from ag.engine.random import host_uniform
from ag.engine.shape import counts
from ag.nn.layer import Layer, Settings
from ag.ops.embedding import ag_embedding_lookup

__all__ = ["Embedding", "ag_embedding"]


class Embedding(Layer):
    """A vector for each word of a vocabulary.

    Reference: ggmlR ``ag_embedding`` (which drops the id -1 without a word).

    Parameters
    ----------
    vocab_size : int
        Number of words, at least 1; their ids are 0..vocab_size-1.
    dim : int
        Length of a vector, at least 1.

    Attributes
    ----------
    weight : Tensor of shape (dim, vocab_size)
        The vectors as columns, initially uniform with variance 1.

    Examples
    --------
    >>> ag.ag_embedding(10, 4)([[1, 2, 3], [4, 5, 6]]).shape
    (4, 2, 3)
    """

    settings = ("vocab_size", "dim")
    _elsewhere = MappingProxyType({"W": "weight"})

    def __init__(self, vocab_size: int, dim: int) -> None:
        if not counts(vocab_size, dim):
            raise ValueError(f"ag_embedding: vocab_size is {vocab_size!r} and dim is {dim!r}; both must be whole "
                             f"numbers of at least 1.")
        self.vocab_size = int(vocab_size)
        self.dim = int(dim)
        self.weight = ag_param(host_uniform((self.dim, self.vocab_size), -sqrt(3), sqrt(3)))

    @classmethod
    def largest_tensor(cls, args: Settings) -> tuple[int, ...]:
        """The shape of `weight`."""
        return args["dim"], args["vocab_size"]

    def forward(self, x: ArrayLike) -> Tensor:
        """Vectors of shape (dim, *S) for ids of any shape S."""
        return ag_embedding_lookup(self.weight, x)


ag_embedding = Embedding
