"""Layouts of well-known models' files for `load_weights`.  torchvision's ResNets need none."""

from __future__ import annotations

import re

__all__ = ["gpt2"]


def gpt2(name: str) -> str | None:
    """Return the name of a tensor of Hugging Face's GPT-2 for `load_weights`, with ".T" where it is turned.

    The model's layers are called as there.  Matrices of ``Conv1D`` (``c_attn``, ``c_proj``, ``c_fc``) are [in, out].
    Masks are left out, for which this is None, and so is a prefix ``transformer.``.
    Reference: transformers ``GPT2LMHeadModel``.

    Examples
    --------
    >>> ag.io.layouts.gpt2("transformer.h.0.attn.c_proj.weight")
    'h.0.attn.c_proj.weight.T'
    >>> ag.io.layouts.gpt2("h.0.ln_1.weight")
    'h.0.ln_1.weight'
    """
    name = name.removeprefix("transformer.")
    if name.endswith((".attn.bias", ".attn.masked_bias")):
        return None
    return f"{name}.T" if re.search(r"\.(c_attn|c_proj|c_fc)\.weight$", name) else name
