"""Training that goes on from its last checkpoint after a loss, also as a file describes it: `train_distributed`."""
