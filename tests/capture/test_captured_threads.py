"""Results of a captured step in several threads: they stay as they are, whoever reads them and whoever replays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Thread

import numpy as np
import pytest

import ag
from ag.engine.buffer import CopyOnWrite

SHAPE = (64, 512)  # more than what is copied at once
X = [np.full(SHAPE, float(k), np.float32) for k in range(4)]


@pytest.fixture(autouse=True)
def _switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def replayed(device: str) -> ag.CapturedStep[[np.ndarray], ag.Tensor]:
    """Return a step with a large result that was replayed in this thread."""
    with ag.ag_device(device):
        W = ag.ag_param(np.eye(SHAPE[0]))
        step = ag.ag_capture(lambda x: ag.ag_matmul(W, x))
        for k in range(10):
            step(X[k % 4])
    return step


def in_threads(*functions: object) -> None:
    threads = [Thread(target=f) for f in functions]  # type: ignore[arg-type]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def test_a_result_that_another_thread_uses_moves_out_first(device: str) -> None:
    step = replayed(device)
    with ag.ag_device(device):
        results = [step(X[3])]
        assert type(results[0].buffer.block) is CopyOnWrite
        for use in (lambda r: r.numpy(), lambda r: r * 1.0, lambda r: r.buffer.view((2, r.size // 2)),
                    lambda r: r.detach(), lambda r: setattr(r, "data", X[3])):
            results.append(step(X[3]))
            in_threads(lambda use=use: use(results[-1]))
            assert type(results[-1].buffer.block) is not CopyOnWrite
        step(X[1])
        assert all((r.numpy() == 3.0).all() for r in results)


def test_what_was_lent_to_one_thread_stays_when_another_calls(device: str) -> None:
    step = replayed(device)
    with ag.ag_device(device):
        result = step(X[3])
        address, others = result.buffer.address, []
        in_threads(lambda: others.extend(step(X[k % 4]) for k in range(10)))
    assert result.buffer.address == address  # nobody has touched the memory that this thread may be reading
    assert (result.numpy() == 3.0).all()
    assert all((r.numpy() == k % 4).all() for k, r in enumerate(others))


def test_one_reads_while_another_calls(device: str) -> None:
    step, done, wrong = replayed(device), [], []

    def call() -> None:
        with ag.ag_device(device):
            for k in range(60):
                step(X[k % 4])
        done.append(True)

    def read() -> None:
        with ag.ag_device(device):
            while not done:
                r = step(X[3])
                wrong.extend(x for x in (r.numpy(), (r * 1.0).numpy(), r.numpy()) if not (x == 3.0).all())

    in_threads(call, read)
    assert not wrong


def test_values_written_before_a_result_moves_out_are_noticed() -> None:
    step, W = replayed("cpu"), ag.ag_param(np.ones(SHAPE))
    for assign in (False, True):
        y = step(X[3])
        with ag.with_grad_tape():
            loss = ag.ag_sum(W * y)
        if assign:
            y.data = X[2]
        step(X[1])  # the result moves out
        if assign:
            with pytest.raises(ag.TapeError, match="was changed after ag_mul"):
                ag.backward(loss)
        else:
            assert (ag.backward(loss)[W].numpy() == 3.0).all()


@pytest.mark.parametrize("lent_to", [1, 2])
def test_a_step_may_not_use_what_another_thread_replays_meanwhile(device: str, lent_to: int) -> None:
    other, found = replayed(device), list[ag.Tensor]()
    with ag.ag_device(device):
        if lent_to == 2:  # and so to nobody alone
            in_threads(lambda: [other(X[1]) for _ in range(8)])

        def body(x: np.ndarray) -> ag.Tensor:
            in_threads(lambda: found.append(other(X[3])))
            return ag.ag_tensor(x) * ag.ag_sum(found[-1])

        step = ag.ag_capture(body)
        with pytest.raises(ag.CaptureError, match="passes between the step's thread and another one"):
            step(np.ones(1, np.float32))
        before = other(X[2])  # of before the recording: it is a constant of the step
        step = ag.ag_capture(lambda x: ag.ag_tensor(x) * ag.ag_sum(before))
        for k in range(10):
            assert step(np.full(1, k, np.float32)).item() == 2.0 * before.size * k
