"""Losses as layers under PyTorch's names: each keeps the arguments of a function of `ag.ops`."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature

import numpy as np

from ag import ops
from ag.autograd.create import ag_tensor
from ag.autograd.tensor import Tensor
from ag.names import wrong_arguments
from ag.nn.layer import Layer

__all__ = ["BCELoss", "BCEWithLogitsLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "GaussianNLLLoss",
           "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "MarginRankingLoss", "MultiMarginLoss",
           "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss", "TripletMarginLoss"]


def _layer(name: str, function: Callable[..., Tensor]) -> Callable[..., Layer]:
    """Make the layer of a loss."""
    parameters = signature(function).parameters.values()
    operands = [p for p in parameters if p.default is p.empty]
    own = signature(function).replace(parameters=[p for p in parameters if p.default is not p.empty])

    def made(self: Layer, *args: object, **options: object) -> None:
        try:
            given = own.bind(*args, **options)
        except TypeError:
            raise wrong_arguments(name, own, args, options) from None
        given.apply_defaults()
        for key, value in given.arguments.items():
            is_array = key.endswith("weight") and value is not None and not isinstance(value, Tensor)
            setattr(self, key, ag_tensor(value).reshape(np.shape(value)) if is_array else value)

    def forward(self: Layer, *given: object) -> Tensor:
        return function(*given, **{key: getattr(self, key) for key in self.settings})

    made.__dict__["__signature__"] = own.replace(
        parameters=[Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *own.parameters.values()])
    forward.__doc__ = f"The loss of {' and '.join(p.name for p in operands)}."
    doc = (f"`ag.ops.{function.__name__}` with its arguments.\n\nReference: PyTorch ``nn.{name}``.\n\n"
           f"Examples\n--------\n>>> ag.nn.{name}().settings[-1]\n{[*own.parameters][-1]!r}\n")
    return type(name, (Layer,), {"__init__": made, "forward": forward, "settings": tuple(own.parameters),
                                 "__module__": __name__, "__doc__": doc})


_FUNCTIONS = """binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy
    gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss mse_loss margin_ranking_loss multi_margin_loss
    nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss"""
(BCELoss, BCEWithLogitsLoss, CosineEmbeddingLoss, CrossEntropyLoss, GaussianNLLLoss, HingeEmbeddingLoss, HuberLoss,
 KLDivLoss, L1Loss, MSELoss, MarginRankingLoss, MultiMarginLoss, NLLLoss, PoissonNLLLoss, SmoothL1Loss, SoftMarginLoss,
 TripletMarginLoss) = (_layer(name, getattr(ops, function))
                       for name, function in zip(__all__, _FUNCTIONS.split(), strict=True))
