"""Data-parallel training: `dp_train` and its parts.

Knows models by their parameters and devices by their names; no backend's inside.  Users and `ag.training` call it.

    the loop over steps       dp_train      start: the same under other names      arguments  result  checkpoint
    between two steps         callbacks
    samples of a step         samples: their order      stacks: which are passed at once
    a step                    trainer       ranks: with other processes
    replicas of a rank        replicas      load_balance: the share of each      synchronized_samples
    one replica               replica       plans: captured or eager      model_buffers
    on the host               host_optimizer

If a device is lost in step 7, its replica raises a DeviceError there, which `dp_train` catches: `trainer` finds out
which devices still compute, `replicas` leaves the others out, `ranks` tells other ranks, and `dp_train` makes step 7
again, whose samples `ranks` and `replicas` deal anew.  No weight changes twice: `trainer` changes weights only when all
gradients are there, and from then on the step counts.  A device that is lost while new weights are sent to it shows in
step 8 (`Replicas.send`).

If a rank is lost in step 7, the communicator raises a RankLostError on the others, `membership` (`ag.parallel.comm`)
has them agree on who is left and raises it on, and `ranks` drops the share of the lost one.  `dp_train`, which catches
it, makes step 7 again: `ranks` deals the samples anew, and `replicas` each rank's part.  `go_on_without` is not called:
the devices of those who are left are well.
"""
