"""Backends: a folder per family of devices, imported by `ag.engine.registry` when one is used.

To add one, see tests/test_toy_backend.py, the smallest.  Families with compiled kernels share `shader`.
"""
