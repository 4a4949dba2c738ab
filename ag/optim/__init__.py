"""Optimizers, learning rate schedules, gradient clipping.

Each optimizer and schedule is here under its own name and under ggmlR's: ``ag.optim.Adam`` is ``ag.optimizer_adam``.
They update parameters, whatever computed the gradients, and know no layer and no file; training loops and
`ag.parallel` call them.
"""

import typing as _typing

from ag.names import door as _door
from ag.optim.adam import *
from ag.optim.clip import *
from ag.optim.optimizer import Optimizer as Optimizer
from ag.optim.schedule import *
from ag.optim.sgd import *

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _door(globals())
