"""Whole models as ONNX files: equal in onnxruntime for batches of any size, with names that a reader knows."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.onnx_layout import as_in_file

import ag

Check = Callable[..., Path]
RNG = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def trained(model: Any, x: Any) -> Any:
    """The model with running averages that are not those of the beginning, in train mode."""
    ag.ag_train(model)(x)
    for name, p in model.named_tensors().items():
        if name.endswith(("_b", "beta", "b_o")):
            p.data = 0.1 * RNG.standard_normal(p.shape)
    return model


def operators(path: Path) -> Counter[str]:
    onnx = pytest.importorskip("onnx")
    return Counter(node.op_type for node in onnx.load(str(path)).graph.node)


def graph_of(path: Path) -> Any:
    return pytest.importorskip("onnx").load(str(path)).graph


def test_a_perceptron_with_batch_norm(same_in_onnx: Check) -> None:
    model = ag.ag_sequential(ag.ag_linear(4, 8, activation="relu"), ag.ag_batch_norm(8), ag.ag_dropout(0.5),
                             ag.ag_linear(8, 3, activation="softmax"))
    path = same_in_onnx(trained(model, numbers(4, 20)), {"x": numbers(4, 5)})
    graph = graph_of(path)
    assert [x.name for x in graph.input] == ["x"] and [x.name for x in graph.output] == ["output"]
    for x, features in ((graph.input[0], 4), (graph.output[0], 3)):
        batch, rows = x.type.tensor_type.shape.dim
        assert (rows.dim_value, batch.dim_param) == (features, "batch")
    assert model.state_dict().keys() <= {x.name for x in graph.initializer}
    assert operators(path)["Gemm"] == 2 and operators(path)["BatchNormalization"] == 1


def test_a_convolutional_network(same_in_onnx: Check) -> None:
    model = ag.ag_sequential(
        ag.ag_conv2d_layer(3, 6, 3, padding=1, activation="relu"), ag.ag_batch_norm(6), ag.ag_max_pool(2),
        ag.ag_conv2d_layer(6, 4, 3, stride=2, activation="silu", bias=False), ag.ag_avg_pool(2, 1),
        ag.ag_flatten_layer(), ag.ag_linear(4, 5))
    found = operators(same_in_onnx(trained(model, numbers(3, 12, 12, 6)), {"x": numbers(3, 12, 12, 4)}))
    assert found["Conv"] == 2 and not found["Transpose"]


def test_a_model_in_replicas(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    model, path, other = ag.ag_linear(4, 3), tmp_path / "one.onnx", tmp_path / "replicas.onnx"
    ag.export_onnx(model, path, numbers(4, 5))
    ag.export_onnx(ag.DataParallel(model, ["cpu", "cpu:1"]), other, numbers(4, 5))
    assert other.read_bytes() == path.read_bytes()


def test_a_resnet(same_in_onnx: Check) -> None:
    model = ag.ag_resnet(18, 10, width=4, small_input=True)
    found = operators(same_in_onnx(trained(model, numbers(3, 8, 8, 4)), {"x": numbers(3, 8, 8, 2)}, (1, 3)))
    assert found["Conv"] == 20 and found["BatchNormalization"] == 20 and not found["Transpose"]


def test_the_transformer_of_the_examples(same_in_onnx: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples"))
    import text_transformer as example

    monkeypatch.delitem(sys.modules, "text_transformer")
    model = example.Transformer()
    model.places.data = 0.1 * numbers(*model.places.shape)
    ids = RNG.integers(0, len(example.ALPHABET), (9, 3))
    path = same_in_onnx(model, {"ids": ids})
    found = operators(path)
    assert found["LayerNormalization"] == 5 and found["Gelu"] == 2 and found["Softmax"] == 2 and found["Where"] == 2
    assert graph_of(path).input[0].type.tensor_type.elem_type == 7  # int64, as the example is


def test_reshape_transpose_and_slice_along_the_batch(same_in_onnx: Check) -> None:
    def model(x: Any) -> Any:
        samples = x.shape[-1]
        y = ag.ag_transpose(x.reshape(2, 3, samples), 2, 0, 1)  # (batch, 2, 3)
        z = y.reshape(samples * 2, 3)[::-1, 1:]
        both = ag.ag_concat([z.reshape(samples, 4).T, x[-2:]])
        return both, x[:, -1], x[None, ::2, :-1], ag.ag_reshape(x, -1), x[:2, samples - 1 :]

    same_in_onnx(model, {"x": numbers(6, 5)})


def test_two_sizes_that_follow_the_batch(same_in_onnx: Check) -> None:
    def model(x: Any) -> Any:
        n = x.shape[-1]
        gram = x.T @ x  # (batch, batch)
        return gram.reshape(1, n, n) * 0.5, ag.ag_concat([gram, gram], 0).reshape(n, 2 * n, 1)

    same_in_onnx(model, {"x": numbers(3, 4)})


def test_attention_whose_time_is_the_batch_axis(same_in_onnx: Check) -> None:
    layer = ag.ag_multihead_attention(6, 2)
    same_in_onnx(lambda x: layer(x, causal_mask=True), {"x": numbers(6, 4)})


def test_zeros_as_long_as_the_batch(same_in_onnx: Check) -> None:
    layer = ag.ag_linear(5, 2, "tanh")

    class Cell(ag.Layer):
        def __init__(self) -> None:
            self.cell = layer

        def forward(self, x: Any) -> Any:
            state = np.zeros((2, x.shape[-1]))
            for _ in range(3):
                state = self.cell(ag.ag_concat([x, state]))
            return state

    same_in_onnx(Cell(), {"x": numbers(3, 4)})


def test_a_sum_of_two_numbers(same_in_onnx: Check) -> None:
    """Neither has features, as a convolution that takes a bias would."""
    class Penalized(ag.Layer):
        def __init__(self) -> None:
            self.body = ag.ag_linear(3, 1)

        def forward(self, x: Any) -> Any:
            return ag.ag_mean(self.body(x)) + ag.ag_mean(x * x)

    same_in_onnx(Penalized(), {"x": numbers(3, 4)})


@pytest.mark.parametrize("batch_first", [True, False])
def test_several_inputs_and_outputs(batch_first: bool, run_onnx: Callable[..., Any], tmp_path: Path) -> None:
    class Two(ag.Layer):
        def __init__(self) -> None:
            self.W, self.unused = ag.ag_param(numbers(3, 4)), ag.ag_param(numbers(2, 2))

        def forward(self, left: Any, right: Any, W: Any) -> Any:
            y = self.W @ left
            return {"sum": y + right, "left": left, "W": self.W, "y": y, "same": y, "scaled": W * y}

    model, path = Two(), tmp_path / "two.onnx"
    inputs = {"left": numbers(4, 5), "right": numbers(3, 5), "W": numbers(3, 1)}
    ag.export_onnx(model, path, inputs, batch_first=batch_first)
    graph = graph_of(path)
    ours = dict(zip([x.name for x in graph.output], map(np.asarray, model(*inputs.values()).values()), strict=True))
    theirs = run_onnx(path, **as_in_file(path, {name if name != "W" else "W_input": x for name, x in inputs.items()}))
    for y, z in zip(as_in_file(path, ours).values(), theirs, strict=True):
        assert y.shape == z.shape and np.abs(y - z).max() <= 1e-5
    assert [x.name for x in graph.output] == ["sum", "left_output", "W_output", "y", "same", "scaled"]
    assert [x.name for x in graph.initializer] == ["W"]  # what is not used is not there, what is used twice is once


@pytest.mark.parametrize("batch_first", [True, False])
def test_half_precision(batch_first: bool, run_onnx: Callable[..., Any], tmp_path: Path) -> None:
    with ag.ag_dtype("f16"):
        model = ag.ag_sequential(ag.ag_linear(4, 8, activation="gelu"), ag.ag_layer_norm(8), ag.ag_rms_norm(8),
                                 ag.ag_linear(8, 3))
    x, path = numbers(4, 5).astype(np.float16), tmp_path / "half.onnx"
    ag.export_onnx(model, path, x, batch_first=batch_first)
    (found,) = run_onnx(path, x=x.T if batch_first else x)
    found = found.T if batch_first else found
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, model(ag.ag_tensor(x, dtype="f16")).numpy(), rtol=2e-3, atol=2e-3)
    assert {x.data_type for x in graph_of(path).initializer if x.name.startswith("layer")} == {10}


def test_double_precision(run_onnx: Callable[..., Any], tmp_path: Path) -> None:
    model, path = ag.ag_linear(4, 3, "tanh"), tmp_path / "double.onnx"
    for name, p in model.parameters().items():
        setattr(model, name, ag.ag_param(p.numpy(), dtype="f64"))
    x = np.random.default_rng(1).standard_normal((4, 5))
    ag.export_onnx(model, path, x, batch_first=False)
    (found,) = run_onnx(path, x=x)
    assert found.dtype == np.float64 and np.abs(found - model(x).numpy()).max() < 1e-12


def test_a_fixed_size(same_in_onnx: Check) -> None:
    offsets = numbers(3, 4)
    path = same_in_onnx(lambda x: x + offsets, {"x": numbers(3, 4)}, (), dynamic=False)
    assert [d.dim_value for d in graph_of(path).input[0].type.tensor_type.shape.dim] == [4, 3]
