"""Layers of convolution, norms and functions: options, weights of PyTorch, files, train mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from safetensors.numpy import save_file

import ag
from ag import nn, ops

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 6, 5, 3)).astype(np.float32)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_modes_are_those_of_pad(mode: str, device: str) -> None:
    with ag.ag_device(device):
        layer = nn.Conv2d(4, 2, (3, 2), padding=(2, 1), padding_mode=mode)
        around = ops.pad(X, (1, 1, 2, 2), mode)
        assert np.array_equal(layer(X).numpy(), ops.conv2d(around, layer.W, layer.b).numpy())
        same = nn.Conv2d(4, 2, (3, 4), padding="same", padding_mode=mode, dilation=(2, 1), groups=2)
        around = ops.pad(X, (1, 2, 2, 2), mode)
        assert np.array_equal(same(X).numpy(), ops.conv2d(around, same.W, same.b, dilation=(2, 1), groups=2).numpy())


def test_sizes_of_convolutions() -> None:
    assert nn.Conv2d(4, 8, 4, padding="same", groups=4)(X).shape == (8, 6, 5, 3)
    assert nn.Conv1d(4, 8, 2, padding="same", dilation=3)(X[:, 0]).shape == (8, 5, 3)
    assert nn.Conv3d(4, 2, 3, padding="valid")(np.ones((4, 5, 4, 3, 2))).shape == (2, 3, 2, 1, 2)
    assert nn.ConvTranspose2d(4, 8, 3, 2, 1, 1, groups=2, activation="relu")(X).shape == (8, 12, 10, 3)
    assert nn.ConvTranspose1d(4, 8, 3, 2, bias=False)(X[:, 0]).shape == (8, 11, 3)
    assert {n: p.shape for n, p in nn.ConvTranspose2d(4, 8, 3, groups=2).parameters().items()} == {
        "W": (4, 4, 3, 3), "b": (8, 1)}
    ag.ag_seed(1)
    limit = np.abs(nn.Conv2d(64, 64, 3, groups=64).W.numpy()).max()
    assert 0.9 * (6 / 18) ** 0.5 < limit <= (6 / 18) ** 0.5  # a value goes to 9 others, and comes of 9
    assert ag.summary(nn.ConvTranspose2d(4, 8, 3, groups=2), (4, 6, 5)).total("multiply_adds") == 4 * 30 * 4 * 9


MODEL = [(nn.Conv2d(4, 4, 3, groups=2, padding="same"), "Conv2d(4, 4, 3, groups=2, padding='same')"),
         (nn.GroupNorm(2, 4), "GroupNorm(2, 4)"), (nn.PReLU(4), "PReLU(4)"),
         (nn.ConvTranspose2d(4, 6, (3, 2), 2, 1, 1, 2), "ConvTranspose2d(4, 6, (3, 2), 2, 1, 1, 2)"),
         (nn.InstanceNorm2d(6, affine=True), "InstanceNorm2d(6, affine=True)"), (nn.MaxPool2d(2), "MaxPool2d(2)"),
         (nn.Upsample(scale_factor=2, mode="bilinear"), "Upsample(scale_factor=2, mode='bilinear')"),
         (nn.ReflectionPad2d((1, 0, 2, 1)), "ReflectionPad2d((1, 0, 2, 1))")]


def of_pytorch() -> dict[str, np.ndarray]:
    """A state dict of the same layers there."""
    shapes = {"0.weight": (4, 2, 3, 3), "0.bias": 4, "1.weight": 4, "1.bias": 4, "2.weight": 4,
              "3.weight": (4, 3, 3, 2), "3.bias": 6, "4.weight": 6, "4.bias": 6}
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_weights_of_pytorch_fit(tmp_path: Path) -> None:
    state, model = of_pytorch(), nn.Sequential([layer for layer, _ in MODEL])
    save_file(state, tmp_path / "theirs.safetensors")
    ag.load_weights(model, tmp_path / "theirs.safetensors")
    assert np.array_equal(model[3].W.numpy(), state["3.weight"])
    assert np.array_equal(model[2].weight.numpy()[:, 0], state["2.weight"])
    torch = pytest.importorskip("torch", reason="PyTorch is not installed, so the results were not compared")
    theirs = torch.nn.Sequential(*(eval(source, vars(torch.nn)) for _, source in MODEL))
    theirs.load_state_dict({name: torch.from_numpy(x) for name, x in state.items()})
    want = theirs(torch.from_numpy(np.ascontiguousarray(np.moveaxis(X, -1, 0)))).detach().numpy()
    assert np.allclose(model(X).numpy(), np.moveaxis(want, 0, -1), atol=1e-4)


def test_norms_without_factor_and_offset(device: str) -> None:
    with ag.ag_device(device):
        for make, left in ((lambda **p: nn.BatchNorm1d(4, **p), {}), (lambda **p: nn.RMSNorm(4, **p), {}),
                           (lambda **p: nn.LayerNorm(4, **p), {}), (lambda **p: nn.GroupNorm(2, 4, **p), {})):
            name = "elementwise_affine" if "elementwise_affine" in make().settings else "affine"
            layer, whole = make(**{name: False}), make()
            assert layer.parameters() == left and np.array_equal(layer(X).numpy(), whole(X).numpy())
        layer = nn.LayerNorm(4, bias=False)
        assert [*layer.parameters()] == ["gamma"] and np.array_equal(layer(X).numpy(), nn.LayerNorm(4)(X).numpy())
        step = ag.ag_capture(nn.BatchNorm2d(4, affine=False))
        assert np.array_equal(step(X).numpy(), step(X).numpy())
    with ag.ag_device(device), ag.ag_dtype("bf16"):
        assert nn.LayerNorm(4, bias=False)(X).dtype == nn.BatchNorm(4, affine=False)(X).dtype == "bf16"


def test_dropout_of_channels(device: str) -> None:
    with ag.ag_device(device):
        ag.ag_seed(0)
        layer, x = nn.Dropout2d(0.5), ag.ag_tensor(np.ones((8, 3, 2, 5)))
        step = ag.ag_capture(layer)
        for drop in (layer, step, step):
            kept = drop(x).numpy()
            assert set(np.unique(kept)) == {0.0, 2.0}
            assert np.array_equal(kept, np.broadcast_to(kept[:, :1, :1], x.shape))
        assert not np.array_equal(step(x).numpy(), step(x).numpy())
        assert np.array_equal(layer.eval()(x).numpy(), x.numpy())


GIVEN: dict[str, tuple[Any, ...]] = {
    "Threshold": (0.5, -1.0), "Unflatten": (0, (2, -1)), "Fold": ((6, 5), (1, 1)), "Unfold": (2,),
    "Upsample": (None, 2), "LocalResponseNorm": (3,), "PixelShuffle": (2,), "PixelUnshuffle": (1,)}


@pytest.mark.parametrize("name", [name for name in ag.nn.functions.__all__ if name[0].isupper() and not name.endswith(
    ("Loss", "GlobalPool", "Flatten", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d"))])
def test_a_layer_of_a_function_is_the_function_and_survives_a_file(name: str, tmp_path: Path) -> None:
    kind = getattr(nn, name)
    given = GIVEN.get(name, (1.0,) if name == "PReLU" else (2,) if "Pool" in name else (1,) if "Pad" in name else ())
    given = () if name == "PReLU" else given
    x = X[:, 0] if name.endswith("1d") else X[:, :, :, None] if name.endswith("3d") else X
    x = X.reshape(4, 30, 3) if name == "Fold" else np.repeat(x, 2, 3) if "3d" in name else x
    layer = kind(*given)
    ag.ag_save_model(layer, tmp_path / "model")
    read = ag.ag_load_model(tmp_path / "model")
    assert type(read) is kind and read.config() == layer.config()
    out = layer(x).numpy()
    assert np.array_equal(out, read(x).numpy())
    function = getattr(kind, "_called", None)
    assert function is None or np.array_equal(out, function(x, *given).numpy())


def test_files_and_texts_tell_settings_that_are_not_the_usual_ones() -> None:
    usual = nn.Sequential(nn.Conv2d(2, 3, 1), nn.MaxPool(2), nn.AvgPool(2), nn.BatchNorm(3), nn.LayerNorm(3))
    for word in ("dilation", "ceil_mode", "count_include_pad", "affine", "bias': True, 'padding"):
        assert word not in repr(usual) and word not in str(usual.config())
    other = nn.Sequential(nn.Conv2d(2, 2, 1, groups=2), nn.MaxPool(2, ceil_mode=True), nn.BatchNorm(3, affine=False))
    assert "groups=2" in repr(other) and "ceil_mode=True" in repr(other) and "affine=False" in repr(other)


def test_wrong_settings_are_named() -> None:
    for make, error, fragments in (
            (lambda: nn.Conv2d(4, 6, 3, groups=4), ValueError, ("ag_conv2d_layer: groups is 4", "out_ch is 6")),
            (lambda: nn.Conv1d(4, 6, 3, padding="full"), ValueError, ("Conv1d: padding is 'full'", "'same'")),
            (lambda: nn.Conv1d(4, 6, 3, 2, "same"), ValueError, ("Conv1d: padding is 'same' and stride is (2,)",)),
            (lambda: nn.Conv2d(4, 6, 3, padding_mode="mirror"), ValueError, ("padding_mode is 'mirror'", "reflect")),
            (lambda: nn.Conv2d(4, 6, 3, padding=3, padding_mode="circular")(X[:, :2]), ag.ShapeError, ("of 2 places",)),
            (lambda: nn.GroupNorm(3, 4), ValueError, ("GroupNorm: num_groups is 3", "divide")),
            (lambda: nn.GroupNorm(2, 6)(X), ag.ShapeError, ("GroupNorm: x is (4, 6, 5, 3)", "(6, ..., batch)")),
            (lambda: nn.LayerNorm(6, elementwise_affine=False)(X), ag.ShapeError, ("LayerNorm: x is (4, 6, 5, 3)",)),
            (lambda: nn.MaxPool1d(len), TypeError, ("MaxPool1d: size is a builtin",)),
            (lambda: nn.ReflectionPad2d(1)(X[:, 0]), ag.ShapeError, ("ReflectionPad2d: x is (4, 5, 3)",)),
            (lambda: nn.ReflectionPad2d((1, 2))(X), ValueError, ("ReflectionPad2d: padding is (1, 2)", "4 of them")),
            (lambda: nn.PReLU(3)(X), ag.ShapeError, ("PReLU: x is (4, 6, 5, 3)",)),
            (lambda: nn.Unflatten(0, (3, 2))(X), ag.ShapeError, ("Unflatten: (4,) holds 4",))):
        with expect_error("a wrong setting", error, *fragments):
            make()
