"""What primitives compute: per name one numpy function here, one shader in `shaders`, and maybe one kernel in C.

What is here knows neither tensors nor gradients nor devices.  Everything that computes on devices makes launches of it:
`ag.ops`, the tape, random generators, optimizers, replicas, and the compiler in place of other launches.  Importing the
package declares all primitives: `ag.engine.primitive.PRIMITIVES` is the list of what a backend must run.

All that a new one needs, say a reduction ``variance``; docs/adding_an_op.md goes through it with an example::

    ag/engine/kernels/reduce.py                 the numpy function, which is the reference for the others
    shaders/variance.comp                       the shader; python kernels_build.py compiles it
    ag/engine/backends/cpu/kernels/reduce.c     a kernel in C, if the CPU is to be quicker; python tools/cpu_kernels.py
    ag/ops/reduce.py                            the op that launches it, with its gradient rule
    ag/ops/__init__.py                          the op's ordinary name
    ag/io/onnx/operators.py                     how the op is exported, or that it is not
    tests/table/cases.py                        a row of cases, by which the table's tests check all of them
    tests/engine/backends/cpu/random_launches.py    random launches, for a kernel in C that is written by hand

A shader is a file ``shaders/<name>.comp``, or, if its primitive is `fusable`, the function ``<name>_of`` in
``shaders/functions.glsl``; for a few there are several, of which the backend chooses.  ``kernels_build.py`` compiles
them; what is built is not committed.  Where there is no kernel in C the CPU runs the numpy function; of a `fusable`
primitive the GLSL function becomes C by itself.
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
