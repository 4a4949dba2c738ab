"""The CPU backend: ``cpu``, ``cpu:1``, ... are independent devices on the machine's processor."""

from ag.engine.backend import Backend
from ag.engine.backends.cpu.backend import NumpyBackend, device_info
from ag.engine.backends.cpu.library import library
from ag.engine.backends.cpu.native import NativeBackend
from ag.engine.registry import register_backend


def _open(index: int) -> Backend:
    kernels = library()
    return NumpyBackend(index) if kernels is None else NativeBackend(kernels, index)


register_backend("cpu", lambda: [device_info("cpu")], _open, title="CPU", bare=True)
