"""Conversion: `ag_to_device` copies values through the host, `ag_cast` changes their element type.

Operand and result differ in device or type, so neither uses `op`; each records its node itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ag.autograd.create import fetch_cotangent, place_cotangent
from ag.autograd.op import Cotangents, documented
from ag.autograd.operands import as_numbers, converted_on_host, to_buffer
from ag.autograd.tape import Node, is_recording, refuse_changed, repeated_since
from ag.autograd.tensor import OPS, Tensor, register, tensor_given
from ag.engine.buffer import Buffer
from ag.engine.device import backend_of
from ag.engine.dtype import BF16, BOOL, F16, F32, F64, I32, U32, as_dtype
from ag.engine.interpreter import current
from ag.engine.kernels.convert import converted, from_whole
from ag.engine.kernels.elementwise import copied
from ag.errors import DtypeError

__all__ = ["ag_cast", "ag_to_device"]

_FLOATS = (F32, F16, BF16)


def _result(out: Buffer, t: Tensor, name: str, rule: Callable[..., Cotangents], saved: object = None,
            half: bool = False) -> Tensor:
    """A tensor made of `t`, with a node if gradients flow back."""
    if not (is_recording() and t.requires_grad):
        return Tensor(out)
    return Tensor(out, True, Node(name, rule, (t,), (True,), saved, (), half))


@documented
def ag_to_device(t: Tensor, device: str) -> Tensor:
    """A tensor on another device; gradients flow back.

    The values go through the host, so this waits for the source device and cannot be part of a captured step.

    Parameters
    ----------
    t : Tensor
    device : str

    Returns
    -------
    Tensor of the same shape
        `t` itself if it is there already.

    >>> ag.ag_to_device(ag.ag_tensor([1.0]), "cpu:1").device
    'cpu:1'
    """
    source, target = tensor_given("ag_to_device", t).buffer.backend, backend_of(device)
    if source is target:
        return t
    refuse_changed((t.buffer,), repeated_since(), "ag_to_device", (t,))
    if (here := current()) is not None:
        here.uses((t,), is_recording() is not False)
    moved = to_buffer(source.download(t.buffer), target, t.buffer.dtype)
    # true values, as the devices may have different loss scales
    result = _result(moved, t, "ag_to_device", lambda run, g, saved, need: (
        place_cotangent(fetch_cotangent(g), saved, g.dtype),), source)
    if here is not None:
        here.same(t, result)
    return result


@documented
def ag_cast(t: Tensor, dtype: str) -> Tensor:
    """A tensor with another element type; gradients flow back.

    Rounding is to the nearest, ties to even; what f16 cannot hold becomes infinite.  Nothing is cast to integers.

    Parameters
    ----------
    t : Tensor of any shape
        Of type f32, f16, bf16, i32 or u32.
    dtype : str
        ``"f32"``, ``"f16"`` or ``"bf16"``.

    Returns
    -------
    Tensor of the same shape
        `t` itself if it has that type already.

    >>> ag.ag_cast(ag.ag_tensor([[1.0001]]), "f16").item()
    1.0
    """
    wanted = as_dtype(dtype, "ag_cast")
    if tensor_given("ag_cast", t).buffer.dtype is wanted:
        return t
    if wanted is BOOL:
        return cast(Tensor, OPS["ne"](t if t.buffer.dtype.is_float else ag_cast(t, "f32"), 0.0))
    if t.buffer.dtype is BOOL and wanted is F64:
        return Tensor(converted_on_host(as_numbers(t.buffer, F32), F64))
    if wanted not in _FLOATS or t.buffer.dtype not in (*_FLOATS, I32, U32, BOOL):
        raise DtypeError(f"ag_cast: {t.dtype} to {wanted} was asked for; tensors are cast from f32, f16, bf16, i32 and "
                         f"u32 to f32, f16 and bf16. Convert the numpy array instead.")
    if (here := current()) is not None:
        here.uses((t,), is_recording() is not False)
    if t.buffer.dtype is BOOL:
        numbers = as_numbers(t.buffer, wanted)
        out = copied(numbers) if wanted is F32 else converted(numbers, wanted)
    elif not t.buffer.dtype.is_float:
        wide = t.buffer.backend.alloc(t.shape, F32)
        t.buffer.backend.launch(from_whole, t.buffer, into=wide, is_signed=int(t.buffer.dtype is I32))
        out = converted(wide, wanted)
    else:
        refuse_changed((t.buffer,), repeated_since(), "ag_cast", (t,))
        out = converted(t.buffer, wanted)
    # the tape stores a cotangent as its tensor is
    result = _result(out, t, "ag_cast", lambda run, g, saved, need: (g,), half=True)
    if here is not None:
        here.after_op(ag_cast, "ag_cast", (t,), (), result)
    return result


register("ag_cast", ag_cast)
