"""What primitives compute: per name one numpy function here, one shader in `shaders`, and maybe one kernel in C.

A shader is a file ``shaders/<name>.comp``, or, if its primitive is `fusable`, the function ``<name>_of`` in
``shaders/functions.glsl``; for a few there are several, of which the backend chooses.  ``kernels_build.py`` compiles
them.  A kernel in C (``ag/engine/backends/cpu/kernels``) makes the CPU quicker; where there is none it runs the numpy
function.  To add a primitive: write numpy and GLSL, and a row of the case table in ``tests/table``
(docs/adding_an_op.md); of a `fusable` one the GLSL function becomes C by itself.  A kernel in C that is written by hand
has its random launches in ``tests/engine/backends/cpu/random_launches.py``.
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
