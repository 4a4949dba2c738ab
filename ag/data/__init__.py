"""Samples in batches, from arrays in memory and from folders of images; training loops and `dp_train` ask for them.

Nothing here knows models, optimizers or files of tensors.
"""

from ag.data.dataloader import *
from ag.data.image_folder import *
