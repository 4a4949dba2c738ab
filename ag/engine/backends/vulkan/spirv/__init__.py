"""What is changed in compiled kernels as they are loaded, as it depends on the device: modes of floats, addresses."""
