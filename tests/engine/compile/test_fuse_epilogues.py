"""Products with an epilogue in programs: the pass finds what may be replaced and nothing else; and the gradients of a
linear layer are one launch with the same values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine.compile.replays import Compute, check, random_plan
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

relu, relu_grad, permute = PRIMITIVES["relu"], PRIMITIVES["relu_grad"], PRIMITIVES["permute"]


@pytest.fixture
def backend(device: str, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """On the CPU, too, as on a device: in numpy, where a product has the same bits with and without an epilogue."""
    monkeypatch.setattr(NumpyBackend, "target", NumpyBackend.target._replace(fuse_from=1, epilogues=True))
    monkeypatch.setitem(devices._backends, "cpu", NumpyBackend())
    return backend_of(device)


# ---------------------------------------------------------------------------------------------- the pass

OPERANDS = ((6, 5), (5, 8), (6, 1), (6, 8))  # two factors, a bias, and what is as large as their product


def product(run: Any, w: Buffer, x: Buffer) -> Buffer:
    found: Buffer = run(matmul, w, x, ta=False, tb=False)
    return found


def test_a_product_that_is_read_later_stays_the_register_that_it_is(backend: Backend) -> None:
    """Its chain has another operand first."""
    def compute(run: Any, w: Buffer, x: Buffer, full: Buffer) -> list[Buffer]:
        made = product(run, w, x)
        return [run(add, full, made), run(mul, made, made)]

    check(backend, compute, [(6, 5), (5, 8), (6, 8)], "matmul_chain_pair", "mul")


def bias_and_activation(run: Any, w: Buffer, x: Buffer, bias: Buffer, _: Buffer) -> list[Buffer]:
    return [run(relu, run(add, product(run, w, x), bias))]


def an_activation(run: Any, w: Buffer, x: Buffer, *_: Buffer) -> list[Buffer]:
    return [run(relu, product(run, w, x))]


def a_residual_and_a_number(run: Any, w: Buffer, x: Buffer, bias: Buffer, full: Buffer) -> list[Buffer]:
    return [run(mul, run(add, full, run(add, product(run, w, x), bias)), bias.view((1, 1), 2))]


def the_derivative_of_an_activation(run: Any, w: Buffer, x: Buffer, _: Buffer, full: Buffer) -> list[Buffer]:
    return [run(relu_grad, full, product(run, w, x))]


def the_square(run: Any, w: Buffer, x: Buffer, *_: Buffer) -> list[Buffer]:
    y = product(run, w, x)
    return [run(mul, y, y)]


def a_result_that_is_read_later(run: Any, w: Buffer, x: Buffer, bias: Buffer, _: Buffer) -> list[Buffer]:
    before = run(add, product(run, w, x), bias)
    return [run(relu, before), run(permute, before, axes=(1, 0))]


def a_product_that_is_read_later(run: Any, w: Buffer, x: Buffer, *_: Buffer) -> list[Buffer]:
    y = product(run, w, x)
    return [run(relu, y), run(permute, y, axes=(1, 0))]


def two_that_are_read_later(run: Any, w: Buffer, x: Buffer, bias: Buffer, _: Buffer) -> list[Buffer]:
    y = product(run, w, x)
    before = run(add, y, bias)
    return [run(relu, before), *[run(permute, z, axes=(1, 0)) for z in (before, y)]]


def a_product_that_is_read_before(run: Any, w: Buffer, x: Buffer, *_: Buffer) -> list[Buffer]:
    y = product(run, w, x)
    return [run(permute, y, axes=(1, 0)), run(relu, y)]


def a_product_that_is_held(run: Any, w: Buffer, x: Buffer, *_: Buffer) -> list[Buffer]:
    y = product(run, w, x)
    return [y, run(relu, y)]


def two_products(run: Any, w: Buffer, x: Buffer, *_: Buffer) -> list[Buffer]:
    return [run(add, product(run, w, x), product(run, w, x))]


def a_batch_of_sequences(run: Any, w: Buffer, x: Buffer, bias: Buffer, full: Buffer) -> list[Buffer]:
    y = product(run, w, x).view((6, 2, 4))
    return [run(add, run(add, y, bias.view((6, 1, 1))), full.view((6, 2, 4)))]


def an_operand_along_part_of_the_columns(run: Any, w: Buffer, x: Buffer, _: Buffer, full: Buffer) -> list[Buffer]:
    return [run(add, product(run, w, x).view((6, 2, 4)), full.view((1, 1, 4)))]


def a_product_that_is_broadcast(run: Any, w: Buffer, x: Buffer, _: Buffer, full: Buffer) -> list[Buffer]:
    return [run(add, product(run, w, x).view((6, 1, 8)), full.view((6, 8, 1)))]


def part_of_a_product(run: Any, w: Buffer, x: Buffer, *_: Buffer) -> list[Buffer]:
    return [run(relu, product(run, w, x).view((3, 8), 24))]


def a_factor_that_changes(run: Any, w: Buffer, x: Buffer, bias: Buffer, full: Buffer) -> list[Buffer]:
    y = product(run, w, x)
    run(copy, full.view((5, 8)), into=x)
    return [run(add, y, bias)]


EPILOGUES: dict[Compute, str] = {
    **dict.fromkeys((bias_and_activation, an_activation, a_residual_and_a_number, the_derivative_of_an_activation,
                     the_square, a_batch_of_sequences), "matmul_chain"),
    **dict.fromkeys((a_result_that_is_read_later, a_product_that_is_read_later), "matmul_chain_pair permute"),
    two_that_are_read_later: "matmul fused_pair permute permute",
    a_product_that_is_read_before: "matmul permute relu", two_products: "matmul matmul_chain",
    **dict.fromkeys((a_product_that_is_held, part_of_a_product), "matmul relu"),
    **dict.fromkeys((an_operand_along_part_of_the_columns, a_product_that_is_broadcast), "matmul add"),
    a_factor_that_changes: "matmul copy add",
}


@pytest.mark.slow_on("lavapipe")
@pytest.mark.parametrize("compute", EPILOGUES, ids=lambda compute: compute.__name__)
def test_epilogues(backend: Backend, compute: Compute) -> None:
    check(backend, compute, OPERANDS, *EPILOGUES[compute].split())


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


@pytest.mark.slow_on("lavapipe")
@pytest.mark.parametrize("seed", range(15))
def test_replays_of_random_launches(backend: Backend, seed: int) -> None:
    """Let launches read any results, in any order: all values are those of the launches, for new inputs too."""
    rng = np.random.default_rng(seed)
    plan = random_plan(rng, ["matmul", "matmul", "add", "relu", "scale"], 2, 9)
    kept = {int(rng.integers(2, 11)), 10}

    def compute(run: Any, *inputs: Buffer) -> list[Buffer]:
        found = [*inputs]
        for name, i, j in plan:
            rule = PRIMITIVES[name]
            params: dict[str, Any] = {"matmul": {"ta": False, "tb": True}, "scale": {"factor": 0.25}}.get(name, {})
            found.append(run(rule, *(found[i], found[j])[: len(rule.operands) - 1], **params))
        return [found[k] for k in sorted(kept)]

    check(backend, compute, [(4, 4), (4, 4)])


@pytest.mark.slow_on("lavapipe")
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
    check(backend_of("cpu"), lambda run, w, x: [run(scale, product(run, w, x), factor=2.0)], OPERANDS[:2],
          "matmul", "scale")


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


@pytest.mark.slow_on("lavapipe")
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


@pytest.mark.slow_on("lavapipe")
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
