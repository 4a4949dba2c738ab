# mypy: implicit-reexport
"""ag: automatic differentiation and data-parallel training on any Vulkan device, and on the CPU.

Every public name is here, grouped as the documentation is.  Importing `ag` loads neither Kompute nor a driver.
"""

import os

# After a product of matrices numpy's idle threads spin for 20 ms, on cores that the rest of a step could use; 2^16
# cycles are enough.  Takes effect if numpy is not loaded yet.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")

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

# ops: those that the files in ag/ops list
from ag import ops
from ag.ops import *

# layers
from ag.nn.attention import ag_multihead_attention
from ag.nn.batch_norm import ag_batch_norm
from ag.nn.conv import ag_conv2d_layer
from ag.nn.dropout import ag_dropout
from ag.nn.embedding import ag_embedding
from ag.nn.layer import Layer, ag_eval, ag_train
from ag.nn.layer_norm import ag_layer_norm
from ag.nn.linear import ag_linear
from ag.nn.pool import ag_avg_pool, ag_flatten_layer, ag_global_pool, ag_max_pool
from ag.nn.residual import ag_residual
from ag.nn.sequential import ag_sequential

# training
from ag.io.model_file import ag_load_model, ag_save_model
from ag.data.dataloader import Batch, ag_dataloader
from ag.data.image_folder import ag_image_folder
from ag.optim.adam import optimizer_adam, optimizer_adamw
from ag.optim.clip import clip_grad_norm
from ag.optim.schedule import lr_scheduler_cosine, lr_scheduler_step, lr_scheduler_warmup
from ag.optim.sgd import optimizer_sgd
from ag.parallel.replicas.compressed import CompressedDataParallel
from ag.parallel.elastic.config import load_config
from ag.parallel.replicas.data_parallel import DataParallel
from ag.parallel.trainer.dp_result import DPResult, DPStep
from ag.parallel.trainer.dp_train import dp_train
from ag.parallel.replicas.gather import gather
from ag.parallel.sharded.model_parallel import ModelParallel
from ag.parallel.replicas.parallel_apply import parallel_apply
from ag.parallel.sharded.pipeline import Pipeline
from ag.parallel.replicas.replicate import replicate
from ag.parallel.replicas.scatter import scatter
from ag.parallel.trainer.start import start
from ag.parallel.replicas.sync_batch_norm import SyncBatchNorm
from ag.parallel.comm.grad_sync import syncgrads
from ag.parallel.sharded.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from ag.parallel.replicas.zero import ZeroOptimizer
from ag.tools.transport_selftest import transport_selftest
from ag.parallel.elastic.train_distributed import train_distributed
from ag.parallel.elastic.world import DistributedWorld
from ag.tools.doctor import doctor
from ag.io.checkpoint import Checkpoint, ag_load_checkpoint, ag_save_checkpoint
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
del MYPY
