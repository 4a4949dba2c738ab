"""What primitives compute: one numpy function and one shader per name.

Importing the package declares them all, so that `ag.engine.primitive.PRIMITIVES` is the list of what a backend must be
able to run.
"""

from ag.engine.kernels import (
    activation,
    attention,
    conv,
    convert,
    elementwise,
    epilogue,
    fused,
    indexing,
    matmul,
    norm,
    optimizer,
    pool,
    random,
    reduce,
    softmax,
)

__all__ = [
    "activation",
    "attention",
    "conv",
    "convert",
    "elementwise",
    "epilogue",
    "fused",
    "indexing",
    "matmul",
    "norm",
    "optimizer",
    "pool",
    "random",
    "reduce",
    "softmax",
]
