"""Chains of elementwise launches: found where they may be, computed as one, and never another value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.programs import buffer, kernels

import ag
from ag.engine.backend import Backend
from ag.engine.backends.cpu.backend import NumpyBackend
from ag.engine.buffer import Buffer
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.kernels.elementwise import add, copy, div, mul, scale, sub
from ag.engine.kernels.fused import MOST_STEPS, OPERANDS
from ag.engine.primitive import PRIMITIVES

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _chains_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, too, as on a device."""
    monkeypatch.setattr(NumpyBackend, "target", NumpyBackend.target._replace(fuse_from=1))


@pytest.fixture
def backend(device: str) -> Backend:
    return backend_of(device)


@pytest.mark.parametrize("name", [name for name, primitive in PRIMITIVES.items() if primitive.fusable])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (300, 257)], ids=str)
def test_every_function_in_a_chain_is_its_launch(backend: Backend, name: str, shape: tuple[int, ...]) -> None:
    """Between two others, on numbers of all kinds."""
    rule, rng = PRIMITIVES[name], np.random.default_rng(3)
    values = rng.normal(size=(2, *shape)).astype(np.float32) * 3
    values[0].flat[0] = 0.0
    params = dict.fromkeys(rule.params, 0.25)
    operands = len(rule.operands) - 1

    def compute(x: Buffer, y: Buffer) -> Buffer:
        first = backend.launch(mul, x, y)
        second = backend.launch(rule, *(first, y)[:operands], **params)
        return backend.launch(add, second, x)

    x, y = (buffer(backend, v) for v in values)
    want = backend.download(compute(x, y))
    with record(backend) as recording:
        out = compute(x, y)
    program = recording.finished()
    assert kernels(program) == ["fused"]
    program.run()
    assert backend.download(out).tobytes() == want.tobytes()


def test_a_result_that_is_read_later_is_stored_too(backend: Backend) -> None:
    x = buffer(backend, np.arange(12.0).reshape(3, 4))
    with record(backend) as recording:
        doubled = backend.launch(scale, x, factor=2.0)
        out = backend.launch(add, doubled, x)
        late = backend.launch(PRIMITIVES["permute"], doubled, axes=(1, 0))
        del doubled
    program = recording.finished()
    assert kernels(program) == ["fused_pair", "permute"]
    backend.upload(np.ones((3, 4)), x)
    program.run()
    assert backend.download(out).tolist() == [[3.0] * 4] * 3
    assert backend.download(late).tolist() == [[2.0] * 3] * 4


def test_a_result_that_somebody_holds_is_its_own_launch(backend: Backend) -> None:
    x = buffer(backend, [1.0, 2.0])
    with record(backend) as recording:
        held = backend.launch(scale, x, factor=2.0)
        out = backend.launch(add, held, x)
    program = recording.finished()
    assert kernels(program) == ["scale", "add"]
    backend.upload(np.array([5.0, 6.0]), x)
    program.run()
    assert backend.download(held).tolist() == [10.0, 12.0]
    assert backend.download(out).tolist() == [15.0, 18.0]


def test_a_change_of_an_operand_in_between_keeps_launches_apart(backend: Backend) -> None:
    x, y = buffer(backend, [1.0, 2.0]), buffer(backend, [10.0, 20.0])
    with record(backend) as recording:
        doubled = backend.launch(scale, x, factor=2.0)
        backend.launch(copy, y, into=x)  # the sum wants the x of before
        out = backend.launch(add, doubled, y)
        del doubled
    program = recording.finished()
    assert kernels(program) == ["scale", "copy", "add"]
    backend.upload(np.array([3.0, 4.0]), x)
    program.run()
    assert backend.download(out).tolist() == [16.0, 28.0]


def test_a_result_that_is_overwritten_is_not_what_is_read(backend: Backend) -> None:
    x = buffer(backend, [1.0, 2.0])
    with record(backend) as recording:
        doubled = backend.launch(scale, x, factor=2.0)
        backend.launch(copy, x, into=doubled)
        out = backend.launch(scale, doubled, factor=3.0)
        del doubled
    program = recording.finished()
    backend.upload(np.array([3.0, 4.0]), x)
    program.run()
    assert backend.download(out).tolist() == [9.0, 12.0]


@pytest.mark.parametrize(("a", "b", "c"), [
    ((4, 5), (4, 1), (1, 5)), ((2, 3, 4), (3, 1), (4,)), ((6,), (), (6,)), ((1, 5), (5,), (1, 1)),
    ((2, 1, 4, 3), (2, 1, 1, 3), (4, 1)),
], ids=str)
def test_operands_that_repeat(backend: Backend, a: Any, b: Any, c: Any) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in (a, b, c)]
    x, y, z = (buffer(backend, array) for array in arrays)
    with record(backend) as recording:
        out = backend.launch(sub, backend.launch(mul, backend.launch(add, x, y), z), y)
    program = recording.finished()
    assert kernels(program) == ["fused"]
    program.run()
    u, v, w = arrays
    np.testing.assert_array_equal(backend.download(out), (u + v) * w - v)


