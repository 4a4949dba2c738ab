"""AG_SHADOW=1: run every launch on the numpy reference as well, and name the first element that differs.

It finds a wrong kernel or offset, and is slow, as every launch waits.  Launches inside a capture are not checked, as
the host cannot read there.
"""

from __future__ import annotations

import numpy as np

from ag.engine.backends.vulkan.products.autotune import TunedBackend
from ag.engine.backends.vulkan.stream.commands import Command
from ag.engine.buffer import Buffer
from ag.engine.kernels.convert import stored
from ag.engine.primitive import Params, Primitive
from ag.errors import KernelError

_RTOL, _ATOL = 2e-3, 1e-5  # looser than the kernels' tests: for bugs, not for rounding


class Shadow:
    """Compare launches of one backend with their references."""

    def __init__(self, backend: TunedBackend) -> None:
        self._backend = backend

    def run(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params, command: Command) -> None:
        """Dispatch, wait, and compare every written operand."""
        expected = [stored(self._backend.download(b), b.dtype) for b in buffers]
        self._backend.recorder.record(command)
        with np.errstate(all="ignore"):
            primitive.reference(*expected, **params)
        written = {*range(primitive.outputs), *primitive.updates}
        for i in sorted(written):
            found = stored(self._backend.download(buffers[i]), buffers[i].dtype)
            wrong = ~np.isclose(found, expected[i], _RTOL, _ATOL, equal_nan=True)
            if wrong.any():
                at = tuple(int(k) for k in np.argwhere(wrong)[0])
                raise KernelError(
                    f"{primitive.name}: {primitive.operands[i]}{list(at)} of shape {buffers[i].shape} is {found[at]} "
                    f"on {self._backend.name} and {expected[i][at]} by the reference (parameters {params}).")
