"""The CPU backend: ``cpu``, ``cpu:1``, ... are independent devices on the machine's processor."""

from ag.engine.backend import Backend
from ag.engine.backends.cpu.backend import NumpyBackend, device_info
from ag.engine.backends.cpu.library import found
from ag.engine.backends.cpu.native import NativeBackend
from ag.engine.cpu_threads import threads
from ag.engine.registry import Family, register_backend, say_once


def _open(index: int, guard: int = 0) -> Backend:
    threads()  # refuses a wrong AG_THREADS here, and not in the middle of a step
    kernels = found()
    if kernels.lacks:  # not where devices are only listed: who trains on cards does not need them
        say_once(kernels.line)
    if kernels.library is None:
        return NumpyBackend(index, guard=guard)
    return NativeBackend(kernels.library, index, guard=guard)


register_backend(Family("cpu", "CPU", lambda: [device_info("cpu")], _open, bare=True,
                        guarded=lambda index: _open(index, 64)))
