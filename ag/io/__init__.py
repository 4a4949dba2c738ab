"""Files; no code in them runs: models, checkpoints, ONNX graphs, others' weights."""

import typing as _typing

from ag.io import layouts as layouts
from ag.io.checkpoint import *
from ag.io.onnx import export_onnx as export_onnx
from ag.io.onnx import load_onnx as load_onnx
from ag.io.weights import load_weights as load_weights
from ag.names import door as _door

load_model = ag_load_model
save_model = ag_save_model
load_checkpoint = ag_load_checkpoint
save_checkpoint = ag_save_checkpoint

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _door(globals(), also=["layouts"])
