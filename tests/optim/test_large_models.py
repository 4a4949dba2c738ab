"""A model that is larger than the device's largest buffer: several flat groups train as one would, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from table.optimizers import OPTIMIZERS, Optimizer

import ag
from ag.engine.arena import Arena
from ag.engine.device import backend_of
from ag.parallel.trainer import replica

SHAPES = {"a": (3, 7), "b": (5, 7), "c": (2, 2), "d": (40, 4), "e": (1, 9)}
PLAN = ["abcde", "ab", "de", "c", "abcde", "", "d", "abe", "abcde"]  # which have a gradient in which step
ROOM = 400  # bytes: 100 elements in float32, so a, b and c are a group, d another, e the last


@contextmanager
def small(device: str, nbytes: int = ROOM) -> Iterator[None]:
    """The device addresses no larger buffers."""
    arena, whole = backend_of(device).arena, Arena.largest_block
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arena, "largest_block", property(lambda self: nbytes if self is arena else whole.__get__(self)))
        yield


def made(row: Optimizer, dtype: str, device: str) -> tuple[dict[str, ag.Tensor], Any]:
    rng = np.random.default_rng(4)
    params = {name: ag.ag_param(rng.standard_normal(shape), dtype=dtype, device=device)
              for name, shape in SHAPES.items()}
    return params, row.make(params, lr=0.1)


def cut(row: Optimizer, dtype: str, device: str) -> tuple[dict[str, ag.Tensor], Any]:
    with small(device):
        return made(row, dtype, device)


def grads(k: int, params: dict[str, ag.Tensor], optimizer: Any) -> dict[str, ag.Tensor]:
    rng, scale = np.random.default_rng(k), optimizer.loss_scale or 1.0
    every = {name: rng.standard_normal(shape) * scale for name, shape in SHAPES.items()}
    return {name: ag.ag_tensor(every[name], params[name].device) for name in PLAN[k]}


def assert_equal(found: tuple[dict[str, ag.Tensor], Any], expected: tuple[dict[str, ag.Tensor], Any]) -> None:
    """Parameters and all state."""
    for name, p in expected[0].items():
        np.testing.assert_array_equal(found[0][name].numpy(), p.numpy(), err_msg=name)
    state, want = found[1].state_dict(), expected[1].state_dict()
    assert state.keys() == want.keys()
    for name, x in want.items():
        np.testing.assert_array_equal(state[name], x, err_msg=name)
    assert found[1].t == expected[1].t


def test_groups_fit(device: str) -> None:
    _, optimizer = cut(OPTIMIZERS[0], "f32", device)
    assert [list(group.params) for group in optimizer.groups] == [["a", "b", "c"], ["d"], ["e"]]
    assert [group.continues for group in optimizer.groups] == [False, True, True]
    assert "state2" not in optimizer.state_dict()
    assert len(made(OPTIMIZERS[0], "f32", device)[1].groups) == 1


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)
def test_they_train_as_one(device: str, row: Optimizer, dtype: str, captured: bool) -> None:
    (params, one), (others, several) = made(row, dtype, device), cut(row, dtype, device)
    assert (len(one.groups), len(several.groups)) == (1, 3)
    steps = {names: ag.ag_capture(lambda *g, names=names: several.step(dict(zip(names, g, strict=True))))
             for names in PLAN if names}
    for k in range(len(PLAN)):
        one.step(grads(k, params, one))
        given = grads(k, others, several)
        if captured and given:
            steps[PLAN[k]](*given.values())
        else:
            several.step(given)
        assert_equal((others, several), (params, one))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)
def test_states_fit_both_ways(device: str, row: Optimizer, dtype: str) -> None:
    whole, parts = made(row, dtype, device), cut(row, dtype, device)
    for k in range(4):
        whole[1].step(grads(k, *whole))
    for source, target in ((whole, parts), (parts, whole)):
        target[1].load_state_dict(source[1].state_dict())
        for name, p in target[0].items():
            p.data = source[0][name].numpy()
        assert_equal(target, source)
        for k in range(4, len(PLAN)):
            source[1].step(grads(k, *source))
            target[1].step(grads(k, *target))
        assert_equal(target, source)


def test_a_step_with_a_gradient_that_is_not_finite_skips_all_groups(device: str) -> None:
    params, optimizer = cut(OPTIMIZERS[0], "f16", device)
    before = {name: p.numpy() for name, p in params.items()}
    bad = grads(0, params, optimizer)
    bad["e"] = ag.ag_tensor(np.full(SHAPES["e"], np.inf), device)
    optimizer.step(bad)
    assert optimizer.skipped == 1 and optimizer.t == 0
    assert all(np.array_equal(before[name], p.numpy()) for name, p in params.items())


def test_a_model_moves_to_a_device_with_smaller_buffers() -> None:
    params, optimizer = made(OPTIMIZERS[0], "f32", "cpu")
    others, expected = made(OPTIMIZERS[0], "f32", "cpu")
    for k in range(len(PLAN)):
        if k == 4:
            with small("cpu:1"):
                for p in params.values():
                    p.rebind(ag.ag_tensor(p.numpy(), "cpu:1").buffer)
                state = optimizer.state_dict()
                optimizer.follow()
                optimizer.load_state_dict(state)
            assert [group.continues for group in optimizer.groups] == [False, True, True]
        optimizer.step(grads(k, params, optimizer))
        expected.step(grads(k, others, expected))
    assert_equal((params, optimizer), (others, expected))


def test_dp_train_names_the_bytes(device: str) -> None:
    data = [(np.ones((4, 1)), np.zeros((40, 1))) for _ in range(2)]
    with small(device), expect_error("a model of two buffers", ag.CommError, "200 parameters of replica 0",
                                     f"{device} addresses {ROOM} bytes"):
        ag.dp_train(lambda: ag.ag_linear(4, 40), data, ag.ag_mse_loss, lambda m, s: m(s[0]), lambda s: s[1],
                    devices=[device], n_iter=1, verbose=False)


def test_rows_apart_are_summed_alike(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a large model do not lie side by side: as if each were too large for that."""
    rng = np.random.default_rng(0)
    data = [(rng.standard_normal((4, 1)), rng.standard_normal((3, 1))) for _ in range(13)]

    def trained() -> list[np.ndarray]:
        ag.ag_seed(3)
        result = ag.dp_train(lambda: ag.ag_linear(4, 3), data, ag.ag_mse_loss, lambda m, s: m(s[0]), lambda s: s[1],
                             devices=[device] * 2, batch=13, n_iter=3, verbose=False)
        return [p.numpy() for p in result.params.values()]

    expected = trained()
    monkeypatch.setattr(replica, "_ROWS_BYTES", 0)
    for found, want in zip(trained(), expected, strict=True):
        np.testing.assert_array_equal(found, want)


@pytest.mark.slow
@pytest.mark.vulkan
def test_forty_million_parameters_on_a_driver_that_binds_128_mib(lavapipe: str) -> None:
    """Their flat buffers have 160 MB each, and are found by their address."""
    params = {name: ag.ag_param(np.full((20_000_000,), 1.0, np.float32), device=lavapipe) for name in "ab"}
    optimizer = ag.optimizer_adam(params, lr=0.5)
    assert len(optimizer.groups) == 1
    optimizer.step({name: ag.ag_tensor(np.full((20_000_000,), 2.0, np.float32), lavapipe) for name in "ab"})
    for p in params.values():
        np.testing.assert_allclose(p.numpy()[::999_983], 0.5, rtol=1e-6)
    assert max(nbytes for nbytes, _ in backend_of(lavapipe).arena.segments) >= 160_000_000 > 128 << 20
