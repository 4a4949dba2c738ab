"""Who exchanges with whom: communicators, reductions, trees of tensors, scatter and gather.

    groups of ranks              comm: what ranks do together, on arrays       threads, mpi: the kinds of groups
    a group that loses ranks     membership: who is left, and what counts
    MPI                          mpi_process  mpi_waiting: what `mpi` is made of       mpi_settings: for mpiexec
    devices of a process         scatter  gather  tensor_collectives: tensors between them, with gradients
    sums                         tree_reduction: their one order       grad_sync: averages of gradients
    batches and samples          tree: their arrays
    whether devices work         device_threads: a thread for each       shared_cores  failed_devices

Knows arrays, tensors and names of devices; no model, no optimizer and no trainer.  The other folders of `ag.parallel`,
`ag.training` and `ag.tools` import it.
"""
