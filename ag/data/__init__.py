"""Samples in batches, from arrays in memory and from folders of images, and small data sets.

ImageNet's index files and top-k accuracy are in ``ag.data.imagenet``.
"""

import typing as _typing

from ag.data import imagenet as imagenet
from ag.data.bundled import *
from ag.data.dataloader import *
from ag.data.image_folder import *
from ag.data.splits import *
from ag.names import door as _door

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _door(globals(), also=["imagenet"])