def test_a_reshape_does_not_part_a_chain(backend: Backend) -> None:
    x = buffer(backend, np.arange(12.0).reshape(3, 4))
    with record(backend) as recording:
        y = backend.launch(scale, x, factor=2.0).view((2, 6))
        out = backend.launch(mul, y, y)
        del y
    program = recording.finished()
    assert kernels(program) == ["fused"]
    program.run()
    assert backend.download(out).ravel().tolist() == [(2.0 * i) ** 2 for i in range(12)]


def test_long_chains_and_many_operands_are_cut(backend: Backend) -> None:
    xs = [buffer(backend, np.full(5, float(i))) for i in range(12)]
    with record(backend) as recording:
        total = xs[0]
        for x in xs[1:]:
            total = backend.launch(add, total, x)
    program = recording.finished()
    assert program.launches == -(-11 // (OPERANDS - 1))
    program.run()
    assert backend.download(total).tolist() == [66.0] * 5
    with record(backend) as recording:
        y = xs[1]
        for _ in range(3 * MOST_STEPS):
            y = backend.launch(scale, y, factor=0.5)
    assert recording.finished().launches == 3


def test_two_chains_meet(backend: Backend) -> None:
    x, y = buffer(backend, [1.0, 2.0]), buffer(backend, [3.0, 4.0])
    with record(backend) as recording:
        left = backend.launch(scale, x, factor=2.0)
        right = backend.launch(mul, y, y)
        out = backend.launch(div, backend.launch(add, left, right), left)
        del left, right
    program = recording.finished()
    assert kernels(program) == ["fused"]
    program.run()
    np.testing.assert_allclose(backend.download(out), [11 / 2, 20 / 4])


@pytest.mark.parametrize("seed", range(40))
def test_replays_of_random_launches(backend: Backend, seed: int) -> None:
    """Results that launches read soon, late, twice or in another shape are there in time, for new inputs too."""
    rng = np.random.default_rng(seed)
    x, y = (buffer(backend, rng.normal(size=(2, 3))) for _ in range(2))
    plan = [(rng.choice(["add", "mul", "sub", "relu", "view"]), *rng.integers(0, 2 + i, 2)) for i in range(8)]
    kept = set(rng.integers(2, 10, 2).tolist()) | {9}

    def compute() -> dict[int, Buffer]:
        found = [x, y]
        for name, i, j in plan:
            if name == "view":
                found.append(backend.launch(mul, found[i].view((3, 2)), found[j].view((3, 2))).view((2, 3)))
            else:
                rule = PRIMITIVES[str(name)]
                found.append(backend.launch(rule, *(found[i], found[j])[: len(rule.operands) - 1]))
        return {k: found[k] for k in kept}

    with record(backend) as recording:
        outs = compute()
    program = recording.finished()
    for b in (x, y):
        backend.upload(rng.normal(size=(2, 3)), b)
    want = {k: backend.download(b) for k, b in compute().items()}
    program.run()
    for k, b in outs.items():
        assert backend.download(b).tobytes() == want[k].tobytes(), (k, plan)


def test_small_arrays_stay_apart_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    backend = backend_of("cpu")
    for size, expected in ((100, 2), (1 << 15, 1)):
        x = buffer(backend, np.ones(size))
        with record(backend) as recording:
            out = backend.launch(scale, backend.launch(scale, x, factor=2.0), factor=2.0)
        assert recording.finished().launches == expected
        assert out.size == size


@pytest.mark.parametrize("norm", [ag.ag_layer_norm, ag.ag_rms_norm])
def test_a_norm_step_is_as_without_chains(device: str, norm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for least in (1, 1 << 60):
        monkeypatch.setattr(backend_of(device), "target", backend_of(device).target._replace(fuse_from=least))
        ag.ag_seed(5)
        model = ag.ag_sequential(ag.ag_linear(6, 8, "gelu"), norm(8), ag.ag_linear(8, 3, "silu"))
        optimizer = ag.optimizer_adam(model, lr=0.01)

        def step(x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
            with ag.with_grad_tape():
                loss = ag.ag_mse_loss(model(x), y)  # noqa: B023 - used in this turn of the loop
            optimizer.step(ag.backward(loss))  # noqa: B023
            optimizer.zero_grad()  # noqa: B023
            return loss

        captured, rng = ag.ag_capture(step), np.random.default_rng(0)
        losses = [captured(*(ag.ag_tensor(rng.normal(size=s)) for s in ((6, 9), (3, 9)))).item() for _ in range(10)]
        assert captured.program is not None
        results.append((losses, {n: x.tobytes() for n, x in model.state_dict().items()}, captured.program.launches))
    assert results[0][:2] == results[1][:2]
    assert results[0][2] < results[1][2]
