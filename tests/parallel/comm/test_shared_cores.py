"""The BLAS while several CPU devices work: each gets its part of the cores, and afterwards it is as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import ag
from ag.parallel.comm import device_threads
from ag.parallel.comm.device_threads import SharedCores, blas_threads


@pytest.fixture(autouse=True)
def _four(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if there were four cores, and a BLAS that takes all."""
    monkeypatch.setattr(device_threads, "threads", lambda: 4)
    with threadpool_limits(4, "blas"):
        if now() != {4}:
            pytest.skip("the number of threads of this BLAS cannot be changed")
        yield
        assert now() == {4}


def now() -> set[int]:
    return {count for _, count in blas_threads()}


def test_parts() -> None:
    for devices, count in ((1, 4), (2, 2), (3, 1), (4, 1), (9, 1)):
        with SharedCores(f"cpu:{i}" for i in range(devices)):
            assert now() == {count}
        assert now() == {4}


def test_nested_and_at_the_same_time() -> None:
    with SharedCores(["cpu", "cpu:1"]):
        with SharedCores(["cpu", "cpu:1"]):
            assert now() == {2}
        assert now() == {2}
        thread = threading.Thread(target=lambda: SharedCores(["cpu:2", "cpu:3"]).close())
        other = SharedCores(["cpu:2", "cpu:3"])
        assert now() == {1}
        thread.start()
        thread.join()
        other.close()
        assert now() == {2}


def test_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), SharedCores(["cpu", "cpu:1"]):
        raise ZeroDivisionError
    forgotten = SharedCores(["cpu", "cpu:1"])
    del forgotten  # as by an interrupt
    with SharedCores(["cpu"]):
        assert now() == {4}


DATA = [np.full((3, 1), i / 4, np.float32) for i in range(4)]


def train(devices: list[str], seen: list[set[int]], fails: bool = False) -> None:
    def forward(model: ag.Layer, x: np.ndarray) -> ag.Tensor:
        seen.append(now())
        if fails:
            raise ZeroDivisionError
        return model.forward(x)

    ag.dp_train(lambda: ag.ag_linear(3, 3), DATA, ag.ag_mse_loss, forward, devices=devices, n_iter=1, verbose=False,
                capture=False)


@pytest.mark.parametrize(("devices", "count"), [(["cpu"], 4), (["cpu", "cpu"], 4), (["cpu", "cpu:1"], 2)], ids=str)
def test_dp_train(devices: list[str], count: int) -> None:
    seen: list[set[int]] = []
    train(devices, seen)
    assert seen and all(found == {count} for found in seen) and now() == {4}
    with pytest.raises(ZeroDivisionError):
        train(devices, seen, fails=True)


def test_data_parallel() -> None:
    seen: list[set[int]] = []

    class Looking(ag.Layer):
        def forward(self, x: ag.Tensor) -> ag.Tensor:
            seen.append(now())
            return x

    model = ag.DataParallel(ag.ag_sequential(ag.ag_linear(3, 3), Looking()), ["cpu", "cpu:1"])
    model(np.ones((3, 4), np.float32))
    assert seen == [{2}, {2}]
    seen.clear()
    ag.DataParallel(ag.ag_sequential(ag.ag_linear(3, 3), Looking()), ["cpu"])(np.ones((3, 4), np.float32))
    assert seen == [{4}]
