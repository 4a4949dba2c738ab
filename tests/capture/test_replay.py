"""Replays in compiled code leave what those of Python leave, and what is not ordinary is left to Python."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from helpers.devices import run_code
from helpers.interrupts import at_place

import ag
from ag.capture import program
from ag.capture.step import CapturedStep
from ag.engine.backends.cpu import native
from ag.engine.device import _device, backend_of

pytestmark = pytest.mark.skipif(not program.HAS_CODE, reason="replays were not compiled")


class Twin:
    """A model, an optimizer, and a captured step of two inputs; `looks` counts the calls that Python looks at."""

    def __init__(self, device: str, in_code: bool, monkeypatch: pytest.MonkeyPatch, zeroes: bool = True) -> None:
        rng = np.random.default_rng(1)
        self.device, self.in_code, self.zeroes, self.keeps = device, in_code, zeroes, 1.0
        with ag.ag_device(device):
            self.net = ag.ag_sequential(ag.ag_linear(4, 6, activation="relu"), ag.ag_dropout(0.0), ag.ag_linear(6, 3))
        for p in self.net.parameters().values():
            p.data = rng.standard_normal(p.shape, np.float32)
        self.optimizer = ag.optimizer_adam(self.net, lr=0.05)
        self.run: CapturedStep[Any, Any] = ag.ag_capture(self.step)
        self.looks = 0
        look = self.run._replay_or_record

        def counted(*args: Any) -> Any:
            self.looks += 1
            return look(*args)

        monkeypatch.setattr(self.run, "_replay_or_record", counted)
        self._patch = monkeypatch

    def step(self, x: Any, y: Any) -> Any:
        with ag.with_grad_tape():
            out = self.net(ag.ag_tensor(x) if not isinstance(x, ag.Tensor) else x)
            loss = ag.ag_softmax_cross_entropy_loss(out, y) * self.keeps
        self.optimizer.step(ag.backward(loss))
        if self.zeroes:
            self.optimizer.zero_grad()
        return loss, out

    def __call__(self, *args: Any) -> Any:
        """Return what a call returns or raises, in a comparable form."""
        with ExitStack() as stack:
            if not self.in_code:
                stack.enter_context(patch.object(program, "HAS_CODE", False))
            try:
                found = self.run(*args)
            except Exception as error:  # noqa: BLE001 - whatever the other one raises, too
                return type(error), str(error)
        return [t.numpy().tobytes() for t in found] if isinstance(found, tuple) else found

    def state(self) -> Any:
        grads = [p.grad for p in self.net.parameters().values()]
        return ([p.numpy().tobytes() for p in self.net.parameters().values()],
                [None if g is None else g.numpy().tobytes() for g in grads])


@pytest.fixture
def twins(device: str, monkeypatch: pytest.MonkeyPatch) -> list[Twin]:
    """A step whose replays compiled code makes, and the same with those of Python."""
    return [Twin(device, in_code, monkeypatch) for in_code in (True, False)]


def batch(device: str, seed: int, n: int = 5, kind: str = "tensors") -> tuple[Any, Any]:
    """Inputs, and labels: tensors of one-hot columns, or arrays of numbers."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((4, n), np.float32), rng.integers(0, 3, n)
    if kind == "arrays":
        return x, y
    return ag.ag_tensor(x, device), ag.ag_tensor(np.eye(3, dtype=np.float32)[y].T, device)


def same(twins: list[Twin], *args: Any, by_python: bool | None = None) -> Any:
    """Call both; they must do the same, and `by_python` is whether Python looked at the call of the first."""
    before = twins[0].looks
    first, second = [twin(*args) for twin in twins]
    assert first == second
    if by_python is not None:
        assert (twins[0].looks > before) is by_python
    return first


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_calls_that_come_again(twins: list[Twin], kind: str) -> None:
    """Calls 1, 2, 8 and 32 are recorded, and 3 is the first that is replayed; all others are compiled code's."""
    for number in range(1, 41):
        same(twins, *batch(twins[0].device, number, kind=kind), by_python=number in (1, 2, 3, 8, 32))
        assert twins[0].run._programs[-1].calls == twins[1].run._programs[-1].calls == number
    assert twins[0].state() == twins[1].state()


