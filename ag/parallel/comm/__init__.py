"""Who exchanges with whom: communicators, reductions, trees of tensors, scatter and gather."""
