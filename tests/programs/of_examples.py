"""Begin the models of examples/ and their twins in PyTorch with the same numbers, and draw words."""

from __future__ import annotations

from typing import Any

import numpy as np
from programs.drawn import Array, Draw

import ag


def filled(model: ag.Layer, draw: Draw) -> ag.Layer:
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    return model


def filled_in_torch(draw: Draw, *models: Any) -> None:
    from torch import nn, tensor

    for module in (module for model in models for module in model.modules()):
        for p in module.parameters(recurse=False):
            turned = isinstance(module, nn.Embedding)
            p.data = tensor((draw(*p.shape[::-1]).T if turned else draw(*p.shape)).copy())


def words(draw: Draw) -> tuple[Array, ...]:
    """Letters, lengths, the answer so far, and what follows, which is -100 behind the word's end."""
    lengths = draw.ids(8, 1, 64) + 3
    following = np.where(np.arange(11)[:, None] <= lengths, draw.ids(27, 11, 64), -100)
    return draw.ids(27, 11, 64), lengths.astype("f"), draw.ids(27, 11, 64), following
