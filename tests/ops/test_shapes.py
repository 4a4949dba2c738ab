"""Arguments of functions that move elements, as PyTorch takes them."""

from __future__ import annotations

import numpy as np
from helpers.errors import expect_error

import ag
from ag import ops

X = np.arange(24.0).reshape(2, 3, 4)


def test_several_axes_move_at_once(device: str) -> None:
    with ag.ag_device(device):
        for source, destination in ((0, -1), ((0, 1), (1, 2)), ([2, 0], [0, 1]), ((), ())):
            assert np.array_equal(ops.movedim(X, source, destination).numpy(), np.moveaxis(X, source, destination))
    for source, destination in (((0, 1), 0), ((0, 0), (1, 2)), ((0, 1), (2, -1))):
        with expect_error("axes twice", ag.ShapeError, "movedim: source is", "as many different axes"):
            ops.movedim(X, source, destination)


def test_listed_numbers_have_a_keyword() -> None:
    x = ag.ag_tensor(X)
    assert np.array_equal(x.flip(dims=(0, 2)).numpy(), np.flip(X, (0, 2)))
    assert ops.permute(x, dims=(2, 0, 1)).shape == (4, 2, 3) and x.permute(dims=[2, 0, 1]).shape == (4, 2, 3)
    with expect_error("a keyword that is none", TypeError, "flip", "axes"):
        x.flip(axes=(0, 2))


def test_negative_widths_cut_off(device: str) -> None:
    with ag.ag_device(device):
        p = ag.ag_param(X)
        with ag.with_grad_tape():
            y = ops.pad(p, (-1, 2), value=7.0)  # the axis of 3
            loss = ag.ag_sum(y)
        want = np.pad(X[:, 1:], ((0, 0), (0, 2), (0, 0)), constant_values=7.0)
        assert np.array_equal(y.numpy(), want)
        assert np.array_equal(ag.backward(loss)[p].numpy()[:, :, 0], [[0, 1, 1], [0, 1, 1]])
        assert ops.pad(X, (-2, -1)).shape == (2, 0, 4)
        edge = ops.pad(X, (-1, 1), "replicate").numpy()
        assert np.array_equal(edge, np.concatenate([X[:, 1:], X[:, -1:]], 1))
    with expect_error("more than there is", ag.ShapeError, "pad: widths -2 and -2 of an axis of 3 places"):
        ops.pad(X, (-2, -2))
    with expect_error("none left to reflect", ag.ShapeError, "pad: widths 0 and 1", "reflect"):
        ops.pad(X, (-2, 1), "reflect")


def test_elements_without_an_axis_are_a_row(device: str) -> None:
    with ag.ag_device(device):
        ids = ag.ag_tensor([[1, 0], [23, 5]], dtype="i32")
        assert ops.take_along_dim(X, ids).numpy().tolist() == [1.0, 0.0, 23.0, 5.0]
        assert ops.take_along_dim(X, ids.reshape(-1)).shape == (4,)


def test_a_number_has_an_axis_that_is_none(device: str) -> None:
    with ag.ag_device(device):
        x = ag.ag_tensor([[3.0]]).reshape()
        for dim in (0, -1):
            assert [f(x, dim=dim).item() for f in (ops.sum, ops.mean, ops.prod, ops.max, ops.norm)] == [3.0] * 5
            assert ops.logsumexp(x, dim, keepdim=True).shape == ()
        assert [g.shape for g in ops.meshgrid(x, [1.0, 2.0])] == [(1, 2), (1, 2)]
    with expect_error("another axis", ag.ShapeError, "dim 1 of a tensor with 0 axes"):
        ops.sum(x, dim=1)
