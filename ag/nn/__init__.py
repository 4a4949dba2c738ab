"""Layers, one family per file; `layer` is their base.

Each has its own name and ggmlR's: ``ag.nn.Linear`` is ``ag.ag_linear``, one class.
"""

import typing as _typing

from ag.names import door as _door
from ag.nn import init as init
from ag.nn.attention import *
from ag.nn.functions import *
from ag.nn.layer import Layer as Layer
from ag.nn.linear import *
from ag.nn.mode import ag_eval as ag_eval
from ag.nn.mode import ag_train as ag_train
from ag.nn.sequential import *
from ag.nn.summaries import summary as summary

train = ag_train
eval = ag_eval

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _door(globals(), also=["init"])
