"""Collectives on tensors, and the layers whose weights are spread over devices: dense results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.training_losses import training_losses

import ag
from ag.parallel.comm import tensor_collectives as collectives
from ag.parallel.comm.tree_reduction import shard_sizes

RNG = np.random.default_rng(31)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(params=["one", "two", "twice", "two vendors"])
def devices(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "two vendors":
        return [request.getfixturevalue("lavapipe"), request.getfixturevalue("swiftshader")]
    return {"one": ["cpu"], "two": ["cpu", "cpu:1"], "twice": ["cpu", "cpu"]}[request.param]


# ---------------------------------------------------------------------------------------------- collectives


def through(call: Callable[[list[ag.Tensor]], list[ag.Tensor]], arrays: list[Any], devices: list[str]) -> Any:
    """Results of a collective, and the gradients of a sum of its results with random weights."""
    params = [ag.ag_param(x, device=d) for x, d in zip(arrays, devices, strict=True)]
    with ag.with_grad_tape():
        results = call(params)
        weights = [normal(*r.shape) for r in results]
        sums = [ag.ag_to_device(ag.ag_sum(r * ag.ag_tensor(w, device=r.device)), devices[0])
                for r, w in zip(results, weights, strict=True)]
        loss = sums[0]
        for part in sums[1:]:
            loss = loss + part
    grads = ag.backward(loss)
    assert [r.device for r in results] == [p.device for p in params]
    return [r.numpy() for r in results], weights, [grads[p].numpy() for p in params]


def all_reduce(parts: list[ag.Tensor]) -> list[ag.Tensor]:
    total = collectives.reduce(parts, parts[0].device)
    return [ag.ag_to_device(total, t.device) for t in parts]


def all_gather(parts: list[ag.Tensor]) -> list[ag.Tensor]:
    return [ag.ag_concat(collectives.moved(parts, t.device), -1) for t in parts]


def reduce_scatter(parts: list[ag.Tensor]) -> list[ag.Tensor]:
    sizes = shard_sizes(parts[0].shape[-1], [1.0] * len(parts))
    return collectives.split(collectives.reduce(parts, parts[0].device), sizes, [t.device for t in parts])


def test_all_reduce_is_its_own_adjoint(devices: list[str]) -> None:
    arrays = [normal(3, 4) for _ in devices]
    results, weights, grads = through(all_reduce, arrays, devices)
    for r, g in zip(results, grads, strict=True):
        np.testing.assert_allclose(r, sum(arrays), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(g, sum(weights), rtol=1e-6, atol=1e-6)


def test_reduce_scatter_is_the_adjoint_of_all_gather(devices: list[str]) -> None:
    arrays = [normal(3, 2 + i) for i in range(len(devices))]
    results, weights, grads = through(all_gather, arrays, devices)
    whole, ends = np.concatenate(arrays, 1), np.cumsum([x.shape[1] for x in arrays])[:-1]
    for r, g, part in zip(results, grads, np.split(sum(weights), ends, 1), strict=True):
        assert (r == whole).all()
        np.testing.assert_allclose(g, part, rtol=1e-6, atol=1e-6)
    arrays = [normal(5, 7) for _ in devices]
    results, weights, grads = through(reduce_scatter, arrays, devices)
    np.testing.assert_allclose(np.concatenate(results, 1), sum(arrays), rtol=1e-6, atol=1e-6)
    for g in grads:
        np.testing.assert_allclose(g, np.concatenate(weights, 1), rtol=1e-6, atol=1e-6)


def test_broadcast_adds_up_gradients(devices: list[str]) -> None:
    p = ag.ag_param(normal(2, 3), device=devices[0])
    with ag.with_grad_tape():
        loss = collectives.reduce([ag.ag_sum(ag.ag_to_device(p, device)) for device in devices], devices[0])
    assert (ag.backward(loss)[p].numpy() == len(devices)).all()


def test_shapes_that_differ() -> None:
    with pytest.raises(ag.ShapeError, match=r"tensor 0 is \(2, 1\) and tensor 1 is \(3, 1\)"):
        all_reduce([ag.ag_tensor(normal(2, 1)), ag.ag_tensor(normal(3, 1))])


# ---------------------------------------------------------------------------------------------- layers


def gradients(model: Any, x: Any, y: Any) -> tuple[Any, Any, ag.Gradients]:
    p = ag.ag_param(x, device=y.device)
    with ag.with_grad_tape():
        out = model(p)
        loss = ag.ag_mse_loss(out, y)
    grads = ag.backward(loss)
    return out.numpy(), grads[p].numpy(), grads


@pytest.mark.parametrize("shape", [(6, 5), (6, 3, 2)])
@pytest.mark.parametrize("weights", [None, [3, 1]])
@pytest.mark.parametrize("kind", [ag.ColumnParallelLinear, ag.RowParallelLinear])
def test_a_layer_is_the_dense_one(kind: Any, weights: Any, shape: tuple[int, ...], devices: list[str]) -> None:
    with ag.ag_device(devices[0]):
        dense = ag.ag_linear(6, 7, activation="tanh")
        dense.b.data = normal(7, 1)
        layer = kind.from_linear(dense, devices, None if weights is None else weights[: len(devices)])
        assert (layer.weight() == dense.W.numpy()).all()
        x, y = normal(*shape), ag.ag_tensor(normal(7, *shape[1:]))
        out, dx, grads = gradients(layer, x, y)
        expected, dx_expected, of_dense = gradients(dense, x, y)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dx, dx_expected, rtol=1e-5, atol=1e-6)
        dW = np.concatenate([grads[w].numpy() for w in layer.W], 0 if kind is ag.ColumnParallelLinear else 1)
        np.testing.assert_allclose(dW, of_dense[dense.W].numpy(), rtol=1e-5, atol=1e-6)
        b = layer.b if isinstance(layer.b, list) else [layer.b]
        np.testing.assert_allclose(np.concatenate([grads[part].numpy() for part in b]), of_dense[dense.b].numpy(),
                                   rtol=1e-5, atol=1e-6)


def perceptron(devices: list[str]) -> ag.Layer:
    """A dense perceptron's values, spread 3 : 1 over two devices with nothing exchanged in between."""
    ag.ag_seed(2)
    first, second = ag.ag_linear(5, 8, activation="gelu"), ag.ag_linear(8, 3)
    weights = [3, 1][: len(devices)]
    column = ag.ColumnParallelLinear.from_linear(first, devices, weights)
    column.gather_output = False
    return ag.ag_sequential(column, ag.RowParallelLinear.from_linear(second, devices, weights))


