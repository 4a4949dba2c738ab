"""Replicas of one model in a loop of the user's: `DataParallel`, compressed gradients, `SyncBatchNorm`, and ZeRO."""
