# mypy: implicit-reexport
"""The differentiable operations, one file per family; each has an ordinary name, too: ``ag.ops.softmax``.

An op names the primitives of its result and of its gradients (`ag.autograd.op`).  How to add one: docs/adding_an_op.md.
Axes broadcast from the last, both ways: sizes must be equal or 1.  All raise a `ShapeError` for shapes that do not fit
and a `DeviceError` for operands on several devices.  What is no number is a `DtypeError`, and a wrong parameter a
`ValueError` or `TypeError`.
"""

import typing as _typing

from ag.names import door as _door
from ag.ops import numpy_functions as numpy_functions  # what tensors look up
from ag.ops.activation import *
from ag.ops.arithmetic import *
from ag.ops.attention import *
from ag.ops.compositions import *
from ag.ops.conv import *
from ag.ops.creation import *
from ag.ops.einsum import *
from ag.ops.functions import *
from ag.ops.images import *
from ag.ops.indexing import *
from ag.ops.loss import *
from ag.ops.losses import *
from ag.ops.matmul import *
from ag.ops.normalization import *
from ag.ops.reduce import *
from ag.ops.rotary import *
from ag.ops.selection import *
from ag.ops.shapes import *

MYPY = False  # which mypy takes for true: it reads no __all__ that is not written out, and the imports instead
if not MYPY:
    __all__: list[str] = [_name for _name in globals() if _name.startswith("ag_")]
del MYPY

# The ordinary names; two are also those of files, which `import ag.ops.matmul` still finds.
abs = ag_abs
add = ag_add
attention = ag_attention
avg_pool2d = ag_avg_pool2d
batch_norm = ag_batch_norm_op
bce_with_logits_loss = ag_bce_with_logits_loss
cast = ag_cast
clamp = ag_clamp
concat = ag_concat
conv2d = ag_conv2d
cross_entropy_loss = ag_cross_entropy_loss
div = ag_div
embedding_lookup = ag_embedding_lookup
exp = ag_exp
flatten = ag_flatten
gelu = ag_gelu
global_avg_pool = ag_global_avg_pool
layer_norm = ag_layer_norm_op
leaky_relu = ag_leaky_relu
log = ag_log
log_softmax = ag_log_softmax
matmul = ag_matmul
max = ag_max
max_pool2d = ag_max_pool2d
mean = ag_mean
mse_loss = ag_mse_loss
mul = ag_mul
pow = ag_pow
relu = ag_relu
reshape = ag_reshape
rms_norm = ag_rms_norm_op
scale = ag_scale
sigmoid = ag_sigmoid
silu = ag_silu
slice = ag_slice
softmax = ag_softmax
softmax_cross_entropy_loss = ag_softmax_cross_entropy_loss
sqrt = ag_sqrt
sub = ag_sub
sum = ag_sum
tanh = ag_tanh
to_device = ag_to_device
transpose = ag_transpose

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _door(globals())
