"""Training that is described in a file and goes on from its last checkpoint after a loss: `train_distributed`.

`dp_train` goes on without a lost device or rank by itself, in place.  `python -m ag launch` starts ranks.
"""
