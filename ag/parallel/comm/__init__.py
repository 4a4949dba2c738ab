"""Communicators, reductions, trees of tensors, and moves between devices.

    groups of ranks              comm       threads, mpi: the kinds of groups       membership: who is left
    MPI                          mpi_process: in this process       mpi_settings: for mpiexec
    devices of a process         tensor_collectives: tensors between them       device_threads: a thread for each
    sums                         tree_reduction: their one order       grad_sync: averages of gradients
"""
