"""The contract of docs/capture.md: whatever is changed around a captured step, it leaves what the eager one would."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import py_object
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

X = np.random.default_rng(0).normal(size=(12, 3, 8)).astype(np.float32)
Y = (X.sum(axis=1, keepdims=True) > 0).astype(np.float32)

Change = Callable[["World", int], None]


class World:
    """A small model with everything that a user may change around its step."""

    def __init__(self, device: str, inside: bool = True) -> None:
        ag.ag_seed(3)
        self.device, self.inside = device, inside
        self.first, self.dropout, self.norm = ag.ag_linear(3, 6), ag.ag_dropout(0.25), ag.ag_batch_norm(6)
        self.model = ag.ag_sequential(self.first, self.dropout, self.norm, ag.ag_linear(6, 1))
        self.optimizer = ag.optimizer_adamw(self.model.parameters(), lr=0.05)
        self.seen: list[object] = []

    def step(self, x: np.ndarray, y: np.ndarray) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(self.model(x), y)
        ag.backward(loss)
        if self.inside:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss

    def state(self) -> list[object]:
        grads = [p.grad if p.grad is None else p.grad.numpy().tolist() for p in self.model.parameters().values()]
        return [{k: v.tolist() for k, v in self.model.state_dict().items()}, grads]


def rate(world: World, k: int) -> None:
    world.dropout.rate = 0.25 + 0.25 * (k // 4 % 2)


def mode(world: World, k: int) -> None:
    (ag.ag_eval if k % 5 == 4 else ag.ag_train)(world.model)


def seed(world: World, k: int) -> None:
    if k % 4 == 3:
        ag.ag_seed(k)


def learning_rate(world: World, k: int) -> None:
    world.optimizer.lr = 0.05 / (k + 1)


def new_optimizer(world: World, k: int) -> None:
    if k in (4, 8):
        world.optimizer = ag.optimizer_sgd(world.model.parameters(), lr=0.1, momentum=0.5)


def load(world: World, k: int) -> None:
    if k == 2:
        world.saved = world.model.state_dict()  # type: ignore[attr-defined]
    if k == 7:
        world.model.load_state_dict(world.saved)  # type: ignore[attr-defined]


def replace_parameter(world: World, k: int) -> None:
    if k == 5:
        world.first.W = ag.ag_param(np.full((6, 3), 0.25, np.float32))
        world.optimizer = ag.optimizer_adam(world.model.parameters())


def hold_gradients(world: World, k: int) -> None:
    if k == 4:
        for p in world.model.parameters().values():
            p.grad = ag.ag_tensor(np.ones(p.shape, np.float32))


def keep_results(world: World, k: int) -> None:
    world.seen.append([p.grad for p in world.model.parameters().values()])


def step_outside(world: World, k: int) -> None:
    if k % 2:
        world.optimizer.step()
        world.optimizer.zero_grad()


def freeze(world: World, k: int) -> None:
    world.first.W.requires_grad = not 4 <= k < 8


CHANGES: list[Change] = [freeze, rate, mode, seed, learning_rate, new_optimizer, load, replace_parameter,
                         hold_gradients, keep_results, step_outside]


@pytest.mark.parametrize("inside", [
    pytest.param(True, id="stepping"), pytest.param(False, id="gradients", marks=pytest.mark.slow_on("lavapipe"))])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changed_between_calls(device: str, change: Change, inside: bool) -> None:
    """Twelve calls with a change before each: all state, and all results kept, as without capture."""
    outcomes = []
    for captured in (False, True):
        world = World(device, inside)
        step = ag.ag_capture(world.step) if captured else world.step
        losses = []
        for k in range(12):
            change(world, k)
            losses.append(step(X[k], Y[k]))
            world.seen.append(world.state())
        kept = [[None if g is None else g.numpy().tolist() for g in item] if isinstance(item[0], ag.Tensor) else item
                for item in world.seen]  # type: ignore[index]
        outcomes.append((kept, [x.item() for x in losses]))
    assert outcomes[0] == outcomes[1]


# ---------------------------------------------------------------------------------------------- what cannot be replayed


class Environment:
    """A number that no name tells of: Python's own code reads it."""

    @property
    def number(self) -> float:
        return float(os.environ["AG_TEST_NUMBER"])

    @number.setter
    def number(self, value: float) -> None:
        os.environ["AG_TEST_NUMBER"] = str(value)


