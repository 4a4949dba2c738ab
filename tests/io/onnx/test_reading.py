"""Models read back from ONNX files compute what they did, here and in onnxruntime, and can be trained further."""

from __future__ import annotations

import copy
import logging
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.fuzz import mutations
from helpers.onnx_layout import as_in_file

import ag
from ag.errors import ShapeError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def needs_onnx() -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed, so nothing was exported")


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def perceptron() -> Any:
    return ag.ag_sequential(ag.ag_linear(4, 8, activation="gelu"), ag.ag_batch_norm(8), ag.ag_dropout(0.3),
                            ag.ag_linear(8, 8, activation="leaky_relu"), ag.ag_linear(8, 3, bias=False))


def images() -> Any:
    return ag.ag_sequential(
        ag.ag_conv2d_layer(3, 6, 3, padding=1, activation="relu"), ag.ag_batch_norm(6), ag.ag_max_pool(3, 2, 1),
        ag.ag_residual(ag.ag_conv2d_layer(6, 6, 3, padding=1, bias=False), activation="silu"), ag.ag_avg_pool(2, 1, 1),
        ag.ag_flatten_layer(), ag.ag_linear(6 * 36, 5, activation="sigmoid"))


def resnet() -> Any:
    return ag.ag_resnet(18, 7, width=2, small_input=True)


def transformer() -> Any:
    sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
    try:
        import text_transformer as example
    finally:
        sys.path.pop(0)
        sys.modules.pop("text_transformer", None)
    model = example.Transformer()
    model.places.data = 0.1 * numbers(*model.places.shape)
    return model


class Words(ag.Layer):
    """A classifier of texts: the mean of words' vectors, and attention without a batch of heads."""

    def __init__(self) -> None:
        self.words, self.attention = ag.ag_embedding(11, 6), ag.ag_multihead_attention(6, 2)
        self.norm, self.head = ag.ag_rms_norm(6), ag.ag_linear(6, 3, "tanh")

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        return self.head(ag.ag_mean(self.norm(x + self.attention(x)), 1))


class Odd(ag.Layer):
    """Everything else: parts, joins, reductions, steps backwards, constants, several inputs and outputs."""

    def __init__(self) -> None:
        self.W, self.shift = ag.ag_param(numbers(6, 6)), ag.ag_tensor(numbers(6, 1))
        self.list = [ag.ag_linear(6, 6), ag.ag_linear(6, 6)]

    def forward(self, x: Any, y: Any) -> Any:
        n = x.shape[-1]
        z = ag.ag_transpose(ag.ag_reshape(self.W @ x + self.shift, 2, 3, n), 1, 0, 2)
        z = ag.ag_concat([z[::-1, 1:], z[:, :1] * 0.5], 1).reshape(6, n)
        for layer in self.list:
            z = layer(ag.ag_clamp(z, -2, 2)) / 3.0 + ag.ag_sqrt(ag.ag_abs(z) + 1.0) - ag.ag_pow(y[2:8], 2.0)
        p = ag.ag_softmax(z[:4]) * ag.ag_max(z, 0, True) + ag.ag_exp(ag.ag_log_softmax(z, 0))[0]
        return p, z[-1], ag.ag_sum(z[None, -2:], (0, 2)), z[1:3, :] - ag.ag_mean(z)


class Recurrent(ag.Layer):
    """A state that begins with zeros as long as the batch."""

    def __init__(self) -> None:
        self.cell = ag.ag_linear(5, 2, "tanh")

    def forward(self, x: Any) -> Any:
        state: Any = np.zeros((2, x.shape[-1]))
        for _ in range(3):
            state = self.cell(ag.ag_concat([x, state]))
        return state


