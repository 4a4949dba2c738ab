"""Ops that are methods of PyTorch's tensors are methods here: the names are those of torch.Tensor in torch 2.x."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import ag
from ag import ops
from ag.autograd import tensor

TORCH = set(re.findall(r"\w+", """
abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr adjoint all allclose amax amin aminmax angle any
arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort argwhere asin asinh atan atan2 atanh baddbmm
bernoulli bincount bitwise_and bitwise_not bitwise_or bitwise_xor bmm broadcast_to ceil cholesky chunk clamp clamp_max
clamp_min clip clone copysign corrcoef cos cosh count_nonzero cov cross cummax cummin cumprod cumsum deg2rad det detach
diag diag_embed diagflat diagonal diff digamma dist divide dot dsplit eq equal erf erfc erfinv exp exp2 expand expand_as
expm1 fix flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod frac gather ge greater greater_equal
gt hardshrink heaviside histc hsplit hypot index_add index_copy index_fill index_select inner inverse isclose isfinite
isinf isnan kron kthvalue ldexp le lerp less less_equal lgamma log log10 log1p log2 log_softmax logaddexp logaddexp2
logcumsumexp logdet logical_and logical_not logical_or logical_xor logit logsumexp lt masked_fill masked_scatter
masked_select matmul matrix_exp matrix_power max maximum mean median min minimum mm mode moveaxis movedim msort mul
multinomial multiply mv nan_to_num nanmean nanmedian nanquantile nansum narrow ne neg negative nonzero norm not_equal
outer permute pinverse positive pow prelu prod qr quantile rad2deg ravel reciprocal relu remainder renorm repeat
repeat_interleave reshape roll rot90 round rsqrt scatter scatter_add scatter_reduce select sgn sigmoid sign signbit sin
sinc sinh slogdet softmax solve sort split sqrt square squeeze std sub subtract sum svd swapaxes swapdims t take
take_along_dim tan tanh tensor_split tile topk trace transpose triangular_solve tril triu true_divide trunc unbind
unflatten unfold unique unsqueeze var vdot view vsplit where xlogy
"""))
# PyTorch's flatten has no batch that stays, its transpose exchanges two axes, its method unfold is not its function.
OTHERWISE = {"flatten", "transpose", "unfold"}


def test_every_op_that_is_a_method_of_pytorchs_tensors_is_one() -> None:
    shared = TORCH.intersection(dir(ops)) - OTHERWISE
    assert len(shared) > 110
    assert not [name for name in shared if not callable(getattr(ag.Tensor, name, None))]
    assert not [name for name in OTHERWISE if hasattr(ag.Tensor, name)]


def test_type_checkers_know_them() -> None:
    text = Path(tensor.__file__).read_text("utf-8")
    known = set(re.findall(r"(\w+)(?= =)|def (\w+)", text)) | set(re.findall(r"\b\w+\b", " ".join(
        re.findall(r"^        (\w+(?: = \w+)+)$", text, re.M))))
    names = {name for found in known for name in ([found] if isinstance(found, str) else found)}
    assert not TORCH.intersection(dir(ops)) - OTHERWISE - names


def test_methods_are_the_functions(device: str) -> None:
    with ag.ag_device(device):
        x, y = ag.ag_tensor([[0.25, 2.0], [1.0, 0.5]]), ag.ag_tensor([[1.0, 2.0], [3.0, 4.0]])
        for name in ("exp", "log", "sqrt", "abs", "relu", "sigmoid", "tanh", "softmax", "log_softmax", "max"):
            assert np.array_equal(getattr(x, name)().numpy(), getattr(ops, name)(x).numpy()), name
        for name in ("add", "sub", "mul", "div", "matmul", "pow", "outer" if x.ndim == 1 else "kron"):
            want = ops.power(x, y) if name == "pow" else getattr(ops, name)(x, y)
            assert np.array_equal(getattr(x, name)(y).numpy(), want.numpy()), name
        assert np.array_equal(x.pow(2).numpy(), x.numpy() ** 2) and x.clamp(0.5, 1.0).numpy().max() == 1.0
        assert np.array_equal(x.softmax(dim=1).numpy(), ops.softmax(x, 1).numpy()) and x.max(dim=0).shape == (2,)
        assert np.array_equal(x.max(axis=1, keepdims=True).numpy(), x.numpy().max(axis=1, keepdims=True))
        w = ag.ag_param([[1.0, -2.0]])
        with ag.with_grad_tape():
            loss = w.relu().add(w.mul(3.0)).sum()
        assert ag.backward(loss)[w].numpy().tolist() == [[4.0, 3.0]]
