"""Communicators, reductions, trees of tensors, and moves between devices.

Groups of ranks: `comm`, whose kinds are `threads` and `mpi`.  Devices of a process:
`tensor_collectives` and `device_threads`.  Sums: `tree_reduction`.
"""