def test_one_behind_the_other_trains_as_the_dense_ones(devices: list[str]) -> None:
    x, y = normal(5, 6), normal(3, 6)

    def losses(model: ag.Layer) -> list[float]:
        return training_losses(model, ag.optimizer_adamw(model, lr=0.02), ag.ag_tensor(x), y, steps=10)

    with ag.ag_device(devices[0]):
        spread = losses(perceptron(devices))
        ag.ag_seed(2)
        dense = losses(ag.ag_sequential(ag.ag_linear(5, 8, activation="gelu"), ag.ag_linear(8, 3)))
    np.testing.assert_allclose(spread, dense, rtol=1e-5)


@pytest.mark.parametrize("groups", [[("cpu", "cpu:1"), ("cpu:2", "cpu:3")], [("cpu", "cpu:1"), ("cpu:1", "cpu:2")]],
                         ids=["apart", "sharing a device"])
def test_replicas_of_a_model_that_is_spread(groups: list[tuple[str, str]]) -> None:
    """Tensor parallel times data parallel."""
    model = perceptron(["cpu", "cpu:1"])
    x, y = normal(5, 7), ag.ag_tensor(normal(3, 7))
    out, dx, grads = gradients(model, x, y)
    many = gradients(ag.DataParallel(model, groups), x, y)
    np.testing.assert_allclose(many[0], out, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(many[1], dx, rtol=1e-5, atol=1e-6)
    for p in model.parameters().values():
        np.testing.assert_allclose(many[2][p].numpy(), grads[p].numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="give a device for each"):
        ag.DataParallel(model, [("cpu", "cpu:1", "cpu:2")])(ag.ag_tensor(x))


def test_state_round_trip() -> None:
    model = perceptron(["cpu", "cpu:1"])
    state = model.state_dict()
    other = perceptron(["cpu", "cpu:1"])
    other.load_state_dict({k: v + 1 for k, v in state.items()})
    assert (other.layers[0].weight() == model.layers[0].weight() + 1).all()


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: ag.ColumnParallelLinear(0, 2, ["cpu"]), ValueError, "in_features is 0"),
    (lambda: ag.ColumnParallelLinear(2, 2, []), ValueError, "at least one device"),
    (lambda: ag.RowParallelLinear(2, 2, ["cpu"], weights=[0.0]), ValueError, "positive weight"),
    (lambda: ag.RowParallelLinear(2, 2, ["cpu"] * 3), ValueError, r"\[1, 1, 0\] per device"),
    (lambda: ag.ColumnParallelLinear(2, 2, ["cpu"], activation="softmax"), ValueError, "needs all features"),
    (lambda: ag.ColumnParallelLinear(2, 2, ["cpu"], activation="swish"), ValueError, "unknown activation"),
    (lambda: ag.ColumnParallelLinear(2, 2, ["cpu"])(normal(3, 1)), ag.ShapeError, r"x is \(3, 1\); \(2, batch\)"),
    (lambda: ag.RowParallelLinear(4, 2, ["cpu"] * 2)([ag.ag_tensor(normal(3, 1)), ag.ag_tensor(normal(1, 1))]),
     ag.ShapeError, r"\[3, 1\] features; \[2, 2\] are required"),
])
def test_bad_arguments(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
