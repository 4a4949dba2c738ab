"""Model files: the same model comes back, on any device; anything else is a CheckpointError and nothing is run."""

from __future__ import annotations

import io
import json
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from helpers.errors import expect_error

import ag
from ag.nn.layer import LIBRARY

X = np.random.default_rng(4).standard_normal((4, 5)).astype(np.float32)


def make_model() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(4, 6, activation="tanh"), ag.ag_dropout(0.5),
                            ag.ag_sequential(ag.ag_linear(6, 3, activation="softmax", bias=False)))


class Own:
    """A user's model."""

    def __init__(self, rows: int = 2) -> None:
        self.W = ag.ag_param(np.arange(rows * 4).reshape(rows, 4))
        self.training = True

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return self.W @ x

    def parameters(self) -> dict[str, ag.Tensor]:
        return {"W": self.W}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.fixture
def saved(path: Path) -> Path:
    ag.ag_save_model(make_model(), path)
    return path


def test_round_trip(device: str, path: Path) -> None:
    model = make_model()
    ag.ag_save_model(model, path)
    loaded = ag.ag_load_model(path)
    assert not loaded.training and repr(loaded) == repr(model)
    assert {p.device for p in loaded.parameters().values()} == {device}
    assert all(np.array_equal(loaded.state_dict()[n], v) for n, v in model.state_dict().items())
    x = ag.ag_tensor(X)
    assert np.array_equal(loaded(x).numpy(), ag.ag_eval(model)(x).numpy())


@pytest.mark.vulkan
def test_a_file_moves_between_devices(path: Path, lavapipe: str, swiftshader: str) -> None:
    with ag.ag_device(lavapipe):
        model = make_model()
    ag.ag_save_model(model, path)
    for place in (swiftshader, "cpu:1"):
        loaded = ag.ag_load_model(path, device=place)
        assert {p.device for p in loaded.parameters().values()} == {place}
        assert all(np.array_equal(loaded.state_dict()[n], v) for n, v in model.state_dict().items())
    assert ag.ag_default_device() == "cpu"


def test_an_own_model(path: Path) -> None:
    model = Own()
    ag.ag_save_model(model, path, model_fn=Own)
    loaded = ag.ag_load_model(path, model_fn=Own)
    assert isinstance(loaded, Own) and not loaded.training
    assert np.array_equal(loaded.W.numpy(), model.W.numpy())
    with expect_error("loading an own model without its model_fn", ag.CheckpointError, "of your own", "model_fn"):
        ag.ag_load_model(path)
    with expect_error("saving with a model_fn that builds another model", ag.CheckpointError, "model_fn", "(3, 4)"):
        ag.ag_save_model(model, path, model_fn=lambda: Own(3))


def test_an_own_layer_is_not_taken_for_one_of_ours(path: Path) -> None:
    class Linear(ag.Layer):
        def __init__(self) -> None:
            self.W = ag.ag_param(np.ones((1, 1)))

    ag.ag_save_model(ag.ag_sequential(Linear()), path)
    with expect_error("loading a container of own layers without model_fn", ag.CheckpointError, "model_fn"):
        ag.ag_load_model(path)


def forged(name: str, module: str, *bases: type) -> type:
    """A layer of a user's that claims to be from another module."""
    return type(name, bases or (ag.Layer,), {"__module__": module, "forward": lambda self, x: x})


@pytest.mark.parametrize("module", [__name__, "ag.nn.linear", "__main__"])
@pytest.mark.parametrize("base", [ag.Layer, ag.ag_linear])
def test_no_other_class_is_built_under_the_name_of_a_layer(saved: Path, module: str, base: type) -> None:
    forged("Linear", module, base)
    assert LIBRARY["Linear"] is ag.ag_linear
    assert type(ag.ag_load_model(saved)[0]) is ag.ag_linear


def test_every_layer_of_the_library_can_be_in_a_file() -> None:
    layers = {c for c in (*vars(ag).values(), *vars(ag.nn).values()) if isinstance(c, type) and issubclass(c, ag.Layer)}
    layers.add(type(ag.nn.Sequential(ag.ops.relu)[0]))
    assert set(LIBRARY.values()) == {c for c in layers if c.__module__.startswith("ag.nn.") and c is not ag.Layer}


