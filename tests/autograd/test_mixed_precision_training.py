"""16-bit types, from layer to optimizer: layers train alike captured, eager and recomputed; views and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ag

Array = np.ndarray[Any, Any]
Batch = Callable[[np.random.Generator], Array]


def gradient(W: ag.Tensor, loss_of: Callable[[], ag.Tensor], retain: bool = False) -> Array:
    with ag.with_grad_tape():
        loss = loss_of()
    return ag.backward(loss, retain)[W].numpy()


# ---------------------------------------------------------------------------------------------- layers


def numbers(*shape: int) -> Batch:
    return lambda rng: rng.normal(size=shape).astype(np.float32)


LAYERS: dict[str, tuple[Callable[[], ag.Layer], Batch]] = {
    "linear": (lambda: ag.ag_linear(6, 5, "tanh"), numbers(6, 7)),
    "sequential": (lambda: ag.ag_sequential(ag.ag_linear(6, 5, "silu"), ag.ag_linear(5, 3)), numbers(6, 7)),
    "dropout": (lambda: ag.ag_dropout(0.4), numbers(6, 7)),
    "batch norm": (lambda: ag.ag_batch_norm(6), numbers(6, 7)),
    "batch norm of images": (lambda: ag.ag_batch_norm(3), numbers(3, 5, 5, 3)),
    "layer norm": (lambda: ag.ag_layer_norm(6), numbers(6, 3, 5)),
    "RMS norm": (lambda: ag.ag_rms_norm(6), numbers(6, 3, 5)),
    "attention with dropout": (lambda: ag.ag_multihead_attention(8, 2, dropout=0.3, bias=False), numbers(8, 5, 3)),
    "convolution": (lambda: ag.ag_conv2d_layer(3, 5, 3, stride=2, padding=1, activation="relu"), numbers(3, 7, 5, 3)),
    "max pool": (lambda: ag.ag_max_pool(3, 2, 1), numbers(3, 7, 5, 3)),
    "global pool": (ag.ag_global_pool, numbers(3, 7, 5, 3)),
    "residual": (lambda: ag.ag_residual(ag.ag_sequential(ag.ag_linear(6, 6, "relu"), ag.ag_batch_norm(6))),
                 numbers(6, 7)),
    "embedding": (lambda: ag.ag_embedding(11, 5), lambda rng: rng.integers(0, 11, (3, 4))),  # ids occur repeatedly
}
ON_DRIVERS = ("linear", "batch norm of images", "attention with dropout", "embedding")


class Scaled(ag.Layer):
    """A layer after a factor for each feature, so that every layer has something to train before it."""

    def __init__(self, layer: ag.Layer, example: Array) -> None:
        self.layer = layer
        if example.dtype.kind == "f":
            self.factor = ag.ag_param(np.linspace(0.5, 1.5, len(example)).reshape(-1, *[1] * (example.ndim - 1)))

    def forward(self, x: Any) -> ag.Tensor:
        """The layer's output."""
        result: ag.Tensor = self.layer(self.factor * x if hasattr(self, "factor") else x)
        return result


def trained(name: str, captured: bool, recomputed: bool = False, tensors: bool = False) -> dict[str, Any]:
    """Losses, weights, buffers and optimizer state after a few steps."""
    make, batch = LAYERS[name]
    rng = np.random.default_rng(1)
    xs = [batch(rng) for _ in range(3)]
    ag.ag_seed(5)
    model = Scaled(make(), xs[0])
    optimizer = ag.optimizer_adam(model, lr=1e-2)

    def step(x: Any) -> ag.Tensor:
        with ag.with_grad_tape():
            y = ag.ag_checkpoint(model, x) if recomputed else model(x)
            loss = ag.ag_mean(y * y * 0.5) + ag.ag_mean(ag.ag_abs(y))
        optimizer.step(ag.backward(loss))
        return loss

    run = ag.ag_capture(step) if captured else step
    losses = [run(ag.ag_tensor(x) if tensors else x).numpy() for x in xs]
    assert optimizer.skipped == 0
    return {"losses": np.array(losses), **model.state_dict(), **optimizer.state_dict()}


