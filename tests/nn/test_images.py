"""Images: what the case table cannot say about pooling and the layers made of convolution and pooling."""

from __future__ import annotations

import numpy as np

import ag

NAN, INF = float("nan"), float("inf")


def pooled(image: list[list[float]], **params: int) -> tuple[list[float], list[float]]:
    """One image's maxima, and how often each pixel is one."""
    x = ag.ag_param(np.array(image)[None, :, :, None])
    with ag.with_grad_tape():
        y = ag.ag_max_pool2d(x, **params)
        loss = ag.ag_sum(y)
    return y.numpy().ravel().tolist(), ag.backward(loss)[x].numpy().ravel().tolist()


def test_the_gradient_goes_to_the_first_maximum(device: str) -> None:
    assert pooled([[1, 3], [3, 3]], size=2) == ([3.0], [0.0, 1.0, 0.0, 0.0])
    assert pooled([[2, 2, 2]], size=1, stride=1) == ([2.0] * 3, [1.0] * 3)
    assert pooled([[5, 5, 5], [5, 5, 5]], size=2, stride=1) == ([5.0, 5.0], [1.0, 1.0, 0.0, 0.0, 0.0, 0.0])


def test_padding_is_never_a_maximum(device: str) -> None:
    assert pooled([[-3, -2], [-4, -5]], size=2, padding=1) == ([-3.0, -2.0, -4.0, -5.0], [1.0] * 4)
    assert pooled([[-INF]], size=2, padding=1) == ([-INF], [1.0])


def test_nan_is_the_largest_number(device: str) -> None:
    (largest,), gradient = pooled([[INF, NAN], [NAN, 1]], size=2)
    assert np.isnan(largest) and gradient == [0.0, 1.0, 0.0, 0.0]


def test_average_pooling_counts_padding(device: str) -> None:
    assert ag.ag_avg_pool2d(np.full((1, 1, 1, 1), 8.0), 2, padding=1).numpy().ravel().tolist() == [2.0]


def make_model() -> ag.Layer:
    down = ag.ag_conv2d_layer(4, 6, (1, 1), stride=2, bias=False)
    body = ag.ag_sequential(ag.ag_conv2d_layer(4, 6, 3, 2, 1, "relu"), ag.ag_dropout(0.5))
    return ag.ag_sequential(
        ag.ag_conv2d_layer(3, 4, 3, padding=1), ag.ag_max_pool(2), ag.ag_residual(body, down, "relu"),
        ag.ag_avg_pool(2, 1, 1), ag.ag_flatten_layer())


def test_names_and_shapes_of_parameters(device: str) -> None:
    model = make_model()
    assert {name: p.shape for name, p in model.parameters().items()} == {
        "layer1_W": (4, 3, 3, 3), "layer1_b": (4, 1), "layer3_body_layer1_W": (6, 4, 3, 3),
        "layer3_body_layer1_b": (6, 1), "layer3_shortcut_W": (6, 4, 1, 1)}
    assert model(np.ones((3, 8, 8, 5))).shape == (6 * 3 * 3, 5)
    assert not ag.ag_eval(model)[2].body[1].training
    assert "body: Sequential()" in repr(model) and "MaxPool(size=(2, 2), stride=(2, 2), padding=(0, 0))" in repr(model)


def test_initial_weights_count_taps() -> None:
    ag.ag_seed(1)
    layer = ag.ag_conv2d_layer(20, 30, (3, 5))
    W, limit = layer.W.numpy(), np.sqrt(6 / (15 * 50))
    assert W.min() >= -limit and W.max() <= limit and abs(W.std() - limit / np.sqrt(3)) < 0.01 * limit
    assert not layer.b.numpy().any()
