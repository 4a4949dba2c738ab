"""What is changed in compiled kernels as they are loaded, as it depends on the device.

    float_modes      what they ask of float32 arithmetic
    addresses        which buffers they find by their address
    module           SPIR-V as instructions, and back

Knows SPIR-V, no kernel and no device; `ag.engine.backends.vulkan.pipelines` calls it.
"""
