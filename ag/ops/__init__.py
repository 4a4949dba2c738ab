# mypy: implicit-reexport
"""The differentiable operations, one file per family: what a family lists in `__all__` is public, and a name of `ag`.

An op says which primitives compute its result and its gradients (`ag.autograd.op`), and knows no device.
"""

from ag.ops import (
    activation,
    arithmetic,
    attention,
    conv,
    convert,
    elementwise,
    embedding,
    indexing,
    loss,
    matmul,
    norm,
    pool,
    reduce,
    reshape,
)
from ag.ops.activation import *
from ag.ops.arithmetic import *
from ag.ops.attention import *
from ag.ops.conv import *
from ag.ops.convert import *
from ag.ops.elementwise import *
from ag.ops.embedding import *
from ag.ops.indexing import *
from ag.ops.loss import *
from ag.ops.matmul import *
from ag.ops.norm import *
from ag.ops.pool import *
from ag.ops.reduce import *
from ag.ops.reshape import *

MYPY = False  # which mypy takes for true: it reads no __all__ that is not written out, and the imports instead
if not MYPY:
    __all__: list[str] = []
    __all__ += activation.__all__
    __all__ += arithmetic.__all__
    __all__ += attention.__all__
    __all__ += conv.__all__
    __all__ += convert.__all__
    __all__ += elementwise.__all__
    __all__ += embedding.__all__
    __all__ += indexing.__all__
    __all__ += loss.__all__
    __all__ += matmul.__all__
    __all__ += norm.__all__
    __all__ += pool.__all__
    __all__ += reduce.__all__
    __all__ += reshape.__all__
del MYPY
