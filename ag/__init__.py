"""ag: automatic differentiation and data-parallel training on any Vulkan device, and on the CPU.

Every public name is here, grouped as the documentation is, and by subject in the namespaces `nn`, `ops`, `optim`,
`data`, `io` and `parallel`, next to the classes behind it.  Importing `ag` loads neither Kompute nor a driver.
"""

import os as _os

# After a product of matrices numpy's idle threads spin for 20 ms, on cores that the rest of a step could use; 2^16
# cycles are enough.  Takes effect if numpy is not loaded yet.
_os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")

# errors
from ag.errors import (
    AgError,
    ArenaError,
    CaptureError,
    CheckpointError,
    CommError,
    DeviceError,
    DtypeError,
    KernelError,
    ShapeError,
    TapeError,
)

# devices
from ag.engine.backend import DeviceInfo
from ag.engine.device import ag_default_device, ag_default_dtype, ag_device, ag_dtype, ag_shutdown, ag_synchronize
from ag.engine.devices import ag_vulkan_device_count, ag_vulkan_devices, ag_vulkan_status

# tensors and the tape
from ag.autograd.capture import CapturedStep, ag_capture
from ag.autograd.gradcheck import ag_gradcheck
from ag.engine.matmul_precision import ag_matmul_precision
from ag.engine.profile import profile
from ag.autograd.activation_checkpoint import ag_checkpoint
from ag.engine.random import ag_seed
from ag.autograd.tape import Gradients, backward, no_grad, with_grad_tape
from ag.autograd.create import ag_param, ag_tensor, is_ag_tensor
from ag.autograd.tensor import Tensor

# ops
from ag.ops.activation import ag_log_softmax, ag_relu, ag_sigmoid, ag_softmax, ag_tanh
from ag.ops.reshape import ag_flatten, ag_reshape, ag_transpose
from ag.ops.attention import ag_attention
from ag.ops.arithmetic import ag_add, ag_div, ag_mul, ag_scale, ag_sub
from ag.ops.conv import ag_conv2d
from ag.ops.convert import ag_cast, ag_to_device
from ag.ops.elementwise import ag_abs, ag_clamp, ag_exp, ag_log, ag_pow, ag_sqrt
from ag.ops.embedding import ag_embedding_lookup
from ag.ops.matmul import ag_matmul
from ag.ops.loss import ag_cross_entropy_loss, ag_mse_loss, ag_softmax_cross_entropy_loss
from ag.ops.norm import ag_batch_norm_op, ag_layer_norm_op
from ag.ops.indexing import ag_concat, ag_slice
from ag.ops.pool import ag_avg_pool2d, ag_global_avg_pool, ag_max_pool2d
from ag.ops.activation import ag_gelu, ag_leaky_relu, ag_silu
from ag.ops.reduce import ag_max, ag_mean, ag_sum

# layers
from ag.nn import (
    Layer,
    ag_avg_pool,
    ag_batch_norm,
    ag_conv2d_layer,
    ag_dropout,
    ag_embedding,
    ag_eval,
    ag_flatten_layer,
    ag_global_pool,
    ag_layer_norm,
    ag_linear,
    ag_max_pool,
    ag_multihead_attention,
    ag_residual,
    ag_sequential,
    ag_train,
)

# training
from ag.data import Batch, ag_dataloader, ag_image_folder
from ag.io import Checkpoint, ag_load_checkpoint, ag_load_model, ag_save_checkpoint, ag_save_model
from ag.optim import (
    clip_grad_norm,
    lr_scheduler_cosine,
    lr_scheduler_step,
    lr_scheduler_warmup,
    optimizer_adam,
    optimizer_adamw,
    optimizer_sgd,
)

# several devices
from ag.parallel import (
    ColumnParallelLinear,
    CompressedDataParallel,
    DataParallel,
    DistributedWorld,
    DPResult,
    DPStep,
    ModelParallel,
    Pipeline,
    RowParallelLinear,
    SyncBatchNorm,
    ZeroOptimizer,
    dp_train,
    gather,
    load_config,
    parallel_apply,
    replicate,
    scatter,
    start,
    syncgrads,
    train_distributed,
)

