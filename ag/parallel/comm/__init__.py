"""Communicators (`comm`, of `threads` or `mpi`), reductions, trees of tensors, and moves between devices."""
