"""Initial values: moments, limits and shapes are PyTorch's, and the stream is that of the seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag import nn
from ag.nn import init

Array = np.ndarray[Any, Any]


def filled(name: str, shape: tuple[int, ...], *args: Any, seed: int = 1, **settings: Any) -> Array:
    ag.ag_seed(seed)
    W = ag.ag_param(np.full(shape, 7.0))
    before = W.buffer
    assert getattr(init, name)(W, *args, **settings) is W and W.buffer is before and W.requires_grad
    found: Array = W.numpy().astype(np.float64)
    return found


# shape (40, 30, 5, 2): fan_in 300, fan_out 400
DRAWN = [
    ("uniform_", {}, 0.5, 1 / 12, (0, 1)), ("uniform_", {"a": -3.0, "b": 1.0}, -1, 16 / 12, (-3, 1)),
    ("normal_", {}, 0, 1, None), ("normal_", {"mean": 2.0, "std": 0.5}, 2, 0.25, None),
    ("trunc_normal_", {}, 0, 0.7737413, (-2, 2)),  # scipy.stats.truncnorm(-2, 2).var()
    ("trunc_normal_", {"std": 0.02, "a": 0.01, "b": 0.05}, 0.02213074, 8.515541e-5, (0.01, 0.05)),
    ("xavier_uniform_", {}, 0, 2 / 700, (-math.sqrt(6 / 700), math.sqrt(6 / 700))),
    ("xavier_normal_", {"gain": 3.0}, 0, 18 / 700, None),
    ("kaiming_uniform_", {}, 0, 2 / 300, (-math.sqrt(6 / 300), math.sqrt(6 / 300))),
    ("kaiming_uniform_", {"a": math.sqrt(5)}, 0, 1 / 900, (-math.sqrt(1 / 300), math.sqrt(1 / 300))),
    ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "relu"}, 0, 2 / 400, None),
    ("kaiming_normal_", {"nonlinearity": "tanh"}, 0, 25 / 9 / 300, None),
]


@pytest.mark.parametrize(("name", "settings", "mean", "variance", "limits"), DRAWN)
def test_moments_and_limits(
    name: str, settings: dict[str, Any], mean: float, variance: float, limits: tuple[float, float] | None
) -> None:
    x = filled(name, (40, 30, 5, 2), **settings)
    assert abs(x.mean() - mean) < 5 * math.sqrt(variance / x.size) + 1e-4 * abs(mean)
    assert abs(x.var() / variance - 1) < 5 * math.sqrt(2 / x.size)
    low, high = limits or (mean - 5.8 * math.sqrt(variance), mean + 5.8 * math.sqrt(variance))
    assert low <= x.min() < x.max() <= high
    again, other = filled(name, (40, 30, 5, 2), **settings), filled(name, (40, 30, 5, 2), seed=2, **settings)
    assert (x == again).all() and (x != other).mean() > 0.99


def test_normal_numbers_have_the_tails_of_a_normal_distribution() -> None:
    x = filled("normal_", (600, 500))
    for bound, share in ((1, 0.3173105), (2, 0.0455003), (3, 0.0026998), (4, 6.334e-5)):
        assert abs((np.abs(x) > bound).mean() - share) < 5 * math.sqrt(share / x.size)
    assert abs(np.corrcoef(x[:, :-1].ravel(), x[:, 1:].ravel())[0, 1]) < 0.01


def test_two_draws_differ() -> None:
    W = ag.ag_param(np.zeros((3, 3)))
    assert (init.normal_(W).numpy() != init.normal_(W).numpy()).all()


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (8, 3), (4, 2, 3, 3), (6, 1, 2)])
def test_rows_or_columns_are_orthogonal(shape: tuple[int, ...]) -> None:
    W = filled("orthogonal_", shape, gain=2.0).reshape(shape[0], -1)
    gram = W @ W.T if W.shape[0] <= W.shape[1] else W.T @ W
    assert np.abs(gram - 4 * np.eye(len(gram))).max() < 1e-5


def test_orthogonal_matrices_are_of_either_determinant_and_no_direction() -> None:
    found = [filled("orthogonal_", (2, 2), seed=seed) for seed in range(60)]
    assert 15 < sum(np.linalg.det(W) > 0 for W in found) < 45
    assert np.abs(np.mean(found, 0)).max() < 0.4


def test_a_share_of_each_column_is_0() -> None:
    W = filled("sparse_", (11, 40), 0.3, std=2.0)
    assert ((W == 0).sum(0) == 4).all() and abs(W[W != 0].std() - 2) < 0.5  # ceil(0.3 * 11)
    assert len({tuple(np.flatnonzero(column == 0)) for column in W.T}) > 20


def test_what_is_not_drawn() -> None:
    assert (filled("constant_", (2, 3), 0.25) == 0.25).all() and (filled("ones_", (2,)) == 1).all()
    assert (filled("zeros_", (2, 0)) == 0).all() and (filled("eye_", (2, 3)) == np.eye(2, 3)).all()


@pytest.mark.parametrize(("shape", "groups", "ones"), [  # as PyTorch 2.8 has them
    ((3, 4, 5), 1, [(0, 0, 2), (1, 1, 2), (2, 2, 2)]), ((5, 2, 4), 1, [(0, 0, 2), (1, 1, 2)]),
    ((4, 2, 3, 3), 2, [(0, 0, 1, 1), (1, 1, 1, 1), (2, 0, 1, 1), (3, 1, 1, 1)]),
    ((2, 3, 1, 2, 3), 1, [(0, 0, 0, 1, 1), (1, 1, 0, 1, 1)])])
def test_dirac_passes_channels_on(shape: tuple[int, ...], groups: int, ones: list[tuple[int, ...]]) -> None:
    W = filled("dirac_", shape, groups)
    assert [tuple(place) for place in np.argwhere(W == 1).tolist()] == ones and W.sum() == len(ones)


def test_gains() -> None:
    gains = {"linear": 1.0, "conv2d": 1.0, "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3,
             "relu": math.sqrt(2), "leaky_relu": math.sqrt(2 / (1 + 0.01**2)), "selu": 0.75}
    assert {name: init.calculate_gain(name) for name in gains} == pytest.approx(gains)
    assert init.calculate_gain("leaky_relu", 2.0) == pytest.approx(math.sqrt(2 / 5))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_on_devices_and_in_16_bits(device: str, dtype: str) -> None:
    with ag.ag_device(device), ag.ag_dtype(dtype):
        layer = nn.Linear(6, 4)
        ag.ag_seed(3)
        init.xavier_uniform_(layer.W, gain=0.5)
        assert layer.W.dtype == dtype and layer.W.device == device
    ag.ag_seed(3)
    want = init.xavier_uniform_(ag.ag_param(np.zeros((4, 6)), "cpu"), gain=0.5)
    assert (layer.W.numpy() == (want.numpy() if dtype == "f32" else want.astype(dtype).numpy())).all()


def test_a_captured_step_sees_new_values() -> None:
    W, x = ag.ag_param(np.zeros((2, 2))), ag.ag_tensor(np.ones((2, 1)))
    step = ag.ag_capture(lambda x: W @ x)
    assert [step(x).numpy().sum() for _ in range(3)] == [0] * 3
    init.ones_(W)
    assert step(x).numpy().ravel().tolist() == [2, 2]
    with expect_error("values drawn in a step", ag.CaptureError, "calls normal_"):
        ag.ag_capture(lambda x: init.normal_(W) @ x)(x)


ERRORS: list[tuple[str, tuple[int, ...], dict[str, Any], type[BaseException], str]] = [
    *[(name, (), {}, ag.ShapeError, "tensor is (); (out, in, ...) is required") for name in (
        "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_")],
    ("eye_", (2, 2, 2), {}, ag.ShapeError, "a matrix is required"),
    ("sparse_", (2, 2, 2), {"sparsity": 0.1}, ag.ShapeError, "a matrix is required"),
    ("sparse_", (2, 2), {"sparsity": 1.1}, ValueError, "sparsity is 1.1; a number from 0 to 1"),
    ("dirac_", (2, 2), {}, ag.ShapeError, "(out, in, width)"),
    ("dirac_", (3, 2, 3), {"groups": 2}, ag.ShapeError, "2 groups"),
    ("normal_", (2, 2), {"std": -1.0}, ValueError, "std is -1.0"),
    ("uniform_", (2, 2), {"a": 2.0}, ValueError, "a is 2.0 and b is 1.0"),
    ("trunc_normal_", (2, 2), {"a": 3.0}, ValueError, "a below b"),
    ("trunc_normal_", (2, 2), {"mean": 9.0}, ValueError, "not beyond 6 std"),
    ("kaiming_normal_", (2, 2), {"mode": "fan"}, ValueError, "mode is 'fan'"),
    ("kaiming_normal_", (2, 2), {"nonlinearity": "gelu"}, ValueError, "nonlinearity is 'gelu'"),
]


@pytest.mark.parametrize(("name", "shape", "settings", "error", "said"), ERRORS)
def test_errors(
    name: str, shape: tuple[int, ...], settings: dict[str, Any], error: type[BaseException], said: str
) -> None:
    W = ag.ag_param(np.full(shape, 7.0))
    with expect_error(f"{name} of {shape}", error, f"{name}: " if "gelu" not in said else "calculate_gain: ", said):
        getattr(init, name)(W, **settings)
    assert (W.numpy() == 7).all()


@pytest.mark.parametrize("given", [np.zeros((2, 2)), nn.Linear(2, 2), ag.ag_tensor([[1, 2]], dtype="i32")])
def test_only_floats_are_filled(given: object) -> None:
    call: Callable[[object], object] = init.normal_  # type: ignore[assignment]
    with expect_error("something else is filled", TypeError, "normal_: tensor is", "a tensor of floats is required"):
        call(given)