@pytest.mark.parametrize("model", [
    ag.ag_linear(3, 4), ag.ag_conv2d_layer(2, 3, (3, 5)), ag.ag_batch_norm(5), ag.ag_layer_norm(5),
    ag.ag_rms_norm(5), ag.ag_embedding(7, 2), ag.ag_multihead_attention(4, 2), ag.ag_dropout(0.5), ag.ag_max_pool(2),
    ag.nn.Conv1d(4, 6, 3, groups=2), ag.nn.ConvTranspose2d(4, 6, 3, groups=2), ag.nn.GroupNorm(2, 6), ag.nn.PReLU(3),
], ids=lambda model: type(model).__name__)
def test_the_largest_tensor(model: Any) -> None:
    largest = max((x.shape for x in model.parameters().values()), key=np.prod, default=())
    assert np.prod(model.largest_tensor(model.config()["args"])) == np.prod(largest)


def test_the_file_is_plain_safetensors(saved: Path) -> None:
    arrays = safetensors.numpy.load_file(saved)
    shapes = {name: a.shape for name, a in arrays.items()}
    assert shapes == {"layer1_W": (6, 4), "layer1_b": (6, 1), "layer3_layer1_W": (3, 6)}
    assert all(a.dtype == np.float32 for a in arrays.values())


def test_names_that_do_not_fit_are_listed_together(saved: Path) -> None:
    def other() -> ag.Layer:
        return ag.ag_sequential(ag.ag_linear(4, 7, bias=False), ag.ag_linear(7, 3))

    with expect_error("loading a file into another model", ag.CheckpointError, "ag_load_model", "model.safetensors",
                      "missing layer2_W", "missing layer2_b", "unexpected layer1_b", "unexpected layer3_layer1_W",
                      "layer1_W is (6, 4) instead of (7, 4)"):
        ag.ag_load_model(saved, model_fn=other)


SWAPPED: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "saved to a model": (lambda model, path: ag.ag_save_model(path, model),
                         "path is a Linear; the name of a file is required, as in ag_save_model(model, path)"),
    "saved to an open file": (lambda model, path: ag.ag_save_model(model, io.BytesIO()), "path is a BytesIO"),
    "no model": (lambda model, path: ag.ag_save_model("model", path), "model is a str"),
    "a class": (lambda model, path: ag.ag_save_model(ag.ag_linear, path), "model is the class Linear"),
    "weights from a model": (lambda model, path: ag.load_weights(path, model), "path is a Linear"),
    "weights into a dict": (lambda model, path: ag.load_weights({}, path), "model is a dict"),
    "a checkpoint of a dict": (lambda model, path: ag.ag_save_checkpoint(path, {}), "model is a dict"),
    "made already": (lambda model, path: ag.ag_load_model(path, model), "model_fn is a Linear; a function"),
    "made to check": (lambda model, path: ag.ag_save_model(model, path, model), "model_fn is a Linear; a function"),
    "no factory": (lambda model, path: ag.ag_load_model(path, lambda: None), "model_fn returned a NoneType"),
}


@pytest.mark.parametrize("how", SWAPPED)
def test_arguments_in_the_wrong_place(how: str, path: Path) -> None:
    call, said = SWAPPED[how]
    model = ag.ag_linear(2, 1)
    ag.ag_save_model(model, path)
    with expect_error(how, TypeError, said):
        call(model, path)


def test_what_is_no_file(path: Path) -> None:
    os.mkfifo(path)
    for what in (path, path.parent, path.parent / "none", 3, None, 10**400, "a\0b"):
        with expect_error("loading what is no file", ag.CheckpointError, "ag_load_model", "cannot be read"):
            ag.ag_load_model(what)


def test_a_file_that_is_open_or_mapped_stays_as_it_was(saved: Path) -> None:
    with saved.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        before = memory[:]
        loaded = ag.ag_load_model(saved)
        ag.ag_save_model(ag.ag_linear(3, 3), saved)
        assert memory[:] == file.read() == before
    assert loaded(ag.ag_tensor(X)).shape == (3, 5) and ag.ag_load_model(saved).W.shape == (3, 3)


def test_a_safetensors_file_of_another_program(path: Path) -> None:
    path.write_bytes(safetensors.numpy.save({"W": np.ones((2, 2), np.float32)}, {"format": "pt"}))
    with expect_error("loading another program's safetensors file", ag.CheckpointError, "'pt'", "'ag-model-1'"):
        ag.ag_load_model(path)