MODELS: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "perceptron": (perceptron, (numbers(4, 5),)), "images": (images, (numbers(3, 9, 9, 4),)),
    "resnet": (resnet, (numbers(3, 8, 8, 3),)), "words": (Words, (RNG.integers(0, 11, (5, 3)),)),
    "transformer": (transformer, (RNG.integers(0, 30, (7, 3)),)), "recurrent": (Recurrent, (numbers(3, 4),)),
    "odd": (Odd, (numbers(6, 5), numbers(9, 5)))}


def outputs(y: Any) -> list[Any]:
    return [x.numpy() for x in (y if isinstance(y, tuple) else (y,))]


def equal(found: list[Any], expected: list[Any]) -> None:
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape and np.abs(x - y).max() <= 1e-5 * max(1.0, float(np.abs(y).max()))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_round_trip_agrees_to_1e_5(name: str, batch_first: bool, run_onnx: Callable[..., Any], tmp_path: Path) -> None:
    """Exported, run by onnxruntime, loaded, and exported again."""
    make, xs = MODELS[name]
    model, path = make(), tmp_path / "model.onnx"
    if isinstance(xs[0], np.ndarray) and xs[0].dtype.kind == "f":
        model(*xs)  # averages that are not those of the beginning
    ag.export_onnx(model, path, xs, batch_first=batch_first)
    back = ag.load_onnx(path)
    assert not back.training and {n: x.shape for n, x in back.parameters().items()} == {
        n: x.shape for n, x in model.parameters().items()}
    inputs = [x.name for x in back._inputs]  # type: ignore[attr-defined]
    for some in (xs, tuple(x[..., :2].copy() for x in xs), tuple(x[..., :1].copy() for x in xs)):
        expected = outputs(ag.ag_eval(model)(*some))
        equal(outputs(back(*some)), expected)
        names = [x.name for x in back._outputs]  # type: ignore[attr-defined]
        theirs = run_onnx(path, **as_in_file(path, dict(zip(inputs, some, strict=True))))
        equal(theirs, [*as_in_file(path, dict(zip(names, expected, strict=True))).values()])
    again = tmp_path / "again.onnx"
    ag.export_onnx(back, again, xs, batch_first=batch_first)
    equal(outputs(ag.load_onnx(again)(*xs)), outputs(model(*xs)))