def assert_same_bits(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    assert not [name for name in want if got[name].tobytes() != want[name].tobytes()]


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in ON_DRIVERS else pytest.mark.slow_on("lavapipe")) for name in LAYERS])
def test_a_layer_trains_the_same_captured_eager_and_recomputed(device: str, dtype: str, name: str) -> None:
    eager = trained(name, captured=False)
    assert_same_bits(trained(name, captured=True), eager)
    assert_same_bits(trained(name, captured=True, recomputed=True), eager)
    if name != "embedding":  # ids are not numbers to round
        assert_same_bits(trained(name, captured=True, tensors=True), eager)
    ag.ag_dtype("f32")
    exact = trained(name, captured=False)
    ag.ag_dtype(dtype)
    np.testing.assert_allclose(eager["losses"], exact["losses"], rtol=0.02, atol=0.02)


def test_dropout_masks_are_those_of_float32(device: str, dtype: str) -> None:
    masks = []
    for kind in (dtype, "f32"):
        ag.ag_seed(3)
        masks.append(ag.ag_dropout(0.5)(ag.ag_tensor(np.ones((33, 5)), dtype=kind)).numpy())
    np.testing.assert_array_equal(*masks)


def test_layers_are_moved_bit_for_bit(device: str, dtype: str) -> None:
    model = ag.ag_sequential(ag.ag_conv2d_layer(2, 3, 3), ag.ag_batch_norm(3), ag.ag_flatten_layer(),
                             ag.ag_linear(12, 3))
    before, kinds = model.state_dict(), {name: p.dtype for name, p in model.parameters().items()}
    for place in ("cpu:1", device):
        assert_same_bits(model.to(place).state_dict(), before)
        assert {p.device for p in {**model.parameters(), **model.buffers()}.values()} == {place}
        assert {name: p.dtype for name, p in model.parameters().items()} == kinds
    optimizer = ag.optimizer_adam(model)
    model.to("cpu:1")
    with pytest.raises(ag.DeviceError, match=r"is on cpu:1 and the optimizer's state on .*make the optimizer after"):
        optimizer.step({name: np.zeros(p.shape) for name, p in model.parameters().items()})


# ---------------------------------------------------------------------------------------------- shapes and views


def test_no_elements(device: str, dtype: str) -> None:
    x, p, q = ag.ag_tensor(np.zeros((3, 0))), ag.ag_param(np.zeros((0, 4))), ag.ag_param(np.ones((2, 2)))
    assert ag.ag_cast(x, "f32").shape == (x * 2.0).shape == (3, 0)
    optimizer = ag.optimizer_adam([p, q], lr=0.1)
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_matmul(x, p)) + ag.ag_sum(q) * 0.125
    grads = ag.backward(loss)
    assert (grads[p].shape, grads[p].dtype) == ((0, 4), "f32")
    optimizer.step(grads)
    assert (optimizer.t, optimizer.skipped) == (1, 0)
    np.testing.assert_array_equal(ag.ag_concat([x, ag.ag_tensor(np.ones((3, 1)))], dim=1).numpy(), np.ones((3, 1)))


@pytest.mark.parametrize("key", [np.s_[1], np.s_[1:], np.s_[:, 1:4], np.s_[3, 5:6], np.s_[::-1], np.s_[1::2, 1::3],
                                 np.s_[6, 14], np.s_[2:5, ::-2], np.s_[None, 1, ...], np.s_[0:0]], ids=str)
def test_slices_at_odd_places(device: str, dtype: str, key: Any) -> None:
    values = np.arange(105.0, dtype=np.float32).reshape(7, 15) / 2
    W = ag.ag_param(values)
    np.testing.assert_array_equal((W[key] * 2.0).numpy(), values[key] * 2)
    want = np.zeros_like(values)
    want[key] = 0.5
    np.testing.assert_array_equal(gradient(W, lambda: ag.ag_sum(W[key]) * 0.5), want)


