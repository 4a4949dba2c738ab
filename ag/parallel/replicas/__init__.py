"""Replicas of one model in a loop of the user's: `DataParallel`, its compressed gradients, `SyncBatchNorm`, and ZeRO.

`dp_train` has replicas of its own, `ag.parallel.trainer.replicas`, each with its samples of a step.
"""