# diagnostics
from ag.tools.doctor import doctor
from ag.tools.transport_selftest import transport_selftest
from ag.version import __version__ as __version__

# the same functions under ggmlR's names
ggml_vulkan_device_count = ag_vulkan_device_count
ggml_vulkan_list_devices = ag_vulkan_devices
ggml_vulkan_status = ag_vulkan_status

__all__ = [
    "AgError",
    "ArenaError",
    "CaptureError",
    "CheckpointError",
    "CommError",
    "DeviceError",
    "DtypeError",
    "KernelError",
    "ShapeError",
    "TapeError",
    "DeviceInfo",
    "ag_default_device",
    "ag_default_dtype",
    "ag_device",
    "ag_dtype",
    "ag_shutdown",
    "ag_synchronize",
    "ag_vulkan_device_count",
    "ag_vulkan_devices",
    "ag_vulkan_status",
    "CapturedStep",
    "ag_capture",
    "ag_gradcheck",
    "ag_matmul_precision",
    "profile",
    "ag_checkpoint",
    "ag_seed",
    "Gradients",
    "backward",
    "no_grad",
    "with_grad_tape",
    "Tensor",
    "ag_param",
    "ag_tensor",
    "is_ag_tensor",
    "ag_gelu",
    "ag_leaky_relu",
    "ag_log_softmax",
    "ag_relu",
    "ag_sigmoid",
    "ag_silu",
    "ag_softmax",
    "ag_tanh",
    "ag_concat",
    "ag_flatten",
    "ag_reshape",
    "ag_slice",
    "ag_cast",
    "ag_to_device",
    "ag_transpose",
    "ag_add",
    "ag_abs",
    "ag_clamp",
    "ag_div",
    "ag_exp",
    "ag_log",
    "ag_mul",
    "ag_pow",
    "ag_scale",
    "ag_sqrt",
    "ag_sub",
    "ag_embedding_lookup",
    "ag_attention",
    "ag_matmul",
    "ag_conv2d",
    "ag_avg_pool2d",
    "ag_global_avg_pool",
    "ag_max_pool2d",
    "ag_cross_entropy_loss",
    "ag_mse_loss",
    "ag_softmax_cross_entropy_loss",
    "ag_batch_norm_op",
    "ag_layer_norm_op",
    "ag_max",
    "ag_mean",
    "ag_sum",
    "ag_multihead_attention",
    "ag_batch_norm",
    "ag_avg_pool",
    "ag_conv2d_layer",
    "ag_dropout",
    "ag_flatten_layer",
    "ag_global_pool",
    "ag_max_pool",
    "ag_residual",
    "ag_embedding",
    "Layer",
    "ag_eval",
    "ag_train",
    "ag_layer_norm",
    "ag_linear",
    "ag_sequential",
    "ag_load_model",
    "ag_save_model",
    "Checkpoint",
    "ag_load_checkpoint",
    "ag_save_checkpoint",
    "Batch",
    "ag_dataloader",
    "ag_image_folder",
    "optimizer_adam",
    "optimizer_adamw",
    "clip_grad_norm",
    "optimizer_sgd",
    "lr_scheduler_cosine",
    "lr_scheduler_step",
    "lr_scheduler_warmup",
    "DPResult",
    "DPStep",
    "dp_train",
    "DataParallel",
    "CompressedDataParallel",
    "gather",
    "parallel_apply",
    "replicate",
    "scatter",
    "SyncBatchNorm",
    "start",
    "syncgrads",
    "ModelParallel",
    "Pipeline",
    "ColumnParallelLinear",
    "RowParallelLinear",
    "ZeroOptimizer",
    "transport_selftest",
    "load_config",
    "DistributedWorld",
    "train_distributed",
    "doctor",
    "ggml_vulkan_device_count",
    "ggml_vulkan_list_devices",
    "ggml_vulkan_status",
]

_NAMESPACES = ("data", "io", "nn", "ops", "optim", "parallel")


def __dir__() -> list[str]:
    """What completion shows: the public names and the namespaces, without the modules that they are made of."""
    return sorted([*__all__, *_NAMESPACES, "__version__"])
