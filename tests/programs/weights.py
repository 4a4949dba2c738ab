"""Numbers of a `Draw` for whole models, in the order of their parameters; the factors of norms are near 1."""

from __future__ import annotations

from typing import Any

from programs.drawn import Draw

import ag


def fill(model: ag.Layer, draw: Draw) -> None:
    for name, p in model.parameters().items():
        if p.requires_grad:
            p.data = draw(*p.shape) + float(name.endswith("gamma"))


def fill_torch(model: Any, draw: Draw) -> None:
    """Give a PyTorch model the same numbers; its tables and own parameters are (features, n) here, so they turn."""
    done = set()
    for module in model.modules():
        attention = type(module).__name__ == "MultiheadAttention"  # whose products come before the offsets here
        named = [(name, module.get_parameter(name)) for name in (
            "in_proj_weight", "out_proj.weight", "in_proj_bias", "out_proj.bias")] if attention else [
            *module.named_parameters(recurse=False)]
        turned = type(module).__name__ == "Embedding" or not type(module).__module__.startswith("torch.nn")
        for name, p in named:
            if id(p) not in done and p.requires_grad:
                array = draw(*p.shape[::-1]).T if turned else draw(*p.shape)
                p.data.copy_(p.data.new_tensor(array + float("Norm" in type(module).__name__ and name == "weight")))
                done.add(id(p))
