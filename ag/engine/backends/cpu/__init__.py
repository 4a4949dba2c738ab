"""The CPU backend: ``cpu``, ``cpu:1``, ... are independent devices on the machine's processor.

    native     a primitive that has a kernel in C runs there: the devices where kernels were compiled
    library    these kernels, of ``kernels/``
    backend    every primitive in numpy: the base of `native`, and the devices where none were compiled

Nothing here knows the compiler or another backend.  The registry imports this package when a device of its name is
first asked for.
"""

from ag.engine.backend import Backend
from ag.engine.backends.cpu.backend import NumpyBackend, device_info
from ag.engine.backends.cpu.library import library
from ag.engine.backends.cpu.native import NativeBackend
from ag.engine.registry import register_backend


def _open(index: int) -> Backend:
    kernels = library()
    return NumpyBackend(index) if kernels is None else NativeBackend(kernels, index)


register_backend("cpu", lambda: [device_info("cpu")], _open, title="CPU", bare=True)
