"""What the case table cannot say of its pointwise family: ties, far ends of functions."""

from __future__ import annotations

import numpy as np

import ag


def test_equal_maxima_share_the_gradient(device: str) -> None:
    x = ag.ag_param([[1.0, 3.0, 3.0], [5.0, 2.0, 4.0], [7.0, 7.0, 7.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_max(x, dim=1) * [1.0, 10.0, 100.0])
    want = np.array([[0, 0.5, 0.5], [10, 0, 0], [100 / 3] * 3], np.float32)
    np.testing.assert_allclose(ag.backward(loss)[x].numpy(), want, rtol=1e-6)


def test_activations_at_far_ends(device: str) -> None:
    """Neither value nor gradient overflows, where numbers are as large as float32 allows."""
    far = [[-3e38, -100.0, 100.0, 3e38]]
    for f in (ag.ag_silu, ag.ag_gelu, lambda x: ag.ag_gelu(x, "tanh")):
        x = ag.ag_param(far)
        with ag.with_grad_tape():
            y = f(x)
            loss = ag.ag_sum(y * 0.25)
        np.testing.assert_allclose(y.numpy(), [[0, 0, *far[0][2:]]], atol=1e-37)
        grads = ag.backward(loss)
        np.testing.assert_allclose(grads[x].numpy(), [[0, 0, 0.25, 0.25]], atol=1e-30)
