"""Public operations, one file per family: forward rule, what it saves, gradient.

Importing a family registers its ops.  Ops launch primitives of `ag.engine.kernels` and know no layer; users, tensors'
operators and `ag.nn` call them.
"""

from ag.ops.activation import *
from ag.ops.arithmetic import ag_add as ag_add
from ag.ops.arithmetic import ag_div as ag_div
from ag.ops.arithmetic import ag_mul as ag_mul
from ag.ops.arithmetic import ag_scale as ag_scale
from ag.ops.arithmetic import ag_sub as ag_sub
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
