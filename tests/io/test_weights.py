"""`load_weights`: weights from files of other programs into models, by a map of names, all or none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from helpers.errors import expect_error
from helpers.fuzz import mutations

import ag

RNG = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


class Words(ag.Layer):
    def __init__(self) -> None:
        self.embedding = ag.ag_embedding(5, 5)  # square, so that no shape says which axis is which
        self.attention = ag.ag_multihead_attention(5, 1)
        self.head = ag.ag_linear(5, 5)

    def forward(self, ids: Any) -> Any:
        return self.head(self.attention(self.embedding(ids)))


def pytorch() -> dict[str, Any]:
    """A state dict of the same model in PyTorch's layout."""
    return {"emb.weight": numbers(5, 5), "att.in_proj_weight": numbers(15, 5), "att.in_proj_bias": np.zeros(15, "f"),
            "att.out_proj.weight": numbers(5, 5), "att.out_proj.bias": numbers(5), "head.weight": numbers(5, 5),
            "head.bias": numbers(5), "norm.num_batches_tracked": np.array(3)}


NAMES = {"emb.weight": "embedding_weight", "att.in_proj_weight": ("attention_W_q", "attention_W_k", "attention_W_v"),
         "att.in_proj_bias": None, "att.out_proj.weight": "attention_W_o", "att.out_proj.bias": "attention_b_o",
         "head.weight": "head_W", "head.bias": "head_b"}


def test_a_state_dict_of_ours_in_a_plain_file_is_not_transposed(tmp_path: Path) -> None:
    path, one, other = tmp_path / "ours.safetensors", Words(), Words()
    safetensors.numpy.save_file({name: np.ascontiguousarray(x) for name, x in one.state_dict().items()}, path)
    ag.load_weights(other, path)
    for name, x in one.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], x)
    state = one.state_dict() | {"embedding_weight": numbers(6, 5)}
    safetensors.numpy.save_file({name: np.ascontiguousarray(x) for name, x in state.items()}, path)
    with expect_error("rows of words", ag.CheckpointError, "embedding_weight is (6, 5) instead of (5, 5)",
                      "was not transposed", "give names if its rows are words"):
        ag.load_weights(other, path)


def test_one_embedding_whose_name_is_the_same_in_pytorch(tmp_path: Path) -> None:
    """Its shape says which axis is which, or it is said, or asked for."""
    path = tmp_path / "one.safetensors"
    for words, layout in ((7, np.transpose), (7, np.asarray), (5, np.transpose)):
        model, wanted = ag.ag_embedding(words, 5), numbers(5, words)
        safetensors.numpy.save_file({"weight": np.ascontiguousarray(layout(wanted))}, path)
        if words == 5:
            with expect_error("a square embedding", ag.CheckpointError, "nobody knows whether its rows are words"):
                ag.load_weights(model, path)
            ag.load_weights(model, path, {"weight": "weight"})
        else:
            ag.load_weights(model, path)
        np.testing.assert_array_equal(model.weight.numpy(), wanted)


def test_own_names_beside_names_with_dots(tmp_path: Path) -> None:
    """Such a file may be of either program, and a square embedding lie both ways."""
    path, extra = tmp_path / "mixed.safetensors", {"more.scale": numbers(1)}
    for name, square, other in (("weight", ag.ag_embedding(5, 5), ag.ag_embedding(7, 5)),
                                ("layer1_weight", *(ag.ag_sequential(ag.ag_embedding(n, 5)) for n in (5, 7)))):
        theirs = numbers(5, 5)
        safetensors.numpy.save_file({name: theirs, **extra}, path)
        with expect_error(name, ag.CheckpointError, f"{name} is (5, 5), and nobody knows whether its rows are words"):
            ag.load_weights(square, path, strict=False)
        for turns, wanted in ((".T", theirs.T), (".T.T", theirs)):
            ag.load_weights(square, path, {name: f"{name}{turns}"}, strict=False)
            np.testing.assert_array_equal(square.state_dict()[name], wanted)
        for theirs in (numbers(5, 7), numbers(7, 5)):
            safetensors.numpy.save_file({name: theirs, **extra}, path)
            ag.load_weights(other, path, strict=False)
            np.testing.assert_array_equal(other.state_dict()[name], theirs if len(theirs) == 5 else theirs.T)


def test_weights_of_pytorch_by_a_map(tmp_path: Path) -> None:
    theirs, path, model = pytorch(), tmp_path / "theirs.safetensors", Words()
    safetensors.numpy.save_file(theirs, path)
    ag.load_weights(model, path, NAMES)
    ours = model.state_dict()
    np.testing.assert_array_equal(ours["embedding_weight"], theirs["emb.weight"].T)
    np.testing.assert_array_equal(ours["head_W"], theirs["head.weight"])
    np.testing.assert_array_equal(ours["head_b"][:, 0], theirs["head.bias"])
    for i, name in enumerate(("W_q", "W_k", "W_v")):
        np.testing.assert_array_equal(ours[f"attention_{name}"], theirs["att.in_proj_weight"][5 * i : 5 * i + 5])


