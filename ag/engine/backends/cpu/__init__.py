"""The CPU backend: ``cpu``, ``cpu:1``, ... are independent devices on the machine's processor."""

from ag.engine.backends.cpu.backend import NumpyBackend, device_info
from ag.engine.registry import register_backend

register_backend("cpu", lambda: [device_info("cpu")], NumpyBackend, title="CPU", bare=True)
