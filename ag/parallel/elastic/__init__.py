"""Training that is described in a file and goes on from its last checkpoint after a loss: `train_distributed`.

`dp_train` goes on without a lost device or rank by itself, in place (`ag.parallel.trainer`), and needs nothing of this.
Knows models, worlds and checkpoints; no backend's inside.  Users call it; only `ag.parallel`, which has its public
names, imports it.  What starts ranks, and starts them again (`python -m ag launch`), is `ag.tools.launcher`.
"""
