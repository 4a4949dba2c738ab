"""Layouts of well-known models' files for `load_weights`.  torchvision's ResNets need none."""

from __future__ import annotations

import re

__all__ = ["gpt2"]


def gpt2(name: str) -> str | None:
    """Return what `load_weights` makes of a tensor of Hugging Face's GPT-2: a name, with ".T" where it is turned.

    The matrices of its ``Conv1D``, ``c_attn``, ``c_proj`` and ``c_fc``, are [in, out].  Masks are left out, and so is
    a prefix ``transformer.``.

    Reference: transformers ``GPT2LMHeadModel``.

    Parameters
    ----------
    name : str
        In the file.

    Returns
    -------
    str or None
        The name in a model whose layers are called as there.

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