def test_the_same_arguments_again_and_again(twins: list[Twin]) -> None:
    args, others = batch(twins[0].device, 1), batch(twins[0].device, 1)
    for number in range(1, 6):
        same(twins, *args, by_python=number < 4)
    same(twins, *others, by_python=False)
    same(twins, *batch(twins[0].device, 2), by_python=False)


Change = Callable[[list[Twin]], "AbstractContextManager[Any] | None"]


def an_attribute(twins: list[Twin]) -> None:
    for twin in twins:
        twin.keeps += 1.0


def a_layer(twins: list[Twin]) -> None:
    for twin in twins:
        twin.net.eval()


def a_gradient(twins: list[Twin]) -> None:
    for twin in twins:
        p = next(iter(twin.net.parameters().values()))
        p.grad = ag.ag_tensor(np.ones(p.shape, np.float32), twin.device)


def a_learning_rate(twins: list[Twin]) -> None:
    for twin in twins:
        twin.optimizer.lr = 0.5


def again(name: str) -> None:
    """The same default device, by an equal name."""
    _device.set("".join(name))


def new_values(twins: list[Twin]) -> None:
    for twin in twins:
        p = next(iter(twin.net.parameters().values()))
        p.data = p.numpy() + 1


CHANGES: dict[str, tuple[Change, bool]] = {
    "nothing": (lambda _: None, False),
    "an attribute": (an_attribute, True),
    "the mode of layers": (a_layer, True),
    "a gradient": (a_gradient, True),
    "a learning rate": (a_learning_rate, False),
    "other values": (new_values, False),
    "the default device": (lambda twins: ag.ag_device("cpu:1"), True),
    "the default device for a while": (lambda _: again(ag.ag_default_device()), False),
    "the default type": (lambda _: ag.ag_dtype("f64" if ag.ag_default_device() == "cpu" else "f16"), True),
    "no tape": (lambda _: ag.no_grad(), True),
    "the precision of products": (lambda _: ag.ag_matmul_precision("medium"), True),
    "a profile": (lambda _: ag.profile(), False),
}
"""What is changed before a call, and whether Python has to look at the call."""


@pytest.mark.parametrize("change", CHANGES)
def test_changes_around_a_step(twins: list[Twin], change: str) -> None:
    for number in range(1, 6):
        same(twins, *batch(twins[0].device, number))
    do, by_python = CHANGES[change]
    changed = batch(twins[0].device, 7)
    with do(twins) or nullcontext():
        same(twins, *changed, by_python=by_python)
        assert twins[0].state() == twins[1].state()
    for number in range(8, 12):
        same(twins, *batch(twins[0].device, number))
        assert twins[0].state() == twins[1].state()


def wrong_labels(device: str) -> tuple[Any, Any]:
    x, y = batch(device, 9, kind="arrays")
    return x, np.where(np.arange(5) == 2, 3, y)


