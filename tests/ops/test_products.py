"""Products of two operands and a weight, with biases and several axes of samples."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag import ops

RNG = np.random.default_rng(0)
WEIGHT, BIAS = RNG.normal(size=(4, 2, 3)), RNG.normal(size=4)


def test_a_bias_of_bilinear_belongs_to_outputs(device: str) -> None:
    x1, x2 = RNG.normal(size=(2, 4)), RNG.normal(size=(3, 4))  # as many samples as outputs
    want = np.einsum("oij,ib,jb->ob", WEIGHT, x1, x2) + BIAS[:, None]
    with ag.ag_device(device):
        for bias in (BIAS, BIAS[:, None], ag.ag_tensor(BIAS), ag.ag_tensor(BIAS).reshape(4)):
            assert np.allclose(ops.bilinear(x1, x2, WEIGHT, bias).numpy(), want, atol=1e-5)


def test_samples_of_bilinear_have_any_axes(device: str) -> None:
    x1, x2 = RNG.normal(size=(2, 5, 3)), RNG.normal(size=(3, 5, 3))
    want = np.einsum("oij,ibt,jbt->obt", WEIGHT, x1, x2) + BIAS[:, None, None]
    with ag.ag_device(device):
        assert np.allclose(ops.bilinear(x1, x2, WEIGHT, BIAS).numpy(), want, atol=1e-5)
        assert ops.bilinear(x1[:, :0], x2[:, :0], WEIGHT, BIAS).shape == (4, 0, 3)
    with expect_error("other samples", ag.ShapeError, "bilinear: x1 is (2, 5, 3) and x2 is (3, 5)", "same batch"):
        ops.bilinear(x1, x2[:, :, 0], WEIGHT)


def test_the_gradient_of_bilinear() -> None:
    with ag.ag_device("cpu"), ag.ag_dtype("f64"):
        given = {"x1": RNG.normal(size=(2, 3, 2)), "x2": RNG.normal(size=(3, 3, 2)), "w": WEIGHT, "b": BIAS[:, None]}
        assert ag.ag_gradcheck(lambda t: ag.ag_sum(ops.square(ops.bilinear(t["x1"], t["x2"], t["w"], t["b"]))),
                               {name: ag.ag_param(value) for name, value in given.items()}, quiet=True)


def test_inner_refuses_vectors_of_other_lengths() -> None:
    assert ops.inner(ag.ag_tensor([1.0, 2.0]).reshape(2), ag.ag_tensor([3.0, 4.0]).reshape(2)).item() == 11.0
    with expect_error("one number beside three", ag.ShapeError, "inner: the operands are (1, 1) and (1, 3)"):
        ops.inner([[2.0]], [[1.0, 1.0, 1.0]])


def test_a_diagonal_needs_axes_of_one_size() -> None:
    for shape in ((1, 3), (3, 1)):
        with expect_error("a row or a column", ag.ShapeError, f"einsum: axes 'i' of an operand have {shape[0]} and "):
            ops.einsum("ii->i", np.ones(shape))


@pytest.mark.parametrize(("first", "second", "equation"), [
    ((8, 512, 9), (512, 300, 9), "mkb,knb->mnb"), ((512, 8, 9), (512, 300, 9), "kmb,knb->mnb"),
    ((8, 512, 9), (300, 512, 9), "mkb,nkb->mnb"), ((512, 8, 9), (300, 512, 9), "kmb,nkb->mnb")])
def test_the_larger_factor_of_samples_may_be_any(device: str, first: tuple[int, ...], second: tuple[int, ...],
                                                 equation: str) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=shape) for shape in (first, second))
    want = np.einsum(equation, x, y)
    got = ops.einsum(equation, ag.ag_tensor(x, device=device), ag.ag_tensor(y, device=device)).numpy()
    assert np.abs(got - want).max() < 2e-5 * np.abs(want).max()
