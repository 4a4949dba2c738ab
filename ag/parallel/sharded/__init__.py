"""One model cut into parts that lie on several devices.

Knows models and devices; no replica and no trainer.  Users call it; `ag.parallel.elastic` imports it.
"""
