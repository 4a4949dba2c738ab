"""Cotangents on their way to another device: through the host, as true values, without the loss scale of either device.

Ops and replicas whose inputs are on another device call this in their gradient rules; `ag.autograd.loss_scale` has the
scales.  Knows buffers; no tensor, no op and no replica.
"""

from __future__ import annotations

from ag.autograd.create import to_buffer
from ag.autograd.loss_scale import scaled, unscaled
from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import F16, F32, DType
from ag.engine.kernels.convert import converted
from ag.engine.primitive import Array

__all__ = ["fetch_cotangent", "move_cotangent", "place_cotangent"]


def fetch_cotangent(g: Buffer) -> Array:
    """The true values of a cotangent, without its device's scale; 16-bit ones in float32."""
    wide = unscaled(g) if g.dtype is F16 else converted(g, F32) if g.dtype.is_half else g
    return g.backend.download(wide)


def place_cotangent(values: Array, target: Device, dtype: DType) -> Buffer:
    """A cotangent of a tensor of type `dtype`, from its true values: if that is f16, times the scale of `target`."""
    wide = to_buffer(values, target, F32 if dtype.is_half else dtype)
    return scaled(wide) if dtype is F16 else wide


def move_cotangent(g: Buffer, target: Device) -> Buffer:
    """A cotangent on another device, whose scale may be another one."""
    if g.dtype is F16:
        return place_cotangent(fetch_cotangent(g), target, F16)
    return to_buffer(g.backend.download(g), target, g.dtype)