def test_parameters_of_odd_sizes_do_not_touch_each_other(device: str, dtype: str) -> None:
    sizes = (1, 3, 5, 2, 7)
    params = {f"p{n}": ag.ag_param(np.full((n, 1), float(n))) for n in sizes}
    optimizer = ag.optimizer_sgd(params, lr=1.0)
    optimizer.step({name: np.ones(p.shape) for name, p in params.items()})
    params["p3"].data = np.full((3, 1), 9.0)
    want = {f"p{n}": np.full((n, 1), 9.0 if n == 3 else n - 1.0) for n in sizes}
    for name, p in params.items():
        np.testing.assert_array_equal(p.numpy(), want[name])
    np.testing.assert_array_equal(params["p5"][1:4].numpy(), want["p5"][1:4])


# ---------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("loss_of", [
    lambda W: ag.ag_sum(W, dim=1, keepdim=True) * 0.125,
    lambda W: (ag.ag_sum(W) * 0.125).reshape(1, 1),
    lambda W: W[:, :1] * 0.125,
    lambda W: ag.ag_sum(W) * 0.125,
    lambda W: ag.ag_checkpoint(lambda: W[:, :1]) * 0.125,
], ids=["sum", "reshape", "slice", "scalar", "recomputed"])
def test_losses_of_one_element_and_any_shape(device: str, dtype: str, loss_of: Callable[[ag.Tensor], ag.Tensor],
                                             ) -> None:
    W = ag.ag_param([[1.0, 2.0]])
    optimizer = ag.optimizer_sgd([W])
    with ag.with_grad_tape():
        loss = loss_of(W)
    grads = [ag.backward(loss, retain=k < 2)[W].numpy() for k in range(3)]
    assert grads[0][0, 0] == 0.125
    np.testing.assert_array_equal(grads[0], grads[1])
    np.testing.assert_array_equal(grads[0], grads[2])
    np.testing.assert_array_equal(W.grad.numpy() if W.grad is not None else None, 3 * grads[0])
    optimizer.zero_grad()
    assert W.grad is None


def test_a_parameter_is_the_loss(device: str, dtype: str) -> None:
    W = ag.ag_param([[3.0]])
    optimizer = ag.optimizer_sgd([W])
    for loss_of in (lambda: W.reshape(1), lambda: W[0], lambda: W.astype("f32")):
        assert gradient(W, loss_of).ravel().tolist() == [1.0]
    assert optimizer.skipped == 0


def test_float32_parameters_in_a_16_bit_graph_get_true_gradients(device: str, dtype: str) -> None:
    x = ag.ag_param([[1.0, 2.0]])
    factor, W = ag.ag_param(np.array(0.5), dtype="f32"), ag.ag_param([[2.0, 1.0]], dtype="f32")
    optimizer = ag.optimizer_sgd([x])
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_cast(W, dtype) * x * factor) * 0.0625
    grads = ag.backward(loss)
    assert {g.dtype for g in grads.values()} == {"f32"}
    for p, want in ((factor, 0.25), (W, [[0.03125, 0.0625]]), (x, [[0.0625, 0.03125]])):
        np.testing.assert_array_equal(grads[p].numpy(), want)
    assert optimizer.skipped == 0


def test_an_optimizer_made_while_another_device_is_the_default(device: str, dtype: str) -> None:
    W = ag.ag_param([[1.0, 2.0]], device="cpu:2")
    optimizer = ag.optimizer_adam([W], lr=0.5)
    optimizer.step({"param1": np.array([[1.0, 1.0]])})
    assert W.device == "cpu:2" and optimizer.t == 1
    np.testing.assert_allclose(W.numpy(), [[0.5, 1.5]], rtol=1e-2)


def test_gradcheck_is_in_float64_all_the_same(device: str, dtype: str) -> None:
    inputs = [ag.ag_param(np.full((2, 3), 0.3)), ag.ag_tensor(np.full((3, 2), 0.2))]
    assert ag.ag_gradcheck(lambda x: ag.ag_sum(ag.ag_tanh(x[0] @ x[1]) * 2.0 + 1.0), inputs, quiet=True)
    assert ag.ag_default_dtype() == dtype