def unwatched() -> Environment:
    found = Environment()
    found.number = 1.0
    return found


def impure(device: str, make: Callable[[Environment], Callable[[ag.Tensor], ag.Tensor]], *fragments: str) -> None:
    """A step that depends on an attribute which is not watched is refused once that has changed."""
    plain = unwatched()
    step = ag.ag_capture(make(plain))
    assert step(ag.ag_tensor([[1.0, 2.0]])).item() == 3.0
    plain.number = 2.0
    with expect_error("a captured step that depends on a Python number", ag.CaptureError, *fragments):
        step(ag.ag_tensor([[1.0, 3.0]]))


def test_a_number_from_outside(device: str) -> None:
    impure(device, lambda n: lambda x: ag.ag_sum(x * n.number), "mul", "number 1.0", "number 2.0")
    impure(device, lambda n: lambda x: ag.ag_sum(ag.ag_scale(x, n.number)), "scale", "factor=1.0", "factor=2.0")
    impure(device, lambda n: lambda x: ag.ag_sum(x * np.float32(n.number)), "number 1.0", "number 2.0")


def test_a_branch(device: str) -> None:
    impure(device, lambda n: lambda x: ag.ag_sum(x) if n.number < 2 else ag.ag_mean(x), "launch")
    impure(device, lambda n: lambda x: ag.ag_sum(x) if n.number < 2 else ag.ag_sum(x) * x[0, 0], "launch")


def test_a_tensor_that_is_replaced_where_nobody_looks(device: str) -> None:
    held = py_object(ag.ag_tensor([[1.0, 1.0]]))
    step = ag.ag_capture(lambda x: ag.ag_sum(x * held.value))
    step(ag.ag_tensor([[1.0, 2.0]]))
    held.value = ag.ag_tensor([[5.0, 5.0]])
    with expect_error("a captured step that uses another tensor now", ag.CaptureError, "a tensor from outside"):
        step(ag.ag_tensor([[1.0, 3.0]]))


def test_a_change_long_after(device: str) -> None:
    """A number that changes after the first comparisons is found by a later one, which says since when."""
    plain = unwatched()
    step = ag.ag_capture(lambda x: ag.ag_sum(x * plain.number))
    for k in range(20):
        step(ag.ag_tensor([[1.0, float(k)]]))
    plain.number = 2.0
    with expect_error("a number that changed after replays", ag.CaptureError, "number 2.0", "may have been wrong"):
        for k in range(20):
            step(ag.ag_tensor([[1.0, float(k)]]))


def test_an_argument_whose_shape_is_read(device: str) -> None:
    step = ag.ag_capture(lambda a: ag.ag_sum(ag.ag_tensor(a.reshape(-1, 1)[:])) / a.shape[0] / len(a) / a.size / a.ndim)
    for k in range(4):
        assert step(np.full((2, 3), float(k))).item() == pytest.approx(k / 8)


@pytest.mark.parametrize("keep", [lambda kept, x, y: kept.append(y), lambda kept, x, y: kept.append(y.detach()),
                                  lambda kept, x, y: kept.append(y.reshape(2, 1)),
                                  lambda kept, x, y: kept.append(y * 2.0), lambda kept, x, y: kept.append(x)])
def test_a_step_that_keeps_a_tensor(device: str, keep: Callable[..., None]) -> None:
    kept: list[ag.Tensor] = []

    def step(x: ag.Tensor) -> ag.Tensor:
        y = x + 1.0
        keep(kept, x, y)
        return y

    with expect_error("a captured step keeps a tensor", ag.CaptureError, "keeps", "outside the step"):
        ag.ag_capture(step)(ag.ag_tensor([[1.0, 2.0]]))


def test_a_step_that_does_nothing_on_a_device(device: str) -> None:
    with expect_error("a captured step without launches", ag.CaptureError, "launched nothing"):
        ag.ag_capture(lambda x: None)(np.ones(3))


def test_two_devices(device: str) -> None:
    other = ag.ag_tensor([1.0], device="cpu:1")

    def step(x: ag.Tensor) -> ag.Tensor:
        ag.ag_sum(other)
        return x + x

    with expect_error("a captured step that works on two devices", ag.CaptureError, "cpu:1", "one device"):
        ag.ag_capture(step)(ag.ag_tensor([1.0]))


