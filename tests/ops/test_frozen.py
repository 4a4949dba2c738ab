"""Frozen tensors: products and lookups as of their float32 numbers, layers, captured steps, files, and refusals."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import ref

import numpy as np
import pytest
from helpers import packed

import ag
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.kernels.packed import packed_matmul
from ag.errors import CaptureError, CheckpointError, DtypeError, ExportError, ShapeError
from ag.ops.matmul import product

NUMBERS = ["bf16", "f16", "q8_0", "q4_0", "q4_1"]
RNG = np.random.default_rng(0)
A, X, B = (RNG.standard_normal(shape).astype(np.float32) for shape in ((96, 64), (64, 3, 4), (96, 1)))
IDS = RNG.integers(0, 96, (3, 4))


def on(device: str, packing: str = "q4_0") -> tuple[ag.FrozenTensor, ag.Tensor]:
    """A frozen matrix and its float32 numbers."""
    W = ag.ag_frozen(A, packing, device)
    return W, ag.ag_tensor(W.numpy(), device)


def same(found: list[Any], wanted: list[Any]) -> None:
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def trained(step: Callable[..., ag.Tensor], *params: ag.Tensor) -> list[Any]:
    """A loss and gradients by some parameters."""
    with ag.with_grad_tape():
        loss = step()
    grads = ag.backward(loss)
    found = [loss.numpy(), *[grads[p].numpy() for p in params]]
    for p in params:
        p.grad = None
    return found


# ---------------------------------------------------------------------------------------------- ops


@pytest.mark.slow_on("swiftshader")
@pytest.mark.parametrize("packing", NUMBERS)
def test_products_and_their_gradients(device: str, packing: str) -> None:
    """By the input, to the bit; of inputs with any axes, and of the transpose."""
    W, F = on(device, packing)
    x, g = ag.ag_param(X, device), ag.ag_param(RNG.standard_normal((96, 5)), device)
    same(trained(lambda: ag.ag_sum((W @ x).tanh()), x), trained(lambda: ag.ag_sum((F @ x).tanh()), x))
    run, ones = g.buffer.backend.launch, ag.ag_tensor(np.ones((64, 5)), device)
    wanted = [product(run, F.buffer, x.buffer, ta, False) for x, ta in ((g, True), (ones, False))]
    same([(W.T @ g).numpy(), trained(lambda: ag.ag_sum(W.T @ g), g)[1]], [ag.Tensor(x).numpy() for x in wanted])
    np.testing.assert_allclose((W.T @ g).numpy(), F.numpy().T @ g.numpy(), rtol=1e-4, atol=1e-4)


def test_a_gradient_by_differences() -> None:
    W = ag.ag_frozen(A, "q8_0")
    x = ag.ag_param(X[:, 0, :2])
    assert ag.ag_gradcheck(lambda t: ag.ag_sum((W.T @ (W @ t["x"]).tanh())**2), {"x": x}, quiet=True)


@pytest.mark.parametrize("packing", ["q4_k", "q6_k"])
def test_blocks_of_files(device: str, packing: str) -> None:
    blocks = packed.blocks_of(np.random.default_rng(1), packing, 40, 1)
    W = ag.ag_frozen(blocks, packing, device)
    assert W.shape == (40, 256) and W.packing == W.dtype == packing and W.device == device
    np.testing.assert_array_equal(W.blocks(), blocks)
    x = ag.ag_tensor(RNG.standard_normal((256, 3)), device)
    same([(W @ x).numpy()], [(ag.ag_tensor(W.numpy(), device) @ x).numpy()])
    same([ag.ops.embedding_lookup(W.T, [3, 39]).numpy()], [W.numpy()[[3, 39]].T])


@pytest.mark.slow_on("swiftshader")
def test_long_sums_are_cut_as_those_of_floats(device: str) -> None:
    """A transposed table of many words has the bits of the gradient's product, which adds up pieces."""
    rows = 33_000
    W = ag.ag_frozen(RNG.standard_normal((rows, 32)), "q8_0", device)
    F = ag.ag_tensor(W.numpy(), device)
    x = ag.ag_param(RNG.standard_normal((32, 2)), device)
    weights = ag.ag_tensor(RNG.standard_normal((rows, 2)), device)
    same(trained(lambda: ag.ag_sum((W @ x) * weights), x), trained(lambda: ag.ag_sum((F @ x) * weights), x))


