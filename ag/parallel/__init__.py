"""Training on several devices at once: `comm`, then `replicas` and `sharded`, `trainer`, `elastic`."""

import typing as _typing

import ag.data as _data  # whole, as below in ag/training: other threads may import them now
import ag.io as _io
from ag.names import door as _door
from ag.parallel.comm.tensor_collectives import *
from ag.parallel.elastic.train_distributed import train_distributed as train_distributed
from ag.parallel.elastic.world import Config as Config
from ag.parallel.elastic.world import DistributedWorld as DistributedWorld
from ag.parallel.elastic.world import load_config as load_config
from ag.parallel.replicas.compression import *
from ag.parallel.replicas.data_parallel import *
from ag.parallel.replicas.zero import *
from ag.parallel.sharded.pipeline import *
from ag.parallel.sharded.tensor_parallel import *
from ag.parallel.trainer.dp_train import *

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _door(globals())
