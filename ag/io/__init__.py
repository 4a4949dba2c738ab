"""Files: arrays in safetensors files, models, checkpoints of a training loop.

What is read is data and never runs.  Nothing here trains; users and `ag.parallel` call it.
"""

from ag.io.checkpoint import *
from ag.io.model_file import *