@pytest.mark.slow_on("swiftshader")
@pytest.mark.parametrize("chunk", [None, 5])
def test_tied_tables_and_the_loss_of_classes(device: str, chunk: int | None) -> None:
    """One table as embedding and as classifier, like a table of floats, with weights of classes."""
    W, F = on(device, "q4_1")
    b, counts = ag.ag_param(RNG.standard_normal((64, 1)), device), np.abs(RNG.standard_normal(96)).astype(np.float32)

    def loss(W: Any, table: Any) -> ag.Tensor:
        h = ag.ops.embedding_lookup(table, IDS) + ag.ag_reshape(b, 64, 1, 1)
        return ag.ops.linear_cross_entropy(W, h.tanh(), IDS.T.reshape(3, 4), counts, chunk=chunk)

    same(trained(lambda: loss(W, W.T), b), trained(lambda: loss(F, F.T), b))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_beside_16_bits(dtype: str) -> None:
    W, F = on("cpu")
    x = ag.ag_tensor(X, dtype=dtype)
    same([(W @ x).numpy()], [(ag.ag_cast(F, "f32") @ ag.ag_cast(x, "f32")).astype(dtype).numpy()])
    assert (W @ x).dtype == dtype


# ---------------------------------------------------------------------------------------------- layers


def layers(W: Any) -> tuple[ag.Layer, ag.Layer, ag.Layer]:
    linear, bare, words = ag.nn.Linear(64, 96, "tanh"), ag.nn.Linear(64, 96, bias=False), ag.nn.Embedding(96, 64)
    linear.W, bare.W, words.weight, linear.b = W, W, W.T, ag.ag_param(B, W.device)
    return linear, bare, words


def test_layers(device: str) -> None:
    W, F = on(device)
    x = ag.ag_param(X, device)
    for layer, other in zip(layers(W)[:2], layers(F)[:2], strict=True):
        params = [x, layer.b] if layer.bias else [x]
        others = [x, other.b] if other.bias else [x]
        same(trained(lambda m=layer: ag.ag_sum(m(x)**2), *params), trained(lambda m=other: ag.ag_sum(m(x)**2), *others))
    same([layers(W)[2](IDS).numpy()], [layers(F)[2](IDS).numpy()])


def test_is_no_parameter_and_no_buffer(tmp_path: Path) -> None:
    W = ag.ag_frozen(A, "q8_0")
    linear, _, words = layers(W)
    model = ag.ag_sequential(words, linear)
    assert [*model.parameters()] == ["layer2_b"] and not model.buffers() and [*model.state_dict()] == ["layer2_b"]
    assert [*model.frozen()] == ["layer1_weight", "layer2_W"] and model.n_parameters == 96
    assert "W (96, 64) q8_0" in repr(model)
    model.freeze().unfreeze()
    assert [*model.parameters()] == ["layer2_b"]
    whole = model.state_dict(frozen=True)
    same([whole["layer2_W"], whole["layer1_weight"]], [W.numpy(), W.numpy().T])
    model.load_state_dict(whole)
    with pytest.raises(CheckpointError, match="other values of layer2_W than the model, in which it is frozen"):
        model.load_state_dict({**whole, "layer2_W": A + 1})
    ag.ag_save_model(model, tmp_path / "model")
    with pytest.raises(CheckpointError, match="pass the model_fn"):
        ag.ag_load_model(tmp_path / "model")
    again = ag.ag_load_model(tmp_path / "model", lambda: ag.ag_sequential(*layers(W)[::-2]))
    same([again(IDS).numpy()], [model(IDS).numpy()])


