"""Replicas of one model in a loop of the user's: `DataParallel`, its compressed gradients, `SyncBatchNorm`, and ZeRO.

Knows models and devices; no trainer and no file.  Users call it; `ag.parallel.trainer` and `ag.parallel.elastic` import
it.

`dp_train` has replicas of its own, `ag.parallel.trainer.replicas`, each with its samples of a step.
"""
