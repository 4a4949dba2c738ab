"""The names of `ag` that `ag.__getattr__` loads when they are first used; type checkers read this file as it stands."""

from ag import data as data, io as io, nn as nn, optim as optim, parallel as parallel, training as training
from ag.autograd.activation_checkpoint import ag_checkpoint as ag_checkpoint
from ag.capture.step import CapturedStep as CapturedStep, ag_capture as ag_capture
from ag.autograd.gradcheck import ag_gradcheck as ag_gradcheck, detect_anomaly as detect_anomaly
from ag.data import Batch as Batch, ag_dataloader as ag_dataloader, ag_image_folder as ag_image_folder
from ag.engine.device import ag_matmul_precision as ag_matmul_precision
from ag.io import (
    Checkpoint as Checkpoint, ag_load_checkpoint as ag_load_checkpoint, ag_load_model as ag_load_model,
    ag_save_checkpoint as ag_save_checkpoint, ag_save_model as ag_save_model, export_onnx as export_onnx,
    load_onnx as load_onnx, load_weights as load_weights,
)
from ag.nn import (
    KeyValueCache as KeyValueCache, Layer as Layer, ag_avg_pool as ag_avg_pool, ag_batch_norm as ag_batch_norm,
    ag_conv2d_layer as ag_conv2d_layer, ag_dropout as ag_dropout, ag_embedding as ag_embedding, ag_eval as ag_eval,
    ag_flatten_layer as ag_flatten_layer, ag_global_pool as ag_global_pool, ag_layer_norm as ag_layer_norm,
    ag_linear as ag_linear, ag_max_pool as ag_max_pool, ag_multihead_attention as ag_multihead_attention,
    ag_residual as ag_residual, ag_resnet as ag_resnet, ag_rms_norm as ag_rms_norm, ag_sequential as ag_sequential,
    ag_train as ag_train, summary as summary,
)
from ag.optim import (
    clip_grad_norm as clip_grad_norm, lr_scheduler_cosine as lr_scheduler_cosine,
    lr_scheduler_step as lr_scheduler_step, lr_scheduler_warmup as lr_scheduler_warmup,
    optimizer_adam as optimizer_adam, optimizer_adamw as optimizer_adamw, optimizer_sgd as optimizer_sgd,
)
from ag.parallel import (
    ColumnParallelLinear as ColumnParallelLinear, CompressedDataParallel as CompressedDataParallel,
    DataParallel as DataParallel, DistributedWorld as DistributedWorld, DPResult as DPResult, DPStep as DPStep,
    ModelParallel as ModelParallel, Pipeline as Pipeline, RowParallelLinear as RowParallelLinear,
    SyncBatchNorm as SyncBatchNorm, ZeroOptimizer as ZeroOptimizer, dp_train as dp_train, gather as gather,
    load_config as load_config, parallel_apply as parallel_apply, replicate as replicate, scatter as scatter,
    start as start, syncgrads as syncgrads, train_distributed as train_distributed,
)
from ag.tools.device_table import (
    ag_vulkan_device_count as ag_vulkan_device_count, ag_vulkan_devices as ag_vulkan_devices,
    ag_vulkan_status as ag_vulkan_status, ggml_vulkan_device_count as ggml_vulkan_device_count,
    ggml_vulkan_list_devices as ggml_vulkan_list_devices, ggml_vulkan_status as ggml_vulkan_status,
)
from ag.tools.doctor import doctor as doctor, transport_selftest as transport_selftest
from ag.tools.profile import free_memory as free_memory, memory as memory, profile as profile
from ag.training import AgClassifier as AgClassifier, AgRegressor as AgRegressor
from ag.training.fit import fit as fit
