"""The Vulkan backend, on Kompute (`kp`).  Nothing outside this folder imports `kp`."""
