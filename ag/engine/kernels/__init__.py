"""Primitives: per name one numpy function here, one shader in `shaders`, and maybe one kernel in C.

Importing the package declares all of them; `ag.engine.primitive.PRIMITIVES` lists what a backend must run.
docs/adding_an_op.md adds one.  Without a kernel in C the CPU runs the numpy function; the GLSL function of a `fusable`
primitive becomes C by itself.
"""

from ag.engine.kernels import (
    activation,
    attention,
    conv,
    convert,
    elementwise,
    indexing,
    matmul,
    norm,
    optimizer,
    packed,
    random,
    reduce,
)