@pytest.mark.parametrize("name", ["perceptron", "images", "words", "transformer"])
def test_it_is_trained_further(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same steps as the model that was written, captured, with the averages of batch norm."""
    make, (x,) = MODELS[name]
    model, path = make(), tmp_path / "model.onnx"
    for layer in (part for _, part in model.modules() if isinstance(part, ag.nn.Dropout)):
        layer.rate = 0.0  # files have none
    ag.export_onnx(model, path, x)
    back = ag.ag_train(ag.load_onnx(path))
    y = RNG.integers(0, 3, ag.ag_eval(model)(x).shape[1:])
    losses = []
    for trained in (ag.ag_train(model), back):
        optimizer = ag.optimizer_sgd(trained.parameters(), lr=0.05)

        @ag.ag_capture
        def step(x: Any, y: Any, trained: Any = trained, optimizer: Any = optimizer) -> Any:
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(trained(x), y)
            optimizer.step(ag.backward(loss))
            return loss

        with caplog.at_level(logging.WARNING):
            losses.append([float(step(x, y)) for _ in range(6)])
        assert step.kinds == 1 and not caplog.records
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert losses[1][-1] < losses[1][0]
    state = model.state_dict()
    for name, x in back.state_dict().items():
        np.testing.assert_allclose(x, state[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_fit_trains_it(tmp_path: Path) -> None:
    X = numbers(60, 4)
    y = X[:, :3].argmax(1)
    ag.export_onnx(perceptron(), tmp_path / "m.onnx", X.T)
    model = ag.load_onnx(tmp_path / "m.onnx", device="cpu")
    history = ag.fit(model, (X, y), epochs=5, lr=0.01, devices=["cpu", "cpu"], verbose=False)
    assert history["loss"][-1] < history["loss"][0]


def test_copies_pickles_and_files(tmp_path: Path) -> None:
    x, path = numbers(4, 5), tmp_path / "m.onnx"
    ag.export_onnx(perceptron(), path, x)
    model: Any = ag.load_onnx(path)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other.layer1_W.data = other.layer1_W.data * 2
        assert np.abs(other(x).numpy() - model(x).numpy()).max() > 0.1
    ag.ag_save_model(model, tmp_path / "m.st", model_fn=lambda: ag.load_onnx(path))
    model.layer1_W.data = np.zeros((8, 4))
    loaded = ag.ag_load_model(tmp_path / "m.st", lambda: ag.load_onnx(path))
    assert np.abs(loaded(x).numpy() - ag.load_onnx(path)(x).numpy()).max() == 0


def test_half_precision_comes_back(tmp_path: Path) -> None:
    with ag.ag_dtype("f16"):
        model = ag.ag_sequential(ag.ag_linear(4, 8, activation="gelu"), ag.ag_layer_norm(8), ag.ag_linear(8, 3))
    x = numbers(4, 5).astype(np.float16)
    ag.export_onnx(model, tmp_path / "half.onnx", x)
    back = ag.load_onnx(tmp_path / "half.onnx")
    assert {p.dtype for p in back.parameters().values()} == {"f16"}
    np.testing.assert_allclose(back(x).numpy(), model(ag.ag_tensor(x, dtype="f16")).numpy(), rtol=2e-3, atol=2e-3)


def written(path: Path, *nodes: tuple[Any, ...], shape: tuple[Any, ...] = ("n", 3), opset: int = 17, **arrays: Any
            ) -> Path:
    """Write a graph from `x` to `y` as other programs do."""
    from onnx import helper, numpy_helper, save

    made = [helper.make_node(kind, inputs, outputs, **given) for kind, inputs, outputs, given in nodes]
    ends = [helper.make_tensor_value_info(name, 1, where) for name, where in (("x", shape), ("y", None))]
    save(helper.make_model(helper.make_graph(made, "theirs", ends[:1], ends[1:], [
        numpy_helper.from_array(x, name) for name, x in arrays.items()]), opset_imports=[
            helper.make_opsetid("", opset)]), str(path))
    return path


def test_a_network_as_pytorch_writes_it(run_onnx: Callable[..., Any], tmp_path: Path) -> None:
    """Vectors have one axis, names have dots, matrices lie [out, in] with transB, or [in, out] without."""
    import onnx

    path = written(
        tmp_path / "m.onnx", ("Conv", ["x", "conv.weight", "conv.bias"], ["a"], {"pads": [1, 1, 1, 1]}),
        ("BatchNormalization", ["a", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"], ["b"], {}),
        ("Relu", ["b"], ["c"], {}), ("GlobalAveragePool", ["c"], ["d"], {}), ("Flatten", ["d"], ["e"], {"axis": 1}),
        ("Gemm", ["e", "fc.weight", "fc.bias"], ["f"], {"transB": 1, "alpha": 0.5}),
        ("Constant", [], ["two"], {"value": onnx.numpy_helper.from_array(np.float32(2))}),
        ("Mul", ["f", "two"], ["g"], {}), ("MatMul", ["g", "onnx::MatMul_7"], ["h"], {}),
        ("Add", ["h", "training"], ["y"], {}), shape=("n", 3, 6, 6),
        **{"conv.weight": numbers(4, 3, 3, 3), "conv.bias": numbers(4), "bn.weight": numbers(4), "bn.bias": numbers(4),
           "bn.running_mean": numbers(4), "bn.running_var": np.abs(numbers(4)), "fc.weight": numbers(5, 4),
           "fc.bias": numbers(5), "onnx::MatMul_7": numbers(5, 2), "training": numbers(2)})
    model = ag.load_onnx(path)
    assert [*model.parameters()] == ["conv_weight", "conv_bias", "bn_weight", "bn_bias", "fc_weight", "fc_bias",
                                     "onnx__MatMul_7", "tensor_training"]
    assert [*model.buffers()] == ["bn_running_mean", "bn_running_var"]
    x = numbers(2, 3, 6, 6)
    equal([model(np.moveaxis(x, 0, -1)).numpy().T], run_onnx(path, x=x))
    ag.ag_train(model)(np.moveaxis(x, 0, -1))
    assert ag.ag_eval(model)(np.moveaxis(x, 0, -1)).numpy().T.shape == (2, 2)


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    written(path, ("Resize", ["x"], ["a"], {}), ("LSTM", ["a"], ["b"], {}), ("Resize", ["b"], ["c"], {}),
            ("Conv", ["c", "W"], ["d"], {"pads": [0, 0, 1, 1]}), ("MaxPool", ["d"], ["e"], {
                "kernel_shape": [2, 2], "ceil_mode": 1}), ("Split", ["e"], ["y", "z"], {}), W=numbers(1, 1, 2, 2))
    with expect_error("operators", ag.CheckpointError, "load_onnx: ", "Resize (2), ", "LSTM (1)", "load_weights",
                      "Conv with pads=[0, 0, 1, 1] (1)",
                      "MaxPool with ceil_mode=1, kernel_shape=[2, 2] (1)", "Split with several outputs"):
        ag.load_onnx(path)
    written(path, ("Relu", ["x"], ["y"], {}), ("LSTM", ["x"], ["unused"], {}))
    assert ag.load_onnx(path)(np.float32([[-1], [2], [3]])).numpy().tolist() == [[0], [2], [3]]
    written(path, ("Softmax", ["x"], ["y"], {}), opset=11)
    with pytest.raises(ag.CheckpointError, match=r"operators of opset 11, and 13 is the oldest that is known"):
        ag.load_onnx(path)
    path.write_bytes(b"\xff" * 50)
    for name in (path, tmp_path / "none.onnx"):
        with pytest.raises(ag.CheckpointError, match=r"load_onnx: .* cannot be read .* complete ONNX file"):
            ag.load_onnx(name)
    with pytest.raises(TypeError, match=r"load_onnx: path is a int; the name of a file is required"):
        ag.load_onnx(3)  # type: ignore[arg-type]
    ag.export_onnx(ag.ag_linear(3, 2), path, numbers(3, 4))
    with pytest.raises(TypeError, match=r"called with 2 inputs; it takes x"):
        ag.load_onnx(path)(numbers(3, 2), numbers(3, 2))


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_files(tmp_path: Path, count: int) -> None:
    path, loaded = tmp_path / "m.onnx", 0
    ag.export_onnx(Words(), path, RNG.integers(0, 11, (5, 3)))
    for content in mutations(path.read_bytes(), count, seed=5):
        path.write_bytes(content)
        try:
            ag.load_onnx(path)
            loaded += 1
        except ag.CheckpointError as error:
            assert "m.onnx" in str(error)
    assert count / 50 < loaded < count


def test_what_could_be_read_another_way_is_refused(tmp_path: Path) -> None:
    """Sizes alone would let these pass."""
    path, x, constants = tmp_path / "m.onnx", numbers(2, 2, 2), {"W": numbers(2, 2, 2), "v": numbers(2)}
    found = ag.load_onnx(written(path, ("MatMul", ["x", "W"], ["y"], {}), shape=("n", 2, 2), **constants))(x)
    np.testing.assert_allclose(found.numpy(), np.moveaxis(np.moveaxis(x, -1, 0) @ constants["W"], 0, -1), rtol=1e-5)
    with pytest.raises(ag.ShapeError, match=r"load_onnx: LayerNormalization of .*the last axis alone"):
        ag.load_onnx(written(path, ("LayerNormalization", ["x", "v", "v"], ["y"], {"axis": 1}), shape=("n", 2, 2),
                             **constants))(x)
    zero, one, axis, end = np.array(0), np.array(1), np.array([0]), np.array(-np.inf, np.float32)
    written(path, ("MatMul", ["x", "x"], ["a"], {}), ("Mul", ["a", "one_half"], ["b"], {}),
            ("Range", ["zero", "two", "one"], ["i"], {}), ("Unsqueeze", ["i", "axis"], ["j"], {}),
            ("LessOrEqual", ["i", "j"], ["seen"], {}), ("Where", ["seen", "b", "end"], ["c"], {}),
            ("Softmax", ["c"], ["d"], {"axis": -1}), ("MatMul", ["d", "x"], ["y"], {}), shape=(2, 2, 2), zero=zero,
            one=one, two=np.array(2), axis=axis, end=end, one_half=np.array(0.5, np.float32))
    with expect_error("a mask of others", ag.CheckpointError, "Where (1)"):
        ag.load_onnx(path)


def test_loaders_and_estimators_are_examples(run_onnx: Callable[..., Any], tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", ag.ag_linear(4, 2)
    loader = ag.ag_dataloader(numbers(4, 10), np.arange(10), batch_size=5, seed=0)
    loader.next_batch()
    before = loader.state_dict()
    ag.export_onnx(model, path, loader)
    assert loader.state_dict() == before
    x = numbers(3, 4)
    equal(run_onnx(path, x=x), [model(x.T).numpy().T])
    for given, said in ((None, "no example was given"), ([["a"]], "data of type <U1")):
        with pytest.raises((TypeError, ag.DtypeError), match=said):
            ag.export_onnx(model, path, given)
    pytest.importorskip("sklearn", reason="scikit-learn is not installed, so there are no estimators")
    from sklearn.pipeline import make_pipeline

    classifier = ag.AgClassifier(epochs=1, random_state=0)
    with pytest.raises(TypeError, match="a fitted AgClassifier or AgRegressor is required"):
        ag.export_onnx(classifier, path)  # type: ignore[arg-type]
    classifier.fit(x, [0, 1, 2])
    ag.export_onnx(classifier, path)
    (logits,) = run_onnx(path, x=x)
    assert (classifier.classes_[logits.argmax(1)] == classifier.predict(x)).all()
    with pytest.raises(TypeError, match=r"a Pipeline was given; .* pipeline\[-1\]"):
        ag.export_onnx(make_pipeline(classifier), path)
    regressor = ag.AgRegressor(epochs=1, random_state=0).fit(x, [0, 1, 2])
    ag.export_onnx(regressor, path)
    np.testing.assert_allclose(run_onnx(path, x=x)[0][:, 0], regressor.predict(x), rtol=1e-5)
    regressor.target_scale_, regressor.target_mean_ = np.float64(3), np.float64(-1)
    ag.export_onnx(regressor, path)
    np.testing.assert_allclose(run_onnx(path, x=x)[0], regressor.model_(x.T).numpy().T * 3 - 1, rtol=1e-5)
    assert [*ag.load_onnx(path).parameters()] == [*regressor.model_.parameters()]


def test_arrays_are_divided_and_cast_as_the_operators_say(run_onnx: Callable[..., Any], tmp_path: Path) -> None:
    def of(*nodes: tuple[Any, ...], **arrays: Any) -> Any:
        path = written(tmp_path / "m.onnx", *nodes, **{"shape": ("n", 3), **arrays})
        model, x = ag.load_onnx(path), numbers(4, 3)
        equal([model(x.T).numpy().T], run_onnx(path, x=x))

    size = (("Shape", ["x"], ["s"], {"start": 1, "end": 2}), ("Cast", ["s"], ["f"], {"to": 1}))
    of(*size, ("Div", ["f", "two"], ["r"], {}), ("Mul", ["x", "r"], ["y"], {}), two=np.float32(2))
    of(("Div", ["a", "b"], ["r"], {}), ("Cast", ["r"], ["f"], {"to": 1}), ("Mul", ["x", "f"], ["y"], {}),
       a=np.int64([-7, 7, 9]), b=np.int64([2, 2, 4]))
    of(("Cast", ["a"], ["i"], {"to": 7}), ("Cast", ["i"], ["f"], {"to": 1}), ("Mul", ["x", "f"], ["y"], {}),
       a=np.float32(2.7))
    with expect_error("a cast to whole numbers", ShapeError, "Cast of a tensor"):
        of(("Cast", ["x"], ["i"], {"to": 7}), ("Cast", ["i"], ["y"], {"to": 1}))
    path = written(tmp_path / "m.onnx", *size, ("Sqrt", ["f"], ["r"], {}), ("Div", ["x", "r"], ["y"], {}))
    moved = ag.load_onnx(path, device="cpu:1")
    assert moved(ag.ag_tensor(numbers(3, 4), device="cpu:1")).device == "cpu:1"


@pytest.mark.parametrize("default", ["f32", "f16"])
def test_arrays_of_doubles_keep_their_digits(default: str, run_onnx: Callable[..., Any], tmp_path: Path) -> None:
    """Whatever the default type is: what a graph computes of shapes and whole numbers has the type of its cast."""
    import onnx

    for element, kind, last in ((11, "f8", 2**24 + 1), (1, "f4", 1000)):
        path = written(tmp_path / "m.onnx", ("Cast", ["a"], ["f"], {"to": element}), ("Sqrt", ["f"], ["r"], {}),
                       ("Mul", ["x", "r"], ["z"], {}), ("Add", ["z", "f"], ["y"], {}), a=np.int64([2, 3, last]))
        graph = onnx.load(path)
        for end in (*graph.graph.input, *graph.graph.output):
            end.type.tensor_type.elem_type = element
        onnx.save(graph, path)
        x = RNG.standard_normal((4, 3)).astype(kind)
        with ag.ag_dtype(default):
            found = ag.load_onnx(path)(x.T).numpy().T
        np.testing.assert_allclose(found, run_onnx(path, x=x)[0], rtol=1e-15 if kind == "f8" else 1e-6)


def test_square_matrices_of_graphs_are_turned_as_they_are_used(tmp_path: Path) -> None:
    W, x = numbers(3, 3), numbers(3, 2)
    for nodes in ([("Cast", ["W"], ["w"], {"to": 1}), ("MatMul", ["x", "w"], ["y"], {})],
                  [("Identity", ["W"], ["w"], {}), ("MatMul", ["x", "w"], ["y"], {})],
                  [("Transpose", ["W"], ["w"], {"perm": [1, 0]}), ("Gemm", ["x", "w"], ["y"], {"transB": 1})],
                  [("Transpose", ["W"], ["w"], {"perm": [1, 0]}), ("MatMul", ["x", "w"], ["y"], {})]):
        half = np.float16 if nodes[0][0] == "Cast" else np.float32
        path, model = written(tmp_path / "m.onnx", *nodes, W=W.astype(half)), ag.nn.Linear(3, 3, bias=False)
        ag.load_weights(model, path)
        np.testing.assert_allclose(model(x).numpy(), ag.load_onnx(path)(x).numpy(), rtol=1e-5, atol=1e-6)
    with ag.ag_dtype("f16"):
        own, ids = ag.nn.Sequential(ag.nn.Embedding(4, 4), ag.nn.Linear(4, 2)), np.array([[0, 1], [2, 3]])
        ag.export_onnx(own, tmp_path / "own.onnx", ids)
        again = ag.nn.Sequential(ag.nn.Embedding(4, 4), ag.nn.Linear(4, 2))
        ag.load_weights(again, tmp_path / "own.onnx")
        np.testing.assert_array_equal(own(ids).numpy(), again(ids).numpy())
