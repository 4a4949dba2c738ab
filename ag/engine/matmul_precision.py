"""How exactly products of matrices in float32 are made: as float32, or faster on matrix units.

The setting belongs to the process, as PyTorch's does, and stands in `Backend.settings`, which backends read when they
plan a launch.  Knows names of precisions, and not how a device makes use of them.  Called by users.
"""

from __future__ import annotations

from ag.engine.backend import Backend
from ag.engine.device import PreviousSetting, open_backends
from ag.errors import DtypeError

__all__ = ["ag_matmul_precision"]

_NAMES = ("highest", "high", "medium")


def ag_matmul_precision(name: str | None = None) -> PreviousSetting:
    """Set how exactly products of matrices in float32 are made, for all devices.

    Parameters
    ----------
    name : str, optional
        ``"highest"``, the default: in float32.  ``"high"``: from three products in bfloat16, with about 16 bits of
        every operand.  ``"medium"``: from one product in bfloat16, with 8 bits; where there is no bfloat16, in float16,
        with 11 bits, scaled so that its range is that of float32.  Without a name nothing changes.

    Returns
    -------
    str
        The precision before.  Used as ``with ag_matmul_precision(name):`` it comes back on exit.

    Raises
    ------
    DtypeError
        If there is no such precision.
    CaptureError
        Inside a step that is being captured.

    Notes
    -----
    The lower precisions are allowed, not promised: they change `ag_matmul` and what is made of it, forward and
    backward, on Vulkan devices with cooperative matrices of these types, for which the kernels were compiled, and
    on which these were right and faster in a test at first use; the log says once where they are not used.
    Convolutions, the weight gradients of linear layers, attention and the CPU stay in float32.  Sums are in float32
    always.  A captured step keeps the precision with which it was captured, and is not fused into its products
    below ``"highest"``.
    Infinities in operands may become NaN.

    References
    ----------
    PyTorch ``torch.set_float32_matmul_precision``.

    Examples
    --------
    >>> import ag
    >>> with ag.ag_matmul_precision("high"):
    ...     print(ag.ag_matmul_precision(), ag.ag_matmul([[1.0, 2.0]], [[3.0], [4.0]]).item())
    high 11.0
    """
    previous = PreviousSetting(Backend.settings.precision, _set, name)
    if name is None:
        return previous
    if name not in _NAMES:
        raise DtypeError(f"ag_matmul_precision: there is no precision {name!r}; use 'highest', 'high' or 'medium'.")
    for backend in open_backends():
        backend.refuse_while_recording("changes the precision of products")
    _set(name)
    return previous


def _set(name: str) -> None:
    Backend.settings.precision = name
