"""Training that is described in a file and outlives lost devices and ranks: `train_distributed`, `ag launch`.

`dp_train` goes on without a lost device by itself (`ag.parallel.trainer`), and needs nothing of this.
"""
