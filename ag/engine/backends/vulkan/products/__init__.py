"""How products of matrices are made on a device: in which tiles, by a table or by measurement, or on its matrix units.

    tiles            the table, and the rule that chooses
    autotune         the same by measurement, and `autotune_cache`, which keeps what was measured
    trial            which kinds of tiles a new driver makes right
    cooperative      which products run on matrix units, after a test

Knows sizes and what a driver says of its device; `ag.engine.backends.vulkan.plans` and the backend ask.
"""
