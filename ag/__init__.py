"""ag: automatic differentiation and data-parallel training on any Vulkan device, and on the CPU.

Knows the names and where they lie, and nothing of what they do.  Users import it; of `ag` only the command line does.

Every public name is here, grouped as the documentation is, and by subject in the namespaces `nn`, `ops`, `optim`,
`data`, `io`, `parallel` and `training`, next to the classes behind it.  Importing `ag` loads neither Kompute nor a
driver, and of `ag` what every training needs: tensors, ops, layers, optimizers.  The rest is loaded when one of its
names is first used (PEP 562), after which the name is an attribute as any other:

    import ag            ag.dp_train is not there
    ag.dp_train          `__getattr__` finds it in _LATER, loads ag.parallel and keeps the function
    ag.dp_train          is there

Which folder may import which, and what from outside, is a table in tools/rooms.py; tests/test_architecture.py fails
otherwise.
"""

import os as _os
import typing as _typing
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

# After a product of matrices numpy's idle threads spin for 20 ms, on cores that the rest of a step could use; 2^16
# cycles are enough.  Takes effect if numpy is not loaded yet.
_os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")

from ag.names import MissingNameError as _MissingNameError

# errors
from ag.errors import (
    AgError as AgError,
    ArenaError as ArenaError,
    CacheError as CacheError,
    CaptureError as CaptureError,
    CheckpointError as CheckpointError,
    CommError as CommError,
    DeviceError as DeviceError,
    DtypeError as DtypeError,
    ExportError as ExportError,
    KernelError as KernelError,
    RankLostError as RankLostError,
    ShapeError as ShapeError,
    TapeError as TapeError,
)

# devices
from ag.engine.backend import DeviceInfo as DeviceInfo
from ag.engine.device import (
    ag_default_device as ag_default_device,
    ag_default_dtype as ag_default_dtype,
    ag_device as ag_device,
    ag_dtype as ag_dtype,
    ag_shutdown as ag_shutdown,
    ag_synchronize as ag_synchronize,
)
from ag.engine.random import ag_seed as ag_seed

# tensors and the tape
from ag.autograd.create import ag_param as ag_param, ag_tensor as ag_tensor, is_ag_tensor as is_ag_tensor
from ag.autograd.tape import (
    Gradients as Gradients,
    backward as backward,
    no_grad as no_grad,
    with_grad_tape as with_grad_tape,
)
from ag.autograd.tensor import Tensor as Tensor

# ops: those that the files in ag/ops list
from ag import ops as ops
from ag.ops import *

# layers
from ag import nn as nn
from ag.nn import (
    KeyValueCache as KeyValueCache,
    Layer as Layer,
    ag_avg_pool as ag_avg_pool,
    ag_batch_norm as ag_batch_norm,
    ag_conv2d_layer as ag_conv2d_layer,
    ag_dropout as ag_dropout,
    ag_embedding as ag_embedding,
    ag_eval as ag_eval,
    ag_flatten_layer as ag_flatten_layer,
    ag_global_pool as ag_global_pool,
    ag_layer_norm as ag_layer_norm,
    ag_linear as ag_linear,
    ag_max_pool as ag_max_pool,
    ag_multihead_attention as ag_multihead_attention,
    ag_residual as ag_residual,
    ag_resnet as ag_resnet,
    ag_rms_norm as ag_rms_norm,
    ag_sequential as ag_sequential,
    ag_train as ag_train,
)

# optimizers
from ag import optim as optim
from ag.optim import (
    clip_grad_norm as clip_grad_norm,
    lr_scheduler_cosine as lr_scheduler_cosine,
    lr_scheduler_step as lr_scheduler_step,
    lr_scheduler_warmup as lr_scheduler_warmup,
    optimizer_adam as optimizer_adam,
    optimizer_adamw as optimizer_adamw,
    optimizer_sgd as optimizer_sgd,
)
from ag.version import __version__ as __version__

