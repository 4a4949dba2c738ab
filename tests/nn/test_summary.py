"""`summary`: shapes, parameters, bytes and multiply-adds, against numbers that are counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag import nn
from ag.nn.summaries import _PRODUCTS


def row_of(model: Any, x: Any, name: str) -> Any:
    return next(row for row in ag.summary(model, x) if row.name.strip().startswith(name))


def test_a_convolutional_model() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, activation="relu"), nn.BatchNorm(16), nn.MaxPool(2),
                          nn.Flatten(), nn.Linear(16 * 4 * 4, 10))
    found = ag.summary(model, (3, 8, 8))
    assert [row.output for row in found] == [
        (10, "batch"), (16, 8, 8, "batch"), (16, 8, 8, "batch"), (16, 4, 4, "batch"), (256, "batch"), (10, "batch")]
    assert [row.trained for row in found] == [0, 448, 32, 0, 0, 2570]
    assert [row.other for row in found] == [0, 0, 32, 0, 0, 0]
    assert [row.multiply_adds for row in found] == [0, 16 * 64 * 27, 0, 0, 0, 2560]
    assert found[3].memory == 16 * 4 * 4 * 4 and found[5].memory == 4 * 2570 + 4 * 10
    assert found.total("trained") == model.n_parameters == 3050
    assert found.total("multiply_adds") == 27648 + 2560


def test_it_is_shown_as_a_table() -> None:
    model = nn.Sequential(nn.Residual(nn.Linear(4, 4)), nn.Linear(4, 300))
    lines = repr(ag.summary(model, (4,))).splitlines()
    assert [line.split()[0] for line in lines] == ["layer", "Sequential", "layer1:", "body:", "layer2:", "total"]
    assert lines[3].startswith("    body: Linear") and "(4, batch)" in lines[3] and lines[-1].split()[1:] == [
        "1,520", "7,312", "1,216"]
    assert "<pre>layer " in ag.summary(model, (4,))._repr_html_() and "&#x27;" in nn.Linear(2, 2, "relu")._repr_html_()


@pytest.mark.parametrize("options", [{"stride": 2, "groups": 2}, {"dilation": 2}, {"groups": 4}])
def test_convolutions(options: dict[str, Any]) -> None:
    """Ones convolved with ones, without padding, count their own products."""
    class Ones(ag.Layer):
        def forward(self, x: Any) -> Any:
            w = np.ones((8, 4 // options.get("groups", 1), 3, 2), np.float32)
            return ag.ag_conv2d(np.ones(np.shape(x), np.float32), w, **options)

    x = np.ones((4, 9, 9, 2), np.float32)
    assert ag.summary(Ones(), x).total("multiply_adds") == Ones()(x).numpy().sum()


def test_attention_and_inputs_that_are_given() -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.MultiheadAttention(8, 2), nn.LayerNorm(8))
    one, batch = ag.summary(model, (5,)), ag.summary(model, np.zeros((5, 3), int))
    assert one.total("multiply_adds") == 4 * 8 * 8 * 5 + 2 * 8 * 5 * 5
    assert batch.total("multiply_adds") == 3 * one.total("multiply_adds")
    assert one[-1].output == (8, 5, "batch") and batch[-1].output == (8, 5, 3)


def test_every_op_with_products_is_counted() -> None:
    """Each is called in the examples of the library's layers and ops."""
    x, q = np.ones((4, 2), np.float32), np.ones((4, 3, 2), np.float32)

    class All(ag.Layer):
        def forward(self, x: Any) -> Any:
            ag.ag_attention(q, q, q)
            return ag.ag_matmul(np.ones((2, 4), np.float32), x) * 2

    assert ag.summary(All(), x).total("multiply_adds") == 2 * 4 * 2 + 2 * 4 * 3 * 3 * 2
    assert {*_PRODUCTS} == {"ag_matmul", "ag_linear", "ag_conv2d", "ag_attention", "ag_multihead_attention",
                            "conv_transpose2d"}


def test_nothing_changes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm(4), nn.Dropout(0.5))
    model[1].eval()
    before, modes = model.state_dict(), [layer.training for _, layer in model.modules()]
    ag.ag_seed(1)
    first = np.asarray(ag.ag_linear(2, 2).W)
    ag.ag_seed(1)
    ag.summary(model, (4,))
    with pytest.raises(ag.ShapeError):
        ag.summary(model, (5,))
    assert np.array_equal(np.asarray(ag.ag_linear(2, 2).W), first)
    assert all(np.array_equal(x, before[name]) for name, x in model.state_dict().items())
    assert modes == [layer.training for _, layer in model.modules()]
    assert not any("forward" in vars(layer) for _, layer in model.modules())


def test_shared_frozen_and_unused_layers() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Linear(4, 4), shared)
    model[1].freeze()
    found = ag.summary(model, (4,))
    assert len(found) == 3 and found.total("trained") == found.total("other") == 20
    assert found.total("multiply_adds") == 48

    class Unused(ag.Layer):
        def __init__(self) -> None:
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return {"logits": self.used(x)}

    assert [row.output for row in ag.summary(Unused(), (4,))] == ["dict", (2, "batch"), None]
    assert "not called" in repr(ag.summary(Unused(), (4,)))


def test_a_layer_that_looks_at_its_parameters() -> None:
    class Decayed(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * float(len(self.parameters()))

    assert ag.summary(nn.Sequential(Decayed(4, 3)), (4,)).total("multiply_adds") == 12
    layer = nn.Linear(4, 3)
    layer.forward = lambda x: ag.ag_tensor(np.zeros((2, 1)))  # type: ignore[method-assign]
    assert ag.summary(layer, (4,))[0].output == (2, "batch") and layer(0).shape == (2, 1)
    alone = ag.DataParallel(nn.Linear(4, 3), device_ids=["cpu"])
    assert ag.summary(alone, (4,)).total("multiply_adds") == 12


def test_random_numbers_go_on_as_without_it() -> None:
    class Dropping(ag.Layer):
        def forward(self, x: Any) -> Any:
            return ag.ag_attention(x, x, x, dropout=0.5)

    x, model = np.ones((4, 9), np.float32), Dropping()
    ag.ag_seed(1)
    expected = model(x).numpy()
    ag.ag_seed(1)
    ag.summary(model, x)
    np.testing.assert_array_equal(model(x).numpy(), expected)


def test_on_vulkan(lavapipe: str) -> None:
    with ag.ag_device(lavapipe):
        model = nn.Linear(4, 3)
    assert ag.summary(model, (4,)) == ag.summary(nn.Linear(4, 3), (4,))


def test_what_cannot_be_summed_up() -> None:
    with expect_error("a class", TypeError, "summary: model is the class Linear; a layer is required"):
        ag.summary(nn.Linear, (4,))  # type: ignore[arg-type]
    replicas = ag.DataParallel(nn.Linear(4, 3), device_ids=["cpu", "cpu:1"])
    with expect_error("threads", ag.CommError, "summary: ", "give the model inside"):
        ag.summary(replicas, np.ones((4, 6), np.float32))
    assert ag.summary(replicas.module, (4,)).total("trained") == 15
