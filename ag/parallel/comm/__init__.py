"""Who exchanges with whom: communicators, reductions, structures of tensors."""