# What is loaded when it is first used: names by the file that has them, and folders, of which the first are namespaces.
_LATER = {
    "ag.autograd.activation_checkpoint": ("ag_checkpoint",),
    "ag.autograd.capture": ("CapturedStep", "ag_capture"),
    "ag.autograd.gradcheck": ("ag_gradcheck",),
    "ag.engine.matmul_precision": ("ag_matmul_precision",),
    "ag.tools.profile": ("profile",),
    "ag.data": ("Batch", "ag_dataloader", "ag_image_folder"),
    "ag.io": ("Checkpoint", "ag_load_checkpoint", "ag_load_model", "ag_save_checkpoint", "ag_save_model",
              "export_onnx", "load_weights"),
    "ag.parallel": ("ColumnParallelLinear", "CompressedDataParallel", "DataParallel", "DistributedWorld", "DPResult",
                    "DPStep", "ModelParallel", "Pipeline", "RowParallelLinear", "SyncBatchNorm", "ZeroOptimizer",
                    "dp_train", "gather", "load_config", "parallel_apply", "replicate", "scatter", "start",
                    "syncgrads", "train_distributed"),
    "ag.training": ("fit",),
    "ag.tools.device_table": ("ag_vulkan_device_count", "ag_vulkan_devices", "ag_vulkan_status",
                              "ggml_vulkan_device_count", "ggml_vulkan_list_devices", "ggml_vulkan_status"),
    "ag.tools.doctor": ("doctor",),
    "ag.tools.transport_selftest": ("transport_selftest",),
}
_NAMESPACES_LATER = ("data", "io", "parallel", "training")

if _typing.TYPE_CHECKING:  # what _LATER says, for type checkers and editors, which a test compares
    from ag import data as data, io as io, parallel as parallel, training as training
    from ag.autograd.activation_checkpoint import ag_checkpoint as ag_checkpoint
    from ag.autograd.capture import CapturedStep as CapturedStep, ag_capture as ag_capture
    from ag.autograd.gradcheck import ag_gradcheck as ag_gradcheck
    from ag.data import Batch as Batch, ag_dataloader as ag_dataloader, ag_image_folder as ag_image_folder
    from ag.engine.matmul_precision import ag_matmul_precision as ag_matmul_precision
    from ag.io import (
        Checkpoint as Checkpoint,
        ag_load_checkpoint as ag_load_checkpoint,
        ag_load_model as ag_load_model,
        ag_save_checkpoint as ag_save_checkpoint,
        ag_save_model as ag_save_model,
        export_onnx as export_onnx,
        load_weights as load_weights,
    )
    from ag.parallel import (
        ColumnParallelLinear as ColumnParallelLinear,
        CompressedDataParallel as CompressedDataParallel,
        DataParallel as DataParallel,
        DistributedWorld as DistributedWorld,
        DPResult as DPResult,
        DPStep as DPStep,
        ModelParallel as ModelParallel,
        Pipeline as Pipeline,
        RowParallelLinear as RowParallelLinear,
        SyncBatchNorm as SyncBatchNorm,
        ZeroOptimizer as ZeroOptimizer,
        dp_train as dp_train,
        gather as gather,
        load_config as load_config,
        parallel_apply as parallel_apply,
        replicate as replicate,
        scatter as scatter,
        start as start,
        syncgrads as syncgrads,
        train_distributed as train_distributed,
    )
    from ag.tools.device_table import (
        ag_vulkan_device_count as ag_vulkan_device_count,
        ag_vulkan_devices as ag_vulkan_devices,
        ag_vulkan_status as ag_vulkan_status,
        ggml_vulkan_device_count as ggml_vulkan_device_count,
        ggml_vulkan_list_devices as ggml_vulkan_list_devices,
        ggml_vulkan_status as ggml_vulkan_status,
    )
    from ag.tools.doctor import doctor as doctor
    from ag.tools.profile import profile as profile
    from ag.tools.transport_selftest import transport_selftest as transport_selftest
    from ag.training import AgClassifier as AgClassifier, AgRegressor as AgRegressor
    from ag.training.fit import fit as fit
else:
    _HOME = {name: file for file, names in _LATER.items() for name in names}
    __all__ = [name for name, x in globals().items()
               if name[0] != "_" and name not in _HOME and not isinstance(x, _ModuleType)] + [*_HOME]

    def __dir__() -> list[str]:
        """What completion shows: the public names and the namespaces, without the modules that they are made of."""
        from importlib.util import find_spec

        others = ("AgClassifier", "AgRegressor") if find_spec("sklearn") else ()
        return sorted([*__all__, "nn", "ops", "optim", *_NAMESPACES_LATER, "__version__", *others])

    def __getattr__(name: str) -> object:
        """What is loaded when it is first used, or the answer to a name that is not there: the nearest one."""
        if name in _NAMESPACES_LATER or name == "tools":
            return _import_module(f"ag.{name}")
        if name in ("AgClassifier", "AgRegressor"):  # not in __all__, as they need another package
            return getattr(_import_module("ag.training"), name)
        if name not in _HOME:
            raise _MissingNameError("ag", name)
        found = globals()[name] = getattr(_import_module(_HOME[name]), name)
        return found