def test_two_models_on_two_devices() -> None:
    """One memory of two CPU devices, wherever a model moves."""
    W, _ = on("cpu")
    first, second = layers(W)[0], layers(W)[0]
    x, there = ag.ag_tensor(X), ag.ag_tensor(X, "cpu:1")
    want = first(x).numpy()
    first.to("cpu:1")
    assert W.device == "cpu:1" and deepcopy(first).W is W
    same([first(there).numpy(), second(x).numpy()], [want, want])
    assert np.shares_memory(W.memory.home.native, W.memory.on(backend_of("cpu")).native)
    first.to("cpu")
    same([first(x).numpy(), (W @ there).numpy()], [want, (W @ x).numpy()])


# ---------------------------------------------------------------------------------------------- captured steps


def test_captured_equals_eager(device: str) -> None:
    W, _ = on(device)
    linear, _, words = layers(W)
    p = ag.ag_param(RNG.standard_normal((64, 1, 1)), device)

    def step(ids: Any) -> tuple[ag.Tensor, ag.Tensor]:
        with ag.with_grad_tape():
            h = linear(words(ids) + p)
            loss = ag.ops.linear_cross_entropy(W, (W.T @ h).relu(), ids)
        return loss, ag.backward(loss)[p]

    captured = ag.ag_capture(step)
    for k in range(4):
        ids = (IDS + k) % 96
        found = captured(ids)
        p.grad = None
        wanted = step(ids)
        p.grad = None
        same([x.numpy() for x in found], [x.numpy() for x in wanted])
    linear.W = ag.ag_frozen(2 * A, "q8_0", device)  # which the step notices
    same([captured(IDS)[0].numpy()], [step(IDS)[0].numpy()])


@pytest.mark.vulkan
def test_a_chain_behind_the_product(vulkan: str) -> None:
    linear, x = layers(on(vulkan)[0])[0], ag.ag_tensor(X, vulkan)
    step = ag.ag_capture(lambda x: linear(x) * 2.0)
    same([step(x).numpy(), step(x).numpy()], [(linear(x) * 2.0).numpy()] * 2)
    with ag.profile() as launches:
        step(x)
    assert [event.kernel for event in launches.events if event.kernel != "transfer"] == ["packed_matmul_chain"]


def test_a_program_keeps_the_memory() -> None:
    W, device = ag.ag_frozen(A, "q8_0"), backend_of("cpu:1")
    x = ag.ag_tensor(X[:, 0], "cpu:1")
    with record(device) as recording:
        out = device.launch(packed_matmul, x.buffer, W.memory.on(device), packing="q8_0", rows=96, inner=64, ta=False)
    program, home = recording.finished(), ref(W.memory.home)
    program.run()
    want = device.download(out)
    del W
    gc.collect()
    others = [ag.ag_frozen(k * A, "q8_0") for k in range(9)]  # which would lie there
    program.run()
    same([device.download(out)], [want])
    assert home() is not None and others
    program.close()
    del program, recording
    gc.collect()
    assert home() is None


def test_threads() -> None:
    W, found = ag.ag_frozen(A, "q4_1"), list[Any]()
    threads = [Thread(target=lambda k=k: found.append((W @ ag.ag_tensor(X, f"cpu:{k % 3}")).numpy())) for k in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(found, [(W @ ag.ag_tensor(X, "cpu")).numpy()] * 9)


# ---------------------------------------------------------------------------------------------- as an object


@pytest.mark.parametrize("packing", NUMBERS)
def test_pickled(device: str, packing: str) -> None:
    W, _ = on(device, packing)
    for x in (W, W.T):
        again = pickle.loads(pickle.dumps(x))
        assert (again.shape, again.packing, again.device) == (x.shape, packing, device)
        same([again.numpy()], [x.numpy()])


def test_memory_is_that_of_the_file() -> None:
    arena = backend_of("cpu").arena
    gc.collect()
    before = arena.stats().live
    W = ag.ag_frozen(np.zeros((1024, 1024)), "q4_1")
    assert W.nbytes == 1024 * 1024 // 32 * 20 and arena.stats().live - before <= 1.05 * W.nbytes


@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (0, 0)])
def test_empty(device: str, shape: tuple[int, int]) -> None:
    W = ag.ag_frozen(np.zeros(shape), "q8_0", device)
    assert not (W @ np.ones((shape[1], 2))).numpy().any() and (W.T @ np.ones((shape[0], 2))).shape == (shape[1], 2)


