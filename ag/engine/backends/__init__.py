"""Backends: a folder per family of devices, imported by `ag.engine.registry` when one is used.

To add one: subclass `ag.engine.backend.Backend`, give it a `Target`, and call `register_backend` in the package.
tests/test_toy_backend.py is the smallest.  `shader` is no family: those with compiled kernels share it.
"""
