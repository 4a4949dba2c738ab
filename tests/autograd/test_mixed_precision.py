"""f16 and bf16: conversions to the last bit, what is stored, and how 16-bit tensors meet others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.guarded import guarded

import ag
from ag.engine.backend import Backend
from ag.engine.buffer import Buffer
from ag.engine.device import backend_of
from ag.engine.dtype import BF16, F16, F32, DType
from ag.engine.kernels.convert import loaded, narrow, reconcile, stored, widen

Array = np.ndarray[Any, Any]
BITS = np.arange(1 << 16, dtype=np.uint16)
HALF = [F16, BF16]


@pytest.fixture
def backend(device: str) -> Iterator[Backend]:
    """A backend whose guard words a test leaves alone."""
    found = guarded(device)
    yield found
    found.check_guards()


def on(backend: Backend, array: Array, dtype: DType) -> Buffer:
    buffer = backend.alloc(array.shape, dtype)
    backend.upload(array, buffer)
    return buffer


def converted(backend: Backend, array: Array, source: DType, target: DType) -> Array:
    x, out = on(backend, array, source), backend.alloc(array.shape, target)
    half = source if target is F32 else target
    with np.errstate(all="ignore"):
        backend.launch(widen if target is F32 else narrow, x, into=out, bfloat=half is BF16)
    return backend.download(out)


def every_value(dtype: DType) -> Array:
    """All 65,536 values of a 16-bit type, in float32."""
    return np.asarray(loaded(BITS if dtype is BF16 else BITS.view(np.float16), dtype), np.float32)


def numbers_to_round(dtype: DType) -> Array:
    """All values, the middles between neighbours and what is next to them, and numbers far outside."""
    values = np.sort(every_value(dtype)[np.isfinite(every_value(dtype))])
    middles = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    around = [np.nextafter(x, np.float32(to)) for x in (values, middles) for to in (-np.inf, np.inf)]
    extreme = np.array([np.nan, -np.nan, np.inf, -np.inf, 3e38, -3e38, 65519.9, 65520, 1e-30, -1e-45, 0, -0.0],
                       np.float32)
    return np.concatenate([values, middles, *around, extreme])


def nearest_even(x: Array, digits: int, least: int, most: float) -> Array:
    """`x` with so many binary digits and no finer than 2**least, ties to even; infinite from `most` on."""
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64)
        step = np.exp2(np.maximum(np.frexp(exact)[1] - digits, least).astype(np.float64))
        rounded = np.round(exact / step) * step  # numpy's round takes ties to even
        return np.where(np.abs(rounded) >= most, np.copysign(np.inf, exact), rounded)


ORACLES = {F16: (11, -24, 65536.0), BF16: (8, -133, 2.0**128)}


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_every_16_bit_number_is_widened_exactly(backend: Backend, dtype: DType) -> None:
    got = converted(backend, every_value(dtype), dtype, F32)
    np.testing.assert_array_equal(got, every_value(dtype))
    finite = np.isfinite(got)
    assert np.array_equal(np.signbit(got[finite]), (BITS >> 15 == 1)[finite])


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_rounding_is_to_the_nearest_ties_to_even(backend: Backend, dtype: DType) -> None:
    x = numbers_to_round(dtype)
    want = nearest_even(x, *ORACLES[dtype])
    got = np.asarray(converted(backend, x, F32, dtype), np.float64)
    np.testing.assert_array_equal(got, want)
    ordinary = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(got[ordinary]), np.signbit(x[ordinary]))
    np.testing.assert_array_equal(np.asarray(loaded(stored(x, dtype), dtype), np.float64), want)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 127, 257, 1031])
def test_odd_sizes_stay_inside_their_memory(backend: Backend, dtype: DType, n: int) -> None:
    x = np.linspace(-3, 3, n, dtype=np.float32)
    half = np.asarray(loaded(stored(x, dtype), dtype), np.float32)
    np.testing.assert_array_equal(np.asarray(converted(backend, x, F32, dtype), np.float32), half)
    np.testing.assert_array_equal(converted(backend, x, dtype, F32), half)
    copy = backend.alloc(x.shape, dtype)
    backend.assign(copy, on(backend, x, dtype))
    np.testing.assert_array_equal(np.asarray(backend.download(copy), np.float32), half)
    assert copy.nbytes == 2 * n + 2 * (n % 2)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_master_follows_only_what_was_changed(backend: Backend, dtype: DType) -> None:
    master = np.linspace(-1, 1, 101, dtype=np.float32)
    x = np.asarray(loaded(stored(master, dtype), dtype), np.float32)
    x[::10] += 1
    kept, changed = on(backend, master, F32), on(backend, x, dtype)
    backend.launch(reconcile, kept, changed, bfloat=dtype is BF16)
    want = master.copy()
    want[::10] = np.asarray(loaded(stored(x, dtype), dtype), np.float32)[::10]
    np.testing.assert_array_equal(backend.download(kept), want)


# ---------------------------------------------------------------------------------------------- tensors

NAMES = ["f16", "bf16"]


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_takes_two_bytes_per_element(device: str, name: str) -> None:
    t = ag.ag_tensor(np.ones((30, 10)), dtype=name)
    assert (t.dtype, t.buffer.nbytes) == (name, 600)
    assert t.numpy().dtype == (np.float16 if name == "f16" else np.float32)


def test_bfloat16_keeps_the_range_of_float32(device: str) -> None:
    assert ag.ag_tensor([1e38], dtype="bf16").item() == pytest.approx(1e38, rel=2**-8)
    assert ag.ag_tensor([1e38], dtype="f16").item() == np.inf


@pytest.mark.parametrize("name", NAMES)
def test_default_type_reaches_tensors_parameters_and_layers(device: str, name: str) -> None:
    previous = ag.ag_dtype(name)
    try:
        model = ag.ag_sequential(ag.ag_linear(3, 4, "relu"), ag.ag_batch_norm(4), ag.ag_dropout(0.5))
        out = model(ag.ag_tensor(np.ones((3, 5))))
        assert ag.ag_default_dtype() == name
    finally:
        assert ag.ag_dtype(previous) == name
    assert out.dtype == name
    assert {p.dtype for p in model.parameters().values()} == {name}
    assert {b.dtype for b in model.buffers().values()} == {"f32"}  # running averages keep their digits


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_totals_are_float32(device: str, name: str) -> None:
    x = ag.ag_tensor(np.full((1000, 100), 100.0), dtype=name)
    total, loss = ag.ag_sum(x), ag.ag_mse_loss(x, np.zeros((1000, 100)))
    assert (total.dtype, loss.dtype) == ("f32", "f32")
    np.testing.assert_allclose([total.item(), loss.item()], [1e7, 1e4], rtol=1e-6)  # no f16 holds 1e7


@pytest.mark.parametrize("name", NAMES)
def test_numbers_keep_their_digits(device: str, name: str) -> None:
    x = ag.ag_tensor([[3.0]], dtype=name)
    want = stored(np.array([[np.float32(3) * np.float32(0.1)]]), F16 if name == "f16" else BF16)
    np.testing.assert_array_equal(stored((x * 0.1).numpy(), F16 if name == "f16" else BF16), want)
    scale = ag.ag_tensor(np.array(0.1))  # a tensor without axes is a number
    np.testing.assert_array_equal((x * scale).numpy(), (x * 0.1).numpy())
    assert (x * scale).dtype == name


@pytest.mark.parametrize("name", NAMES)
def test_other_types_are_not_mixed_silently(device: str, name: str) -> None:
    x, y = ag.ag_tensor([[1.0]], dtype=name), ag.ag_tensor([[1.0]])
    with pytest.raises(ag.DtypeError, match=rf"ag_matmul: operands have element types {name} and f32; they must be "
                                            r"equal. Convert one with t.astype."):
        ag.ag_matmul(x, y)
    with pytest.raises(ag.DtypeError, match="f16 and bf16"):
        ag.ag_tensor([[1.0]], dtype="f16") + ag.ag_tensor([[1.0]], dtype="bf16")


def test_64_bits_are_still_for_the_cpu(lavapipe: str) -> None:
    with pytest.raises(ag.DtypeError, match=r"cannot hold f64 elements; it can hold bf16, bool, f16, f32, i32, u32"):
        ag.ag_tensor([1.0], device=lavapipe, dtype="f64")


@pytest.mark.parametrize("to", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("name", ["f16", "bf16", "f32"])
def test_cast_and_its_gradient(device: str, name: str, to: str) -> None:
    values = np.array([[1.0, 2.5, -3.0]], np.float32)
    p = ag.ag_param(values, dtype=name)
    with ag.with_grad_tape():
        y = p.astype(to)
        loss = ag.ag_sum(y * y)
    assert (y.dtype, y is p) == (to, name == to)
    np.testing.assert_array_equal(y.numpy(), values)
    g = ag.backward(loss)[p]
    assert g.dtype == "f32"
    np.testing.assert_array_equal(g.numpy(), 2 * values)


def test_cast_refuses_other_types() -> None:
    with pytest.raises(ag.DtypeError, match="ag_cast: f32 to i32 was asked for; tensors are cast from f32, f16"):
        ag.ag_cast(ag.ag_tensor([1]), "i32")
    with pytest.raises(ag.DtypeError, match="ag_cast: unknown element type 'f8'"):
        ag.ag_cast(ag.ag_tensor([1.0]), "f8")


@pytest.mark.parametrize("name", NAMES)
def test_moving_between_devices(device: str, name: str) -> None:
    p = ag.ag_param([[1.5, -2.0]], device="cpu:1", dtype=name)
    optimizer = ag.optimizer_sgd([p])  # with f16, the two devices now have different loss scales
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_to_device(p * 0.125, device) * 0.25)
    np.testing.assert_array_equal(ag.backward(loss)[p].numpy(), [[0.03125, 0.03125]])
    assert optimizer.loss_scale == (65536.0 if name == "f16" else None)


@pytest.mark.parametrize("name", NAMES)
def test_backward_uses_the_stored_values(device: str, name: str) -> None:
    """A layer keeps its 16-bit input for the backward pass, not a float32 copy."""
    previous = ag.ag_dtype(name)
    try:
        x = ag.ag_tensor(np.ones((64, 512)))
        W = ag.ag_param(np.ones((64, 64)) / 64)
        backend = backend_of(device)
        with ag.with_grad_tape():
            h = x
            before = backend.arena.stats().live
            for _ in range(8):
                h = ag.ag_relu(ag.ag_matmul(W, h))
            kept = backend.arena.stats().live - before
    finally:
        ag.ag_dtype(previous)
    assert h.node is not None
    assert kept <= 8 * 2 * (64 * 512 * 2 + 1024)


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_takes_host_values_in_the_type_of_its_weights(device: str, name: str) -> None:
    previous = ag.ag_dtype(name)
    layers = [(ag.ag_linear(3, 2), (3, 4)), (ag.ag_conv2d_layer(3, 2, 1), (3, 4, 4, 2)),
              (ag.ag_multihead_attention(4, 2), (4, 3)), (ag.ag_layer_norm(3), (3, 2)), (ag.ag_rms_norm(3), (3, 2)),
              (ag.ag_batch_norm(3), (3, 2))]
    ag.ag_dtype(previous)
    with ag.ag_device("cpu:1"):  # wherever the default is
        for layer, shape in layers:
            y = layer(np.ones(shape))
            assert (y.dtype, y.device) == (name, device), layer
