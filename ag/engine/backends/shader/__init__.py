"""Manifest, plans and tiles of the compiled kernels of shaders/, for every backend that runs them."""
