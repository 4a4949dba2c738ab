"""Layers, one family per file; `layer` is their base.

Each layer is here under its own name and under ggmlR's: ``ag.nn.Linear`` is ``ag.ag_linear``.  Layers are made of ops
and know no optimizer, no file and no other device; models and `ag.io` use them.
"""

from ag.nn.attention import *
from ag.nn.batch_norm import *
from ag.nn.conv import *
from ag.nn.dropout import *
from ag.nn.embedding import *
from ag.nn.layer import Layer as Layer
from ag.nn.layer import ag_eval as ag_eval
from ag.nn.layer import ag_train as ag_train
from ag.nn.layer_norm import *
from ag.nn.linear import *
from ag.nn.pool import *
from ag.nn.residual import *
from ag.nn.resnet import *
from ag.nn.sequential import *
