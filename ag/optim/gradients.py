"""Gradients as users give them: by parameter or by name, tensors or arrays, or those that `backward` left.

    None            every parameter's ``.grad``
    Gradients       what `backward` returned; parameters that it does not know have none
    a dict          every key must be one of the parameters or its name: a misspelt one would train nothing

Knows parameters and gradients; no optimizer.  Optimizers and `clip_grad_norm` call it, and ZeRO.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from ag.autograd.create import ag_tensor
from ag.autograd.tape import Gradients
from ag.autograd.tensor import Tensor
from ag.errors import DtypeError
from ag.optim.settings import nearest

__all__ = ["as_gradient", "gradients_given", "refuse_untrained"]


def gradients_given(params: Mapping[str, Tensor], grads: object, function: str) -> dict[str, Any]:
    """What was given as gradient of each parameter that has one, by the parameter's name.

    Raises
    ------
    TypeError
        If `grads` is no mapping.
    ValueError
        If a key of a dict is no parameter and no parameter's name, or a parameter is there twice.
    """
    if grads is None:
        return {name: p.grad for name, p in params.items() if p.grad is not None}
    if isinstance(grads, Gradients):
        return {name: g for name, p in params.items() if (g := grads.get(p)) is not None}
    if not isinstance(grads, Mapping):
        raise TypeError(f"{function}: gradients are given as a {type(grads).__name__}; pass what backward returned, a "
                        f"dict by name or by parameter, or nothing.")
    names = {p.id: name for name, p in params.items()}
    given: dict[str, Any] = {}
    for key, gradient in grads.items():
        name = names.get(key.id) if isinstance(key, Tensor) else key
        if not isinstance(name, str) or name not in params:
            raise ValueError(f"{function}: a gradient of {_called(key)} is given, which is no parameter here; there "
                             f"are {_listed(params)}.{nearest(name, params)}")
        if name in given:
            raise ValueError(f"{function}: two gradients of {name!r} are given, by name and by parameter; give one.")
        if gradient is not None:
            given[name] = gradient
    return given


def refuse_untrained(model: Any, params: Mapping[str, Tensor], function: str, elsewhere: Container[int] = ()) -> None:
    """Refuse a model that has parameters beside `params` now: they would not be trained.

    `elsewhere` has the ids of those that other optimizers step.
    """
    mine = {p.id for p in params.values()}
    if model is None or (hasattr(model, "has_beside") and not model.has_beside(mine)):
        return
    others = [name for name, p in model.parameters().items() if p.id not in mine and p.id not in elsewhere]
    if others:
        raise ValueError(f"{function}: {', '.join(others[:8])} of the model came after the optimizer was made, which "
                         f"would not train {'it' if len(others) == 1 else 'them'}; make another optimizer, or "
                         f"begin another training, after parameters are added, replaced or unfrozen.")


def as_gradient(name: str, p: Tensor, gradient: object, function: str) -> Tensor:
    """A parameter's gradient as a tensor of the type that gradients have."""
    wanted = "f32" if p.buffer.dtype.is_half else p.dtype
    if not isinstance(gradient, Tensor):
        return ag_tensor(gradient, device=p.device, dtype=wanted)
    if gradient.dtype != wanted:
        raise DtypeError(f"{function}: the gradient of {name!r} has type {gradient.dtype}; {wanted} is required. "
                         f"Convert it with t.astype({wanted!r}).")
    return gradient


def _called(key: object) -> str:
    if isinstance(key, Tensor):
        return f"a tensor of shape {key.shape}" + (f" called {key.name!r}" if key.name else "")
    return repr(key)


def _listed(params: Mapping[str, Tensor]) -> str:
    names = list(params)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