def test_a_truncated_file_at_every_length(saved: Path) -> None:
    content = saved.read_bytes()
    for length in [*range(0, len(content), 7), len(content) - 1]:
        saved.write_bytes(content[:length])
        with expect_error("loading a truncated file", ag.CheckpointError, "model.safetensors"):
            ag.ag_load_model(saved)


def write(path: Path, config: Any, arrays: dict[str, np.ndarray] | None = None) -> None:
    header = {"format": "ag-model-1", "model": config if isinstance(config, str) else json.dumps(config)}
    path.write_bytes(safetensors.numpy.save(arrays or {"W": np.ones((1, 1), np.float32)}, header))


def linear(**args: Any) -> dict[str, Any]:
    return {"layer": "Linear", "args": {"in_features": 1, "out_features": 1, "activation": None, "bias": False, **args}}


@pytest.mark.parametrize("config", [
    pytest.param({"layer": "os.system", "args": {"command": "touch ran"}}, id="a function"),
    pytest.param({"layer": "Layer", "args": {}}, id="the base class"),
    pytest.param({"layer": "__class__", "args": {}}, id="an attribute"),
    pytest.param(linear(activation="__import__('os').system('touch ran')"), id="code"),
    pytest.param(linear(in_features="1"), id="a string for a size"),
    pytest.param(linear(in_features=10**12, out_features=10**12), id="a huge layer"),
    pytest.param(linear(in_features=10**400), id="a number beyond all"),
    pytest.param(linear(in_features=10**4, out_features=10**4), id="a layer larger than the file"),
    pytest.param({"layer": "Sequential", "layers": [linear()] * 20_000}, id="layers larger than the file together"),
    pytest.param({"layer": "Sequential", "layers": [linear(in_features=-9, out_features=1), linear(in_features=9)]},
                 id="a negative size beside a large one"),
    pytest.param(linear(in_features=-1), id="a negative size"),
    pytest.param(linear(in_features=1.0), id="a fraction for a size"),
    pytest.param(linear(groups=2), id="a setting of another version"),
    pytest.param({"layer": "Linear", "args": [1, 1]}, id="a list of arguments"),
    pytest.param({"layer": "Linear"}, id="no arguments"),
    pytest.param({**linear(), "layer": ["Linear"]}, id="a list for a name"),
    pytest.param({"layer": "Sequential", "layers": 3}, id="a number for layers"),
    pytest.param({"layer": "Dropout", "args": {"rate": 2}}, id="a rate out of range"),
    pytest.param({"layer": "Sequential", "layers": []}, id="no layer"),
    pytest.param([1, 2], id="a list"), pytest.param("3", id="a number"), pytest.param("not json", id="no json"),
    pytest.param("[" * 100_000, id="deep json"),
    pytest.param('{"layer": "Sequential", "layers": [' * 300 + "]}" * 300, id="deep containers"),
])
def test_a_malicious_header_runs_nothing(path: Path, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    write(path, config)
    with expect_error("loading a file with a forged description", ag.CheckpointError, "model.safetensors"):
        ag.ag_load_model(path)
    assert os.listdir(path.parent) == ["model.safetensors"]


@pytest.mark.parametrize("element", ["F8_E4M3", "I8", "I64", "C64"])
def test_elements_of_a_type_that_there_is_not(path: Path, element: str) -> None:
    size = {"I64": 8, "C64": 8}.get(element, 1)
    header = json.dumps({"__metadata__": {"format": "ag-model-1", "model": json.dumps(linear())},
                         "W": {"dtype": element, "shape": [1, 1], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    with expect_error("loading elements of a type that there is not", ag.CheckpointError, "model.safetensors",
                      element.lower()):
        ag.ag_load_model(path)


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace"])
def test_a_failure_leaves_the_old_file(saved: Path, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(failing, fail)
        with expect_error("the disk is full while a model is saved", OSError, "No space left"):
            ag.ag_save_model(ag.ag_linear(3, 3), saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]
    ag.ag_save_model(ag.ag_linear(3, 3), saved)
    assert ag.ag_load_model(saved).W.shape == (3, 3)


@pytest.mark.parametrize("name", ["__metadata__", "\ud800", 3])
def test_a_name_that_no_file_can_hold(saved: Path, name: Any) -> None:
    model, before = Own(), saved.read_bytes()
    model.parameters = lambda: {name: model.W}
    with expect_error("saving a tensor with such a name", ValueError, "model.safetensors", repr(name), "Rename it"):
        ag.ag_save_model(model, saved)
    assert saved.read_bytes() == before


@pytest.mark.parametrize("name", ["a b", "ä/ö", "..", "", "\n", "a.b", "\0", "\U0001f600", "x" * 10000])
def test_every_other_name_comes_back(path: Path, name: str) -> None:
    def make() -> Own:
        model = Own()
        model.parameters = lambda: {name: model.W}
        return model

    model = make()
    model.W.data = model.W.numpy() + 1
    ag.ag_save_model(model, path)
    assert np.array_equal(ag.ag_load_model(path, model_fn=make).W.numpy(), model.W.numpy())


SPECIAL = np.array([0x7FC00001, 0xFFC12345, 0x7F800000, 0x80000000, 1], np.uint32).view(np.float32)


@pytest.mark.parametrize(("values", "dtype"), [
    (SPECIAL[None], "f32"), (np.zeros((0, 3)), "f32"), (np.zeros((2, 0, 3)), "bf16"), (np.float64(3.5), "f32"),
    (np.float64(1.5), "bf16"), (np.arange(1 << 16, dtype=np.uint16).view(np.float16)[None], "f16"),
    ((np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)[None], "bf16"), (np.array([[1 / 3, 5e-324]]), "f64"),
    (np.arange(12.0).reshape(3, 4).T, "f32"), (np.arange(12, dtype=">f4").reshape(3, 4), "f32"),
    (np.arange(24.0)[::2].reshape(3, 4)[::-1], "f32"), (np.broadcast_to(3.0, (2, 2)), "f32"),
])
def test_every_array_comes_back_to_the_bit(path: Path, values: Any, dtype: str) -> None:
    def holding(values: Any) -> Own:
        model = Own()
        model.W = ag.ag_param(values, dtype=dtype)
        return model

    model = holding(values)
    ag.ag_save_model(model, path)
    loaded = ag.ag_load_model(path, model_fn=lambda: holding(np.zeros(np.shape(values)))).W
    assert (loaded.shape, loaded.dtype) == (np.shape(values), dtype)
    assert loaded.numpy().tobytes() == model.W.numpy().tobytes()
    assert np.array_equal(loaded.numpy(), np.asarray(values, loaded.numpy().dtype), equal_nan=True)


def test_what_killed_saves_left_is_removed_by_the_next(saved: Path) -> None:
    old = time.time() - 3600
    stays = [saved.name, f".{saved.name}.0123abc", f".{saved.name}.0123abcg", f".{saved.name}.0123abcd.txt",
             f"{saved.name}.0123abcd", ".model.0123abcd", f".other.{saved.name}.0123abcd", f".{saved.name}.00000000",
             f".{saved.name}.11111111", f".{saved.name}.22222222"]
    for name in (*stays[1:-2], f".{saved.name}.0123abcd", f".{saved.name}.ffffffff"):
        (saved.parent / name).write_bytes(b"half a file")
        os.utime(saved.parent / name, (old, old))
    (saved.parent / stays[-1]).mkdir()
    os.utime(saved.parent / stays[-1], (old, old))
    os.utime(saved.parent / stays[-3])  # another process is writing it
    (saved.parent / stays[-2]).symlink_to(saved)
    ag.ag_save_model(ag.ag_linear(3, 3), saved)
    assert sorted(os.listdir(saved.parent)) == sorted(stays)


def test_a_left_file_that_cannot_be_removed_does_not_matter(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = saved.with_name(f".{saved.name}.0123abcd")
    left.write_bytes(b"half a file")
    os.utime(left, (0, 0))

    def refuse(path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    with monkeypatch.context() as patch:
        patch.setattr("os.unlink", refuse)
        ag.ag_save_model(ag.ag_linear(3, 3), saved)
    assert left.exists() and ag.ag_load_model(saved).W.shape == (3, 3)


def test_a_file_cannot_ask_for_a_layer_of_the_user(path: Path) -> None:
    known = set(LIBRARY)
    write(path, {"layer": forged("Mine", __name__).__name__, "args": {}})
    with expect_error("loading a file with a forged description", ag.CheckpointError, "'Mine'", "model_fn"):
        ag.ag_load_model(path)
    assert set(LIBRARY) == known