def test_a_function_of_names(tmp_path: Path) -> None:
    path, model = tmp_path / "resnet.safetensors", ag.ag_resnet(18, 3, width=2, small_input=True)
    other = ag.ag_resnet(18, 3, width=2, small_input=True)
    theirs = {name: x[:, 0] if x.shape[1:] == (1,) else x for name, x in other.state_dict().items()}
    safetensors.numpy.save_file({f"net.{name}": x.copy() for name, x in theirs.items()}, path)
    ag.load_weights(model, path, lambda name: name.removeprefix("net."))
    assert all(np.array_equal(x, other.state_dict()[name]) for name, x in model.state_dict().items())


def test_files_of_this_library_have_its_layout(tmp_path: Path) -> None:
    model, other = Words(), Words()
    ag.ag_save_model(other, tmp_path / "model.safetensors")
    ag.ag_save_checkpoint(tmp_path / "run.safetensors", other, ag.optimizer_adam(other))
    for name in ("model", "run"):
        model.embedding.weight.data = np.zeros((5, 5))
        ag.load_weights(model, tmp_path / f"{name}.safetensors")
        assert all(np.array_equal(x, other.state_dict()[key]) for key, x in model.state_dict().items())


def test_half_precision_and_bfloat16(tmp_path: Path) -> None:
    with ag.ag_dtype("bf16"):
        half = ag.ag_linear(3, 2)
    ag.ag_save_model(half, tmp_path / "half.safetensors")
    model = ag.ag_linear(3, 2)
    ag.load_weights(model, tmp_path / "half.safetensors")
    np.testing.assert_array_equal(model.W.numpy(), half.W.numpy())


def test_what_does_not_fit_is_listed_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "theirs.safetensors"
    safetensors.numpy.save_file({"layer1.w": numbers(3, 4), "0.bias": numbers(3), "layer2_W": numbers(2, 4),
                                 "layer2_b": numbers(2), "more": numbers(7)}, path)
    model = ag.ag_sequential(ag.ag_linear(4, 3), ag.ag_linear(3, 2))
    before = model.state_dict()
    with pytest.raises(ag.CheckpointError) as error:
        ag.load_weights(model, path)
    said = str(error.value)
    for part in ("load_weights: ", "missing layer1_W (the file has layer1.w of shape (3, 4))",
                 "layer2_W is (2, 4) instead of (2, 3)", "unexpected layer1.w\n", "unexpected more\n",
                 "nothing was changed", "names={name in the file: name in the"):
        assert part in said, said
    assert "0.bias" not in said  # PyTorch's name of layer1_b, whose shape gave a wrong hint once
    with pytest.raises(ag.CheckpointError, match=r"unexpected layer1_v \(layer1\.w in the file\)"):
        ag.load_weights(model, path, {"layer1.w": "layer1_v"})
    with pytest.raises(ag.CheckpointError, match="are both called layer2_b; give each tensor"):
        ag.load_weights(model, path, {"0.bias": "layer2_b"})
    with pytest.raises(ag.CheckpointError, match=r"more is \(7,\) and is to become 2 tensors"):
        ag.load_weights(model, path, {"more": ["a", "b"]})
    with pytest.raises(TypeError, match="names gives 3 for"):
        ag.load_weights(model, path, lambda name: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="names is a list; a dict from the file's names"):
        ag.load_weights(model, path, [("more", "a")])  # type: ignore[arg-type]
    assert all(np.array_equal(x, before[name]) for name, x in model.state_dict().items())


def test_files_that_are_none(tmp_path: Path) -> None:
    model = ag.ag_linear(2, 2)
    (tmp_path / "weights.pt").write_bytes(b"PK\3\4" + bytes(100))
    for name in ("weights.pt", "none.safetensors", "."):
        with pytest.raises(ag.CheckpointError, match=r"load_weights: .* cannot be read .*torch\.save_file"):
            ag.load_weights(model, tmp_path / name)


