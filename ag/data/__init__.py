"""Samples in batches, from arrays in memory and from folders of images; training loops and `dp_train` ask for them.

What only ImageNet has, its index files and top-k accuracy, stays in ``ag.data.imagenet``.

Nothing here knows models, optimizers or files of tensors.
"""

import typing as _typing

from ag.data import imagenet as imagenet
from ag.data.dataloader import *
from ag.data.image_folder import *
from ag.names import door as _door

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _door(globals(), also=["imagenet"])
