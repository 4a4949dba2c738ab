"""Replicas of one model on several devices at once: data parallelism, its compressed gradients, and ZeRO."""