def test_weights_of_an_exported_model(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    other, model, path = Words(), Words(), tmp_path / "words.onnx"
    ag.export_onnx(other, path, np.zeros((4, 2), int))
    ag.load_weights(model, path)
    assert all(np.array_equal(x, other.state_dict()[name]) for name, x in model.state_dict().items())


def foreign(path: Path, *nodes: tuple[Any, ...], **arrays: Any) -> None:
    """A graph as other exporters write it."""
    from onnx import helper, numpy_helper, save

    made = [helper.make_node(kind, inputs, [f"y{i}"], **numbers) for i, (kind, inputs, numbers) in enumerate(nodes)]
    save(helper.make_model(helper.make_graph(made, "theirs", [], [], [
        numpy_helper.from_array(x, name) for name, x in arrays.items()])), str(path))


def test_weights_of_other_exporters_are_turned_as_they_are_used(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    path, model = tmp_path / "theirs.onnx", Words()
    arrays = {name: numbers(5, 5) for name in "eqkvo"} | {"w": numbers(5, 5), "b": numbers(5), "c": numbers(5)}
    foreign(path, ("Gather", ["e", "x"], {}), ("MatMul", ["x", "q"], {}), ("Gemm", ["x", "k"], {}),
            ("Gemm", ["x", "v"], {"transB": 1}), ("MatMul", ["o", "x"], {}), ("Gemm", ["x", "w", "b"], {"transB": 1}),
            **arrays)
    ag.load_weights(model, path, {"e": "embedding_weight", "q": "attention_W_q", "k": "attention_W_k",
                                  "v": "attention_W_v", "o": "attention_W_o", "c": "attention_b_o", "w": "head_W",
                                  "b": "head_b"})
    ours = model.state_dict()
    for name, theirs in (("embedding_weight", arrays["e"].T), ("attention_W_q", arrays["q"].T),
                         ("attention_W_k", arrays["k"].T), ("attention_W_v", arrays["v"]),
                         ("attention_W_o", arrays["o"]), ("head_W", arrays["w"])):
        np.testing.assert_array_equal(ours[name], theirs, err_msg=name)


def test_a_broken_onnx_file(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    (tmp_path / "broken.onnx").write_bytes(b"\xff" * 50)
    os.mkfifo(tmp_path / "pipe.onnx")
    for name in ("broken.onnx", "none.onnx", "pipe.onnx"):
        with pytest.raises(ag.CheckpointError, match=r"load_weights: .* cannot be read .* complete ONNX file"):
            ag.load_weights(ag.ag_linear(2, 2), tmp_path / name)
    foreign(tmp_path / "both.onnx", ("MatMul", ["x", "W"], {}), ("MatMul", ["W", "x"], {}), W=numbers(2, 2))
    with pytest.raises(ag.CheckpointError, match="multiplies W from both sides"):
        ag.load_weights(ag.ag_linear(2, 2), tmp_path / "both.onnx")


def initializer(path: Path, location: str = "", op: str = "Identity", *more: tuple[str, str], **fields: Any) -> bytes:
    """Write a graph with W of shape (1, 2), in the file or elsewhere."""
    from onnx import TensorProto, helper

    w = TensorProto(**{"name": "W", "data_type": 1, "dims": [1, 2], "raw_data": np.float32([3, 4]).tobytes(), **fields})
    if location:
        w.ClearField("raw_data")
        w.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), *more):
            w.external_data.add(key=key, value=value)
    graph = helper.make_graph([helper.make_node(op, ["W"], ["y"])], "g", [], [], [w])
    content: bytes = helper.make_model(graph).SerializeToString()
    path.write_bytes(content)
    return content


def test_external_data_of_an_onnx_file(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    path, model = tmp_path / "deep" / "model.onnx", ag.ag_linear(2, 1, bias=False)
    (path.parent / "weights").mkdir(parents=True)
    for file in (path.parent / "weights" / "W.bin", tmp_path / "W.bin"):
        file.write_bytes(np.float32([7, 7, 5, 6, 7]).tobytes())
    initializer(path, "weights/W.bin", "MatMul", ("offset", "8"), ("length", "8"))
    ag.load_weights(model, path)
    assert model.W.numpy().tolist() == [[5, 6]]
    with open(path.parent / "weights" / "W.bin", "r+b") as file:
        file.truncate(1 << 40)  # takes no room on the disk, and is not read as a whole
    initializer(path, "weights/W.bin", "MatMul", ("offset", "4"))
    ag.load_weights(model, path)
    assert model.W.numpy().tolist() == [[7, 5]]
    (path.parent / "link").symlink_to(tmp_path)
    for location, *more in (("../W.bin",), (str(tmp_path / "W.bin"),), ("link/W.bin",), ("none.bin",), ("weights",),
                            ("weights/W.bin", ("length", "12")), ("weights/W.bin", ("offset", "-8")), ("\0",),
                            ("weights/W.bin", ("offset", str(1 << 40))), ("weights/W.bin", ("length", "x"))):
        initializer(path, location, "MatMul", *more)
        with pytest.raises(ag.CheckpointError, match=r"load_weights: .* cannot be read .* external data"):
            ag.load_weights(model, path)
    for fields in ({"data_type": 99}, {"dims": [2, 2]}, {"dims": [1 << 62, 4]},
                   {"data_type": 8, "string_data": [b"x"]}):
        initializer(path, **fields)
        with expect_error("a wrong initializer", ag.CheckpointError, "load_weights", "model.onnx"):
            ag.load_weights(model, path)
    assert model.W.numpy().tolist() == [[7, 5]]


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("location", ["", "W.bin"])
def test_damaged_onnx_files(tmp_path: Path, location: str, count: int) -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    path, model, loaded = tmp_path / "model.onnx", ag.ag_linear(2, 1, bias=False), 0
    (tmp_path / "W.bin").write_bytes(np.float32([7, 5, 6, 7]).tobytes())
    for content in mutations(initializer(path, location, "MatMul", ("offset", "4"), ("length", "8")), count, seed=5):
        path.write_bytes(content)
        before = model.W.numpy().tobytes()
        try:
            ag.load_weights(model, path)
            loaded += 1
        except ag.CheckpointError as error:
            assert "model.onnx" in str(error) and model.W.numpy().tobytes() == before
    assert count / 50 < loaded < count
