# mypy: implicit-reexport
"""ag: automatic differentiation and data-parallel training on any Vulkan device, and on the CPU.

Every public name is here, grouped as the documentation is, and by subject in the namespaces `nn`, `ops`, `optim`,
`data`, `io`, `parallel` and `training`, next to the classes behind it.  Importing `ag` loads neither Kompute nor a
driver.
Which folder may import which, and what from outside, is a table in tools/rooms.py; tests/test_architecture.py fails
otherwise.
"""

import os as _os
import typing as _typing

# After a product of matrices numpy's idle threads spin for 20 ms, on cores that the rest of a step could use; 2^16
# cycles are enough.  Takes effect if numpy is not loaded yet.
_os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")

from ag.names import MissingNameError as _MissingNameError

# errors
from ag.errors import (
    AgError,
    ArenaError,
    CaptureError,
    CheckpointError,
    CommError,
    DeviceError,
    DtypeError,
    ExportError,
    KernelError,
    RankLostError,
    ShapeError,
    TapeError,
)

# devices
from ag.engine.backend import DeviceInfo
from ag.engine.device import ag_default_device, ag_default_dtype, ag_device, ag_dtype, ag_shutdown, ag_synchronize

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

# ops: those that the files in ag/ops list
from ag import data as data
from ag import io as io
from ag import nn as nn
from ag import ops as ops
from ag import optim as optim
from ag import parallel as parallel
from ag import training as training
from ag.ops import *

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
    ag_resnet,
    ag_sequential,
    ag_train,
)

# training
from ag.data import Batch, ag_dataloader, ag_image_folder
from ag.io import (
    Checkpoint,
    ag_load_checkpoint,
    ag_load_model,
    ag_save_checkpoint,
    ag_save_model,
    export_onnx,
    load_weights,
)
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
from ag.training import fit

# diagnostics
from ag.tools.device_table import ag_vulkan_device_count, ag_vulkan_devices, ag_vulkan_status
from ag.tools.doctor import doctor
from ag.tools.transport_selftest import transport_selftest
from ag.version import __version__ as __version__

# the same functions under ggmlR's names
ggml_vulkan_device_count = ag_vulkan_device_count
ggml_vulkan_list_devices = ag_vulkan_devices
ggml_vulkan_status = ag_vulkan_status

MYPY = False  # as in ag/ops
if not MYPY:
    __all__ = [
        "AgError",
        "ArenaError",
        "CaptureError",
        "CheckpointError",
        "CommError",
        "DeviceError",
        "DtypeError",
        "ExportError",
        "KernelError",
        "RankLostError",
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
    ]
    __all__ += ops.__all__
    __all__ += [
        "ag_multihead_attention",
        "ag_batch_norm",
        "ag_avg_pool",
        "ag_conv2d_layer",
        "ag_dropout",
        "ag_flatten_layer",
        "ag_global_pool",
        "ag_max_pool",
        "ag_residual",
        "ag_resnet",
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
        "export_onnx",
        "load_weights",
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
        "fit",
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

    def __dir__() -> list[str]:
        """What completion shows: the public names and the namespaces, without the modules that they are made of."""
        return sorted([*__all__, "data", "io", "nn", "ops", "optim", "parallel", "training", "__version__"])
del MYPY

if _typing.TYPE_CHECKING:
    from ag.training import AgClassifier as AgClassifier
    from ag.training import AgRegressor as AgRegressor
else:
    def __getattr__(name: str) -> object:
        """The estimators, whose package is loaded now, or the answer to a name that is not there: the nearest one."""
        if name in ("AgClassifier", "AgRegressor"):
            return getattr(training, name)
        raise _MissingNameError("ag", name)
