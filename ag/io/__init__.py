"""Files: tensors, models, checkpoints."""
