"""Optimizers, learning rate schedules, gradient clipping.

Each has its own name and ggmlR's: ``ag.optim.Adam`` is ``ag.optimizer_adam``.
"""

import typing as _typing

from ag.names import door as _door
from ag.optim.clipping import *
from ag.optim.optimizer import *
from ag.optim.schedule import *

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _door(globals())
