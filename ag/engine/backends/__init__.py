"""Backends: a folder per family of devices, which `ag.engine.registry` finds by its name and imports when one is used.

The package of a folder registers the family.  Nothing outside decides by a family's name; "cpu", which is always there,
is also what the host is called, and Vulkan is named only by ggmlR's functions (`ag.tools.device_table`), their exports
(`ag`) and the messages of `ag.names`.  A backend imports the core of the engine and its kernels; it knows no other
backend, no compiler and nothing above.  To add one: a backend to the specification of `ag.engine.backend` that runs the
primitives of `ag.engine.kernels`, its `Target`, and ``register_backend``; tests/test_toy_backend.py is the smallest.
"""
