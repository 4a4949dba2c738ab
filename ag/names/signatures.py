"""What `help` and editors show as the way to make an object of a class.

Python takes the class's own signature from ``__init__``, and with it ``-> None``, which is what ``__init__`` returns
and not what the call does:

    help(ag.nn.Linear)      Linear(in_features: 'int', ..., bias: 'bool' = True) -> 'None'      without `Making`
                            Linear(in_features: 'int', ..., bias: 'bool' = True)                with it

A named tuple's says what a type is called in a way that only Python understands, which is left out, too.

Knows no class; those that users make objects of, or see results of, have a ``__signature__ = Making()``.
"""

from __future__ import annotations

from inspect import Signature, signature
from types import FunctionType, MethodType

__all__ = ["Making"]


class Making:
    """The ``__signature__`` of a class and of all that derive from it: that of its ``__init__``, returning nothing."""

    def __get__(self, instance: object, owner: type) -> Signature:
        if instance is None and issubclass(owner, tuple):
            return _of_fields(owner)
        init = next(vars(cls)["__init__"] for cls in owner.__mro__ if "__init__" in vars(cls))
        if instance is not None or not isinstance(init, FunctionType) or isinstance(owner.__new__, FunctionType):
            raise AttributeError("__signature__")  # then `inspect` does as it always does
        return signature(MethodType(init, owner)).replace(return_annotation=Signature.empty)


def _of_fields(named: type) -> Signature:
    """That of a named tuple."""
    _, *fields = signature(named.__new__).parameters.values()
    return Signature([field.replace(annotation=getattr(field.annotation, "__forward_arg__", field.annotation))
                      for field in fields])
