"""Multi-head attention between linear projections, the layer of transformers."""

from __future__ import annotations

from math import sqrt
from types import MappingProxyType

import numpy as np

from ag.autograd.create import ag_param
from ag.autograd.operands import as_input
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.random import host_uniform
from ag.engine.shape import counts, true_or_false
from ag.errors import ShapeError
from ag.nn.key_value_cache import Continued, KeyValueCache
from ag.nn.layer import Layer, Settings, number
from ag.ops.arithmetic import ag_add
from ag.ops.attention import attention_of_heads
from ag.ops.matmul import ag_matmul

__all__ = ["MultiheadAttention", "ag_multihead_attention"]


_rate = number("ag_multihead_attention: dropout", lambda x: 0 <= x < 1, "in [0, 1)")


class MultiheadAttention(Layer):
    """Attention of several heads between linear projections.

    Reference: ggmlR ``ag_multihead_attention``; Vaswani et al., "Attention Is All You Need", section 3.2.2.

    Parameters
    ----------
    d_model : int
        Features of inputs and outputs, a multiple of `n_heads`.
    n_heads : int
        Number of heads, at least 1; each works on ``d_model / n_heads`` neighbouring features.
    dropout : float, optional
        Probability, in [0, 1), that an attention weight is set to 0 while training.
    bias : bool, optional
        Whether there is a `b_o`.

    Attributes
    ----------
    W_q, W_k, W_v, W_o : Tensor of shape (d_model, d_model)
        Projections of queries, keys, values and output, initially Glorot-uniform.
    b_o : Tensor of shape (d_model, 1)
        Offset of the output, initially 0.

    Examples
    --------
    >>> ag.ag_multihead_attention(4, 2)(ag.ag_tensor([[1.0, 2.0, 3.0]] * 4), causal_mask=True).shape
    (4, 3)
    """

    _adjustable = MappingProxyType({"dropout": _rate})
    settings = ("d_model", "n_heads", "dropout", "bias")

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.0, bias: bool = True) -> None:
        if not counts(d_model, n_heads) or d_model % n_heads:
            raise ValueError(f"ag_multihead_attention: d_model is {d_model!r} and n_heads is {n_heads!r}; both must be "
                             f"whole numbers of at least 1, and d_model a multiple of n_heads.")
        self.d_model = int(d_model)
        self.n_heads = int(n_heads)
        self.dropout = _rate(dropout)
        self.bias = true_or_false("ag_multihead_attention", "bias", bias)
        self.W_q, self.W_k, self.W_v, self.W_o = (self._projection() for _ in range(4))
        if bias:
            self.b_o = ag_param(np.zeros((self.d_model, 1), np.float32))

    def _projection(self) -> Tensor:
        limit = sqrt(3 / self.d_model)
        return ag_param(host_uniform((self.d_model, self.d_model), -limit, limit))

    @classmethod
    def largest_tensor(cls, args: Settings) -> tuple[int, ...]:
        """The shape of each projection."""
        return args["d_model"], args["d_model"]

    def forward(self, q: TensorLike, k: TensorLike | None = None, v: TensorLike | None = None,
                causal_mask: bool = False, cache: KeyValueCache | None = None) -> Tensor:
        """Output of the shape of `q`, (d_model, time) or (d_model, time, batch); `k` is `q` by default, `v` is `k`.

        With a `cache`, `q` goes on where the last call ended, and sees what the calls before it have seen.
        """
        others = k is not None or v is not None
        q = as_input(q, self.W_q)
        k = q if k is None else as_input(k, self.W_k)
        v = k if v is None else as_input(v, self.W_v)
        for name, x in (("q", q), ("k", k), ("v", v)):
            if x.ndim not in (2, 3) or x.shape[0] != self.d_model:
                raise ShapeError(f"ag_multihead_attention: {name} is {x.shape}; ({self.d_model}, time) or "
                                 f"({self.d_model}, time, batch) is required.")
        rate = self.dropout if self.training else 0.0
        call = None if cache is None else Continued(cache, self, q, causal_mask, others)
        queries, keys, values = ag_matmul(self.W_q, q), ag_matmul(self.W_k, k), ag_matmul(self.W_v, v)
        if call is not None:
            causal_mask = call.is_first  # a later query is the last position, which sees all
            keys, values = call.joined(keys, values)
        heads = attention_of_heads(queries, keys, values, self.n_heads, causal_mask, rate)
        out = ag_matmul(self.W_o, heads)
        if self.bias:
            out = ag_add(out, self.b_o if out.ndim == 2 else self.b_o.reshape(self.d_model, 1, 1))
        if call is not None:
            call.keep()
        return out


ag_multihead_attention = MultiheadAttention