ARGUMENTS: dict[str, tuple[Callable[[str], tuple[Any, ...]], bool]] = {
    "another size": (lambda device: batch(device, 9, 7, "arrays"), True),
    "tensors": (lambda device: batch(device, 9), True),
    "another type": (lambda device: (batch(device, 9, 5, "arrays")[0].astype(np.float64), np.arange(5) % 3), True),
    "another order of bytes": (lambda device: tuple(
        x.astype(x.dtype.newbyteorder(">")) for x in batch(device, 9, 5, "arrays")), True),
    "another order in memory": (lambda device: (np.asfortranarray(batch(device, 9, 5, "arrays")[0]),
                                                batch(device, 9, 5, "arrays")[1]), False),
    "every other element": (lambda device: (np.repeat(batch(device, 9, 5, "arrays")[0], 2, 1)[:, ::2],
                                            batch(device, 9, 5, "arrays")[1]), False),
    "a label that is none": (wrong_labels, True),
    "a masked array": (lambda device: (np.ma.masked_array(batch(device, 9, 5, "arrays")[0], mask=True),
                                       batch(device, 9, 5, "arrays")[1]), False),  # refused before
    "a parameter": (lambda device: (ag.ag_param(np.ones((4, 5)), device), batch(device, 9, 5, "arrays")[1]), True),
    "a number": (lambda device: (1.0, batch(device, 9, 5, "arrays")[1]), False),  # refused before
    "one": (lambda device: batch(device, 9, 5, "arrays")[:1], True),
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_other_arguments(twins: list[Twin], kind: str) -> None:
    device = twins[0].device
    for number in range(1, 6):
        same(twins, *batch(device, number, kind="arrays"))
    make, by_python = ARGUMENTS[kind]
    same(twins, *make(device), by_python=by_python)
    for number in range(8, 12):
        same(twins, *batch(device, number, kind="arrays"))
    assert twins[0].state() == twins[1].state()


def test_gradients_that_stay(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie on the program's memory until somebody looks; who looked keeps what was there."""
    twins = [Twin(device, in_code, monkeypatch, zeroes=False) for in_code in (True, False)]
    for number in range(1, 4):
        for twin in twins:
            twin.optimizer.zero_grad()
        same(twins, *batch(device, number))
    for number in range(4, 7):
        same(twins, *batch(device, number))  # gradients are summed
    assert twins[0].state() == twins[1].state()
    kept = [[p.grad for p in twin.net.parameters().values()] for twin in twins]
    before = [[g.numpy().tobytes() for g in grads if g is not None] for grads in kept]
    same(twins, *batch(device, 7))
    assert before == [[g.numpy().tobytes() for g in grads if g is not None] for grads in kept]


def test_another_thread(twins: list[Twin]) -> None:
    for number in range(1, 6):
        same(twins, *batch(twins[0].device, number))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(same(twins, *batch(twins[0].device, 6), by_python=True)))
    thread.start()
    thread.join()
    assert found
    for number in range(7, 14):
        same(twins, *batch(twins[0].device, number))
    assert twins[0].state() == twins[1].state()


def test_a_step_within_a_step(twins: list[Twin]) -> None:
    for number in range(1, 6):
        same(twins, *batch(twins[0].device, number))
    args = batch(twins[0].device, 6)
    with pytest.raises(ag.CaptureError, match="do not nest"):
        ag.ag_capture(lambda x, y: twins[0].run(x, y))(*args)


def test_a_step_that_is_closed(twins: list[Twin]) -> None:
    for number in range(1, 6):
        same(twins, *batch(twins[0].device, number))
    for twin in twins:
        twin.run.close()
    same(twins, *batch(twins[0].device, 6), by_python=True)


def test_a_handler_that_calls_the_step(twins: list[Twin]) -> None:
    """Wherever a handler finds the replay, its call runs eagerly, and both leave what two calls leave."""
    device = twins[0].device
    for number in range(1, 5):
        same(twins, *batch(device, number))
    inside = {program.__file__, native.__file__}
    for place in range(1, 8):
        args, others = batch(device, 10 + place), batch(device, 30 + place)
        results: list[Any] = []
        with at_place(place, lambda: results.append(twins[0](*others)), lambda f: f.f_code.co_filename in inside):  # noqa: B023
            first = twins[0](*args)
        assert first[0] != b"" and len(results) <= 1
        assert all(np.isfinite(np.frombuffer(x, np.float32)).all() for x in (first[0], *(r[0] for r in results)))


def test_an_interrupt(twins: list[Twin]) -> None:
    """A step that was interrupted can be called again."""
    def interrupt() -> None:
        raise KeyboardInterrupt

    device = twins[0].device
    for number in range(1, 5):
        same(twins, *batch(device, number))
    for place in range(1, 40):
        with suppress(KeyboardInterrupt), at_place(place, interrupt, lambda f: "/ag/" in f.f_code.co_filename) as seen:
            twins[0].run(*batch(device, 9))
        assert seen[0] >= 1
        assert isinstance(twins[0](*batch(device, 10)), list)


@pytest.fixture
def quiet() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", ["tensors", "arrays", "a label that is none"])
def test_nothing_is_leaked(twins: list[Twin], quiet: None, kind: str) -> None:
    device, twin = twins[0].device, twins[0]
    for number in range(1, 10):
        twin(*batch(device, number, kind="tensors" if kind == "tensors" else "arrays"))
    x, y = wrong_labels(device) if "none" in kind else batch(device, 3, kind=kind)
    twin(x, y)
    counts = []
    for _ in range(3):
        for _ in range(5):
            twin(x, y)
        backend_of(device).synchronize()
        counts.append([sys.getrefcount(each) for each in (x, y, twin.run._programs[-1], *twin.run._made.values())])
        counts[-1].append(backend_of(device).arena.stats().live)
    assert counts[0] == counts[1] == counts[2]


def test_a_step_that_goes_frees_its_memory_at_once(device: str, quiet: None) -> None:
    """Without a collection: nothing of it holds itself."""
    backend, x = backend_of(device), ag.ag_tensor(np.ones((64, 64), np.float32), device)

    def live_after(calls: int) -> int:
        step = ag.ag_capture(lambda x: ag.ag_sum(x * 2.0 + 1.0))
        for _ in range(calls):
            step(x)
        del step
        backend.synchronize()
        return backend.arena.stats().live

    live_after(1)  # which makes the constants, that stay
    assert len({live_after(calls) for calls in (0, 1, 2, 6, 10)}) == 1


def test_kinds_that_alternate(twins: list[Twin]) -> None:
    for number in range(1, 25):
        same(twins, *batch(twins[0].device, number, 5 + number % 2))
    assert len(twins[0].run._programs) == len(twins[0].run._made) == 2
    assert twins[0].state() == twins[1].state()


def test_what_it_is_made_of() -> None:
    for wrong in ((), (0, {}, (), (), ((1, 2),)) + (None,) * 11):
        with pytest.raises(TypeError):
            program._code.Replay(*wrong)


@pytest.mark.parametrize("returns", ["nothing", "a dict", "its argument", "the same tensor twice"])
def test_what_steps_return(device: str, returns: str) -> None:
    @ag.ag_capture
    def step(x: Any) -> Any:
        y = x * 2.0
        return {"nothing": None, "a dict": {"y": y, "z": [y + 1.0]}, "its argument": x,
                "the same tensor twice": (y, y)}[returns]

    for number in range(1, 7):
        x = ag.ag_tensor(np.full(3, number, np.float32), device)
        found = step(x)
        if returns == "nothing":
            assert found is None
        elif returns == "a dict":
            assert (found["y"].numpy() + 1 == found["z"][0].numpy()).all()
        elif returns == "its argument":
            assert found is x
        else:
            assert found[0] is found[1]


SHUT_DOWN = """
import numpy as np, ag
x = ag.ag_tensor(np.ones(3), DEVICE)
step = ag.ag_capture(lambda x: x * 2.0)
for _ in range(6):
    step(x)
ag.ag_shutdown()
try:
    step(x)
except ag.DeviceError as error:
    said = {"error": str(error)}
"""


def test_a_device_that_was_shut_down(device: str) -> None:
    assert "closed by ag_shutdown" in run_code(f"DEVICE = {device!r}\n{SHUT_DOWN}")["error"]


def test_without_compiled_code(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "HAS_CODE", False)
    twin = Twin(device, True, monkeypatch)
    for number in range(1, 12):
        assert isinstance(twin(*batch(device, number)), list)
    assert twin.looks == 11
