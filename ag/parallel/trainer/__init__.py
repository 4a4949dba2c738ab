"""Data-parallel training: `dp_train` and its parts."""
