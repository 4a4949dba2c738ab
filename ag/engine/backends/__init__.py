"""Backends: a folder per family of devices, which `ag.engine.registry` finds by its name and imports when one is used.

The package of a folder registers the family; nothing else in `ag` names it.  To add one: a backend to the specification
of `ag.engine.backend` that runs the primitives of `ag.engine.kernels`, its `Target`, and ``register_backend``;
tests/test_toy_backend.py is the smallest.
"""
