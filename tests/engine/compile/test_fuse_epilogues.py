"""Products with an epilogue in programs: the pass finds what may be replaced and nothing else; and the gradients of a
linear layer are one launch with the same values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.programs import buffer, kernels
from helpers.tiled import normal

import ag
from ag.engine import device as devices
from ag.engine.backend import Backend
from ag.engine.backends.cpu.backend import NumpyBackend
from ag.engine.buffer import Buffer
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.kernels.elementwise import add, copy, mul, scale
from ag.engine.kernels.matmul import matmul
from ag.engine.primitive import PRIMITIVES
from ag.nn.layer import ACTIVATIONS

relu, relu_grad = PRIMITIVES["relu"], PRIMITIVES["relu_grad"]


@pytest.fixture
def backend(device: str, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """On the CPU, too, as on a device: in numpy, where a product has the same bits with and without an epilogue."""
    monkeypatch.setattr(NumpyBackend, "target", NumpyBackend.target._replace(fuse_from=1, epilogues=True))
    monkeypatch.setitem(devices._backends, "cpu", NumpyBackend())
    return backend_of(device)


# ---------------------------------------------------------------------------------------------- the pass


class Layer:
    """Operands on a backend, and what is computed with them: now, and in a program."""

    def __init__(self, backend: Backend) -> None:
        rng = np.random.default_rng(9)
        self.backend = backend
        self.w, self.x = (buffer(backend, normal(rng, *shape)) for shape in ((6, 5), (5, 8)))
        self.bias, self.full = (buffer(backend, normal(rng, *shape)) for shape in ((6, 1), (6, 8)))

    def product(self) -> Buffer:
        found: Buffer = self.backend.launch(matmul, self.w, self.x, ta=False, tb=False)
        return found

    def check(self, compute: Any, *expected: str) -> None:
        """What a program of these kernels gives, also on new operands, is what the launches do."""
        with record(self.backend) as recording:
            outs = compute(self.backend.launch)
        program = recording.finished()
        assert kernels(program) == list(expected)
        self.backend.upload(np.random.default_rng(10).normal(size=(5, 8)), self.x)
        want = [self.backend.download(out) for out in compute(self.backend.launch)]
        program.run()
        for out, value in zip(outs, want, strict=True):
            assert self.backend.download(out).tobytes() == value.tobytes()


@pytest.fixture
def layer(backend: Backend) -> Layer:
    return Layer(backend)


def test_bias_and_activation(layer: Layer) -> None:
    layer.check(lambda run: [run(relu, run(add, layer.product(), layer.bias))], "matmul_chain")


def test_an_activation_alone(layer: Layer) -> None:
    layer.check(lambda run: [run(relu, layer.product())], "matmul_chain")


def test_a_residual_and_a_number(layer: Layer) -> None:
    number = buffer(layer.backend, 0.5)
    layer.check(lambda run: [run(mul, run(add, layer.full, run(add, layer.product(), layer.bias)), number)],
                "matmul_chain")


def test_the_derivative_of_an_activation(layer: Layer) -> None:
    layer.check(lambda run: [run(relu_grad, layer.full, layer.product())], "matmul_chain")


def test_the_square_of_a_product(layer: Layer) -> None:
    def compute(run: Any) -> list[Buffer]:
        y = layer.product()
        return [run(mul, y, y)]

    layer.check(compute, "matmul_chain")


def test_a_result_inside_that_is_read_later_is_stored_too(layer: Layer) -> None:
    def compute(run: Any) -> list[Buffer]:
        before = run(add, layer.product(), layer.bias)
        return [run(relu, before), run(PRIMITIVES["permute"], before, axes=(1, 0))]

    layer.check(compute, "matmul_chain_pair", "permute")


def test_a_product_that_is_read_later_is_stored_too(layer: Layer) -> None:
    def compute(run: Any) -> list[Buffer]:
        y = layer.product()
        return [run(relu, y), run(PRIMITIVES["permute"], y, axes=(1, 0))]

    layer.check(compute, "matmul_chain_pair", "permute")


def test_two_results_inside_are_too_many(layer: Layer) -> None:
    def compute(run: Any) -> list[Buffer]:
        y = layer.product()
        before = run(add, y, layer.bias)
        return [run(relu, before), *[run(PRIMITIVES["permute"], z, axes=(1, 0)) for z in (before, y)]]

    layer.check(compute, "matmul", "fused_pair", "permute", "permute")


def test_a_product_that_is_read_before_stays(layer: Layer) -> None:
    def compute(run: Any) -> list[Buffer]:
        y = layer.product()
        turned = run(PRIMITIVES["permute"], y, axes=(1, 0))
        return [turned, run(relu, y)]

    layer.check(compute, "matmul", "permute", "relu")


def test_a_product_that_somebody_holds_stays(layer: Layer) -> None:
    def compute(run: Any) -> list[Buffer]:
        y = layer.product()
        return [y, run(relu, y)]

    layer.check(compute, "matmul", "relu")


def test_of_two_products_the_later_has_the_epilogue(layer: Layer) -> None:
    layer.check(lambda run: [run(add, layer.product(), layer.product())], "matmul", "matmul_chain")


def test_a_batch_of_sequences(layer: Layer) -> None:
    bias, full = layer.bias.view((6, 1, 1)), layer.full.view((6, 2, 4))
    layer.check(lambda run: [run(add, run(add, layer.product().view((6, 2, 4)), bias), full)], "matmul_chain")


def test_an_operand_of_another_kind_stays_apart(layer: Layer) -> None:
    """One that repeats along part of the columns."""
    each = buffer(layer.backend, np.arange(4.0).reshape(1, 1, 4))
    layer.check(lambda run: [run(add, layer.product().view((6, 2, 4)), each)], "matmul", "add")


def test_part_of_a_product_stays_apart(layer: Layer) -> None:
    def compute(run: Any) -> list[Buffer]:
        return [run(relu, layer.product().view((3, 8), 24))]

    layer.check(compute, "matmul", "relu")


def test_a_factor_that_changes_in_between_keeps_them_apart(layer: Layer) -> None:
    start = buffer(layer.backend, np.ones((5, 8)))

    def compute(run: Any) -> list[Buffer]:
        y = layer.product()
        run(copy, start, into=layer.x)
        return [run(add, y, layer.bias)]

    with record(layer.backend) as recording:
        [out] = compute(layer.backend.launch)
    assert kernels(recording.finished()) == ["matmul", "copy", "add"]
    assert out.shape == (6, 8)


def test_a_result_in_the_place_of_a_factor_keeps_them_apart(backend: Backend) -> None:
    """The product still reads it."""
    w, x = (buffer(backend, normal(np.random.default_rng(11), 70, 70)) for _ in range(2))
    with record(backend) as recording:
        backend.launch(copy, backend.launch(relu, backend.launch(matmul, w, x, ta=False, tb=False)), into=w)
    program = recording.finished()
    assert kernels(program) == ["matmul", "relu"]
    want = backend.download(backend.launch(relu, backend.launch(matmul, w, x, ta=False, tb=False)))
    program.run()
    assert backend.download(w).tobytes() == want.tobytes()


def test_an_empty_sum_stays_apart(backend: Backend) -> None:
    a, b = buffer(backend, np.zeros((3, 0))), buffer(backend, np.zeros((0, 4)))
    with record(backend) as recording:
        out = backend.launch(relu, backend.launch(matmul, a, b, ta=False, tb=False))
    program = recording.finished()
    program.run()
    assert kernels(program) == ["matmul", "relu"] and backend.download(out).tolist() == [[0.0] * 4] * 3


@pytest.mark.parametrize("seed", range(25))
def test_replays_of_random_launches(backend: Backend, seed: int) -> None:
    """Whoever reads what, and in which order: all values are those of the launches, for new inputs too."""
    rng = np.random.default_rng(seed)
    x, y = (buffer(backend, normal(rng, 4, 4)) for _ in range(2))
    plan = [(str(rng.choice(["matmul", "matmul", "add", "relu", "scale"])), *rng.integers(0, 2 + i, 2))
            for i in range(9)]
    kept = {int(rng.integers(2, 11)), 10}

    def compute() -> dict[int, Buffer]:
        found = [x, y]
        for name, i, j in plan:
            rule = PRIMITIVES[name]
            params: dict[str, Any] = {"matmul": {"ta": False, "tb": True}, "scale": {"factor": 0.25}}.get(name, {})
            found.append(backend.launch(rule, *(found[i], found[j])[: len(rule.operands) - 1], **params))
        return {k: found[k] for k in kept}

    with record(backend) as recording:
        outs = compute()
    program = recording.finished()
    for b in (x, y):
        backend.upload(normal(rng, 4, 4), b)
    want = {k: backend.download(b) for k, b in compute().items()}
    program.run()
    for k, b in outs.items():
        assert backend.download(b).tobytes() == want[k].tobytes(), (k, plan)


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(backend: Backend, groups: int) -> None:
    """Bias and activation, and in the backward pass the activation's derivative and a residual's sum."""
    results = []
    for wrap in (lambda step: step, ag.ag_capture):
        rng = np.random.default_rng(13)
        w = [ag.ag_param(normal(rng, 4, 4 // groups, 3, 3), device=backend.name) for _ in range(3)]
        b = ag.ag_param(normal(rng, 4, 1), device=backend.name)

        def step(x: ag.Tensor) -> Any:
            with ag.with_grad_tape():
                y = ag.ag_relu(ag.ag_conv2d(x, w[0], b, padding=1, groups=groups))  # noqa: B023
                z = ag.ag_relu(ag.ag_conv2d(y, w[1], padding=1, groups=groups) + y)  # noqa: B023
                loss = ag.ag_sum(ag.ag_conv2d(z, w[2], stride=2, groups=groups))  # noqa: B023
            ag.backward(loss)
            return [x.grad for x in w]  # noqa: B023

        captured = wrap(step)
        x = ag.ag_tensor(normal(rng, 4, 6, 5, 3), device=backend.name)
        results.append([g.numpy().tobytes() for g in captured(x)])
    assert results[0] == results[1]
    names = kernels(captured.program)
    assert sum(name.startswith("conv2d") and name.endswith("chain") for name in names) == 4
    assert not {"relu", "add", "relu_grad", "fused"} & set(names)


def test_the_host_keeps_its_calls_apart() -> None:
    layer = Layer(backend_of("cpu"))
    layer.check(lambda run: [run(scale, layer.product(), factor=2.0)], "matmul", "scale")


# ---------------------------------------------------------------------------------------------- linear layers


def step_of(model: Any, optimizer: Any) -> Any:
    def step(x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(model(x), y)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    return step


class Residual(ag.Layer):
    """Two linear layers around which the input goes."""

    def __init__(self, activation: str | None) -> None:
        self.up, self.down = ag.ag_linear(6, 9, activation), ag.ag_linear(9, 6)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return ag.ag_add(self.down(self.up(x)), x)


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_a_captured_step_is_the_eager_one(device: str, activation: str | None) -> None:
    results = []
    for wrap in (lambda step: step, ag.ag_capture):
        ag.ag_seed(5)
        model = ag.ag_sequential(Residual(activation), Residual(activation))
        step, rng = wrap(step_of(model, ag.optimizer_adam(model, lr=0.01))), np.random.default_rng(0)
        losses = [step(*(ag.ag_tensor(rng.normal(size=(6, 3, 5))) for _ in range(2))).item() for _ in range(3)]
        results.append((losses, {name: x.tobytes() for name, x in model.state_dict().items()}))
    assert results[0] == results[1]
    if device != "cpu":
        names = kernels(step.program)  # type: ignore[attr-defined]
        assert names.count("matmul_sums") == 4 and "add" not in names[:5]


@pytest.mark.parametrize("shape", [(4, 7), (4, 1), (4, 2, 3), (4, 0)], ids=str)
@pytest.mark.parametrize("needed", ["W", "b", "W b", "x", "W x b"])
def test_gradients_of_a_linear_layer(device: str, shape: tuple[int, ...], needed: str) -> None:
    """As of a product and a sum; where only some are asked for, too."""
    rng = np.random.default_rng(12)
    values = {"W": normal(rng, 3, 4), "x": normal(rng, *shape), "b": normal(rng, 3, 1)}
    weights = ag.ag_tensor(normal(rng, 3, *shape[1:]))
    found = []
    for apart in (True, False):
        t = {name: ag.ag_param(x) if name in needed.split() else ag.ag_tensor(x) for name, x in values.items()}
        layer = ag.ag_linear(4, 3)
        layer.W, layer.b = t["W"], t["b"]
        with ag.with_grad_tape():
            y = ag.ag_matmul(t["W"], t["x"]) + t["b"].reshape(3, *(1,) * (len(shape) - 1)) if apart else layer(t["x"])
            loss = ag.ag_sum(y * weights)
        ag.backward(loss)
        found.append([y.numpy(), *[t[name].grad.numpy() for name in needed.split()]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
        if device == "cpu":
            assert one.tobytes() == other.tobytes()
