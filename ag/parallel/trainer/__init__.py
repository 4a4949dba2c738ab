"""Data-parallel training: `dp_train` and its parts.

If a device is lost in step 7, its replica raises a DeviceError, `trainer` finds the devices that still compute, and the
others make step 7 again.  If a rank is lost, the communicator raises a RankLostError on the others, `Member` agrees
on who is left, and `Ranks` deals the samples anew.  Weights change only when all gradients are there.
"""