REFUSED: list[tuple[Callable[[ag.FrozenTensor, ag.Tensor], object], type[Exception], str]] = [
    (lambda W, x: W + 1, DtypeError, "add: an operand is frozen in q4_0.*ag_tensor"),
    (lambda W, x: x + W, DtypeError, "ag_add: an operand is frozen in q4_0"),
    (lambda W, x: x.T @ W, DtypeError, "ag_matmul: an operand is frozen"),
    (lambda W, x: W @ W, DtypeError, "an operand is frozen"),
    (lambda W, x: np.ones((2, 96)) @ W, DtypeError, "an operand is frozen"),
    (lambda W, x: np.asarray(W), DtypeError, r"W\.numpy\(\)"),
    (lambda W, x: W[0], DtypeError, "getitem"),
    (lambda W, x: x == W, DtypeError, "eq: an operand is frozen"),
    (lambda W, x: ag.ops.concat([x, W]), DtypeError, "ag_concat: an operand is frozen"),
    (lambda W, x: ag.ag_param(W), DtypeError, "frozen"),
    (lambda W, x: ag.ag_tensor(W), DtypeError, "frozen"),
    (lambda W, x: ag.export_onnx(lambda x: W @ x, "model.onnx", x), ExportError, "has a frozen tensor"),
    (lambda W, x: ag.optim.SGD([W]), ValueError, "FrozenTensor, not a parameter"),
    (lambda W, x: setattr(W, "requires_grad", True), DtypeError, r"Train ag_param\(W\.numpy\(\)\) in its place"),
    (lambda W, x: W.sum(), AttributeError, r"use ag_tensor\(W\.numpy\(\)\)\.sum"),
    (lambda W, x: W.grad, AttributeError, "frozen in q4_0 has no grad"),
    (lambda W, x: W @ ag.ag_tensor([[1.0]]), ShapeError, r"A is \(96, 64\) and B is \(1, 1\)"),
    (lambda W, x: ag.ops.embedding_lookup(W, [0]), ShapeError, r"give its transpose, W\.T"),
    (lambda W, x: ag.ops.embedding_lookup(W.T, [96]), IndexError, r"the id 96 is outside 0\.\.95"),
    (lambda W, x: ag.ag_capture(lambda x: ag.ag_frozen(A, "q8_0") @ x)(x), CaptureError, "before the step"),
    (lambda W, x: ag.ag_frozen(A, "q5_0"), DtypeError, "unknown packing 'q5_0'; use one of bf16"),
    (lambda W, x: ag.ag_frozen(A[:, :40], "q8_0"), ShapeError, "rows have 40 numbers, and q8_0 has blocks of 32"),
    (lambda W, x: ag.ag_frozen(np.zeros((2, 33), np.uint8), "q8_0"), ShapeError, "33 bytes, and blocks of q8_0"),
    (lambda W, x: ag.ag_frozen(np.zeros((2, 256)), "q4_k"), DtypeError, "ag_frozen: q4_k is for blocks of a GGUF file"),
    (lambda W, x: ag.ag_frozen(A[0], "q8_0"), ShapeError, "a matrix is required"),
    (lambda W, x: ag.ag_frozen(A * np.nan, "q8_0"), ValueError, "ag_frozen: numbers that are not finite"),
    (lambda W, x: ag.ag_frozen(1e7 * A, "f16"), ValueError, "beyond the range of f16"),
]


@pytest.mark.parametrize("call, kind, message", REFUSED)
def test_refused(call: Callable[[ag.FrozenTensor, ag.Tensor], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call(ag.ag_frozen(A, "q4_0"), ag.ag_tensor(X[:, 0]))