def test_backward_from_a_result(device: str) -> None:
    W = ag.ag_param([[2.0]])

    def forward(x: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            return W * x

    step = ag.ag_capture(forward)
    for _ in range(3):
        with ag.with_grad_tape():
            loss = ag.ag_sum(step(ag.ag_tensor([[1.0]])))
        with expect_error("backward from a result of a captured step", ag.TapeError, "captured step", "inside"):
            ag.backward(loss)


def test_results_that_are_arguments_and_parameters(device: str) -> None:
    W = ag.ag_param([[2.0, 1.0]])

    def step(x: ag.Tensor, y: ag.Tensor) -> tuple[ag.Tensor, ...]:
        z = x * W
        return x, W, z, z, z.reshape(2, 1)

    captured = ag.ag_capture(step)
    for k in range(5):
        x = ag.ag_tensor([[1.0, float(k)]])
        a, b, c, d, e = captured(x, x)
        assert a is x and b is W and c is d
        assert c.numpy().ravel().tolist() == e.numpy().ravel().tolist() == [2.0, float(k)]


@pytest.mark.parametrize("levels", [4, 500, None])
def test_containers_nested_deep(levels: int | None) -> None:
    class Net(ag.Layer):
        def forward(self, x: np.ndarray) -> Any:
            made: list[Any] = [ag.ag_sum(ag.ag_tensor(x))] if self.returns else [2.0]
            for _ in range(levels or 0):
                made = [made]
            if levels is None:
                made.append(made)
            self.last = None if self.returns else made
            return made if self.returns else ag.ag_sum(ag.ag_tensor(x))

    for returns in (True, False):
        net = Net()
        net.returns = returns
        step = ag.ag_capture(net.forward)
        for k in range(4):
            if levels == 4:
                got, kept = step(np.array([[float(k)]])), net.last
                while isinstance(got, list):
                    got = got[0]
                assert got.item() == k and (kept is None) is returns
            else:
                with expect_error("endless containers", ag.CaptureError, "deep", "contains itself"):
                    step(np.array([[float(k)]]))


@pytest.mark.parametrize(("ids", "advice"), [
    ([0, 1, 2, 3], "weight[:, :n] of an embedding"), ([2, 0, 1, 3], "would use its old values. Make it an argument")])
def test_advice_about_whole_numbers_from_outside(ids: list[int], advice: str) -> None:
    labels, weight = np.array(ids), ag.ag_param(np.ones((4, 4)))
    with expect_error("labels from outside", ag.CaptureError, advice):
        ag.ag_capture(lambda x: ag.ag_softmax_cross_entropy_loss(ag.ag_matmul(weight, x), labels))(np.ones((4, 4)))


# ---------------------------------------------------------------------------------------------- threads


def test_work_in_another_thread_is_refused(device: str) -> None:
    def in_thread(work: Callable[[], object]) -> object:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()

    W = ag.ag_tensor([[3.0, 4.0]])
    for work in (lambda x: in_thread(lambda: x * 2.0), lambda x: x * in_thread(lambda: W * 2.0),
                 lambda x: x * in_thread(lambda: ag.ag_tensor([[3.0, 4.0]], device=device))):
        with expect_error("a captured step that uses another thread", ag.CaptureError, "another one"):
            ag.ag_capture(work)(ag.ag_tensor([[1.0, 2.0]]))


def test_threads_capture_independently(device: str) -> None:
    def train(number: int, captured: bool) -> list[list[float]]:
        rng = np.random.default_rng(number)
        with ag.ag_device(device):
            W = ag.ag_param(rng.normal(size=(1, 3)))
            optimizer = ag.optimizer_adam({"W": W}, lr=0.1)

            def step(x: np.ndarray, y: np.ndarray) -> ag.Tensor:
                with ag.with_grad_tape():
                    loss = ag.ag_mse_loss(W @ ag.ag_tensor(x), y)
                optimizer.step(ag.backward(loss))
                return loss

            run = ag.ag_capture(step) if captured else step
            losses = [run(X[k % 12], Y[k % 12]).item() for k in range(20)]
            return [losses, W.numpy().ravel().tolist()]

    alone = [train(number, False) for number in range(4)]
    together: list[object] = [None] * 4

    def work(number: int) -> None:
        together[number] = train(number, True)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
