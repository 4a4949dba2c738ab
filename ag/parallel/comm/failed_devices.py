"""Which devices have failed: those on which 1 + 1 is not 2 any more.

Knows devices by their names; no replica and no model.  The trainer of `dp_train`, and `train_distributed`, ask after a
`DeviceError`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.tape import no_grad
from ag.errors import DeviceError

__all__ = ["failed_among"]


def failed_among(devices: Iterable[str]) -> list[str]:
    """The devices on which nothing can be computed any more."""
    return [device for device in dict.fromkeys(devices) if not _works(device)]


def _works(device: str) -> bool:
    try:
        with no_grad():
            one = ag_tensor(np.ones(1, np.float32), device)
            return bool((one + one).item() == 2.0)
    except DeviceError:
        return False
