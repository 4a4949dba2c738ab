"""What primitives compute: one numpy function per name here, and one kernel in shaders/.

A kernel is a file ``<name>.comp``, or, if its primitive is `fusable`, the function ``<name>_of`` in functions.glsl.
What is here knows neither tensors nor gradients nor devices; `ag.ops`, the optimizers and the compiler launch it.
Importing the package declares all primitives: `ag.engine.primitive.PRIMITIVES` is the list of what a backend must run.
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
