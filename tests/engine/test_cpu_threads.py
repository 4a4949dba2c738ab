"""Blocks of arrays and threads over them: every call is made, errors arrive, and results do not depend on threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from math import inf
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.engine import cpu_threads as blocks
from ag.engine.kernels.attention import attention, attention_grad

RNG = np.random.default_rng(5)


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """As if there were so many cores."""
    monkeypatch.setattr(blocks, "threads", lambda: request.param)
    yield request.param


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------------------------------------- how many


def counted(monkeypatch: pytest.MonkeyPatch, cores: int = 8, **environment: str) -> int:
    """Threads on a machine of so many cores, with these variables and none else."""
    monkeypatch.setattr(blocks, "cores", lambda: cores)
    for name in ("AG_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return blocks.threads.__wrapped__()


def test_as_many_threads_as_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counted(monkeypatch) == 8
    assert counted(monkeypatch, AG_THREADS="") == 8
    assert counted(monkeypatch, AG_THREADS="3", OMP_NUM_THREADS="2") == 3
    assert counted(monkeypatch, AG_THREADS="64") == 8
    assert counted(monkeypatch, OMP_NUM_THREADS="2") == 2
    assert counted(monkeypatch, OMP_NUM_THREADS="4,2") == counted(monkeypatch, OMP_NUM_THREADS="0") == 8


@pytest.mark.parametrize("text", ["two", "0", "-1", "1.5", "4,2"])
def test_a_number_of_threads_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    with expect_error("AG_THREADS that is no number", ag.DeviceError, f"AG_THREADS is {text!r}", "such as 4"):
        counted(monkeypatch, AG_THREADS=text)


def in_a_process(program: str, **environment: str) -> str:
    """The last line that a program says."""
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True,
                          text=True, timeout=60, check=False)
    return (done.stdout + done.stderr).splitlines()[-1]


def test_it_is_refused_when_a_device_is_opened() -> None:
    program = "import ag; ag.ag_tensor([1.0], device='cpu')"
    assert in_a_process(program, AG_THREADS="two").startswith("ag.errors.DeviceError: AG_THREADS is 'two'; ")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_cores_that_the_process_may_not_run_on_do_not_count() -> None:
    """Not even those that AG_THREADS asks for."""
    program = ("import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); import ag\n"
               "from ag.engine.cpu_threads import cores, threads; print(cores(), threads())")
    assert in_a_process(program, AG_THREADS="8") == "1 1"


QUOTAS: dict[str, tuple[str, dict[str, str], float]] = {
    "none": ("0::/", {}, inf),
    "version 2, of a container": ("0::/", {"cpu.max": "200000 100000"}, 2),
    "version 2, no limit": ("0::/", {"cpu.max": "max 100000"}, inf),
    "version 2, of a service": ("0::/a.slice/b.service", {"a.slice/b.service/cpu.max": "150000 100000"}, 1.5),
    "version 2, of what it is in": ("0::/a.slice/b.service", {"a.slice/b.service/cpu.max": "300000 100000",
                                                              "a.slice/cpu.max": "50000 100000"}, 0.5),
    "version 2, of another": ("0::/a.slice", {"b.slice/cpu.max": "100000 100000"}, inf),
    "version 2, seen from beside": ("0::/../../a", {"cpu.max": "100000 100000", "../../a/cpu.max": "1 1"}, 1),
    "version 1": ("9:cpuset:/\n4:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "250000",
                                                  "cpu,cpuacct/cpu.cfs_period_us": "50000"}, 5),
    "version 1, by a name of its own": ("4:cpu,cpuacct:/docker/8f", {"cpu/cpu.cfs_quota_us": "100000",
                                                                     "cpu/cpu.cfs_period_us": "100000"}, 1),
    "version 1, no limit": ("1:cpu:/\n0::/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, inf),
    "version 1, of other controllers": ("3:memory:/", {"memory/cpu.cfs_quota_us": "1", "cpu/cpu.cfs_quota_us": "1",
                                                       "cpu/cpu.cfs_period_us": "1"}, inf),
    "nonsense": ("?\n0::/", {"cpu.max": "much"}, inf),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_limits_of_control_groups(tmp_path: Path, name: str) -> None:
    groups, files, expected = QUOTAS[name]
    root = tmp_path / "c" / "groups"
    root.mkdir(parents=True)
    for path, text in files.items():
        (root / path).resolve().parent.mkdir(parents=True, exist_ok=True)
        (root / path).resolve().write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{groups}\n")
    assert blocks.quota(root, tmp_path / "own") == expected
    assert blocks.quota(root, tmp_path / "not there") == inf


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
def test_a_container_has_no_more_threads_than_its_time_is_enough_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    for limit, expected in ((inf, 64), (2.0, 2), (1.5, 2), (0.25, 1)):
        monkeypatch.setattr(blocks, "quota", lambda limit=limit: limit)
        assert blocks.cores() == expected


# ---------------------------------------------------------------------------------------------- calls


def test_every_call_is_made_once(threads: int) -> None:
    made: list[int] = []
    for count in (0, 1, 2, 7, 100):
        made.clear()
        blocks.together([partial(made.append, i) for i in range(count)])
        assert sorted(made) == list(range(count))


def test_calls_are_made_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "threads", lambda: 2)
    monkeypatch.setattr(blocks, "_helpers", blocks._Helpers())  # no helper that is still about to become idle
    met = threading.Barrier(2, timeout=20)
    blocks.together([met.wait] * 2)  # would wait in vain in one thread


def test_a_thread_that_is_one_of_many_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "threads", lambda: 2)
    used: set[int] = set()

    def note() -> None:
        used.add(threading.get_ident())
        sleep(0.01)

    def work() -> None:
        blocks.share_cores(blocks.threads())
        blocks.together([note] * 8)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(used) == 1


def test_an_error_arrives_and_no_call_is_made_twice(threads: int) -> None:
    made: list[int] = []

    def fail() -> None:
        raise ArithmeticError("seven")

    with pytest.raises(ArithmeticError, match="seven"):
        blocks.together([fail, *[partial(made.append, i) for i in range(9)]])
    assert sorted(made) == sorted(set(made))  # calls that no thread had begun are left out where there is one thread
    made.clear()
    blocks.together([partial(made.append, i) for i in range(9)])  # and the threads still work
    assert sorted(made) == list(range(9))


def test_calls_within_calls_and_from_several_threads(threads: int) -> None:
    found: list[int] = []

    def inner(i: int) -> None:
        blocks.together([partial(found.append, 10 * i + k) for k in range(10)])

    callers = [threading.Thread(target=blocks.together, args=([partial(inner, 10 * c + i) for i in range(10)],))
               for c in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert sorted(found) == list(range(400))


@pytest.mark.parametrize("size", [0, 1, blocks.BLOCK, blocks.WIDE + 1, 2 * blocks.WIDE, 5 * blocks.WIDE + 3])
def test_pieces_cover_an_array(threads: int, size: int) -> None:
    covered = [i for piece in blocks.cut(size) for i in (piece.start, min(piece.stop, size))]
    assert covered[::2] == [0, *covered[1:-1:2]][: len(covered) // 2] and (covered or [0])[-1] == size
    if threads > 1 and size >= 2 * blocks.WIDE:
        assert len(blocks.cut(size)) % threads == 0


LARGE = 2 * blocks.WIDE + 5


@pytest.mark.parametrize("array", [normal(7), normal(LARGE), normal(5, LARGE)[:, ::5].T, normal(2, LARGE)[:, ::2]],
                         ids=["small", "large", "columns", "with holes"])
def test_an_array_over_another(threads: int, array: Any) -> None:
    for out in (np.zeros(array.shape, np.float32), np.zeros(array.shape[::-1], np.float32).T):
        blocks.overwrite(out, array)
        assert np.array_equal(out, array)


@pytest.mark.parametrize("shift", [1000, -1000])
def test_arrays_that_overlap_are_copied_as_if_they_did_not(monkeypatch: pytest.MonkeyPatch, shift: int) -> None:
    """Whatever piece is first."""
    monkeypatch.setattr(blocks, "threads", lambda: 2)
    for order in (1, -1):
        monkeypatch.setattr(blocks, "together", lambda calls, order=order: [call() for call in calls[::order]])
        memory = np.arange(LARGE + 1000, dtype=np.float32)
        parts = memory[1000:], memory[:-1000]
        out, array = parts if shift > 0 else parts[::-1]
        expected = array.copy()
        blocks.overwrite(out, array)
        assert np.array_equal(out, expected)


def test_an_interrupt_does_not_leave_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two pieces."""
    def interrupted(calls: Any) -> None:
        calls[0]()
        raise KeyboardInterrupt

    monkeypatch.setattr(blocks, "threads", lambda: 2)
    monkeypatch.setattr(blocks, "together", interrupted)
    out, array = np.zeros(LARGE, np.float32), normal(LARGE)
    with pytest.raises(KeyboardInterrupt):
        blocks.overwrite(out, array)
    assert np.array_equal(out, array)


def test_scratch_arrays_are_apart_and_of_this_thread() -> None:
    first, second = blocks.scratch(np.dtype("f4"), [(3, 4), (5,)])
    first.fill(1)
    second.fill(2)
    assert (first == 1).all() and first.shape == (3, 4) and second.shape == (5,)
    others: list[Any] = []
    thread = threading.Thread(target=lambda: others.extend(blocks.scratch(np.dtype("f4"), [(3, 4)])))
    thread.start()
    thread.join()
    assert not np.shares_memory(first, others[0])


# ---------------------------------------------------------------------------------------------- what uses them


@pytest.mark.parametrize("function", ["gelu", "gelu_tanh", "silu", "leaky_relu"])
def test_functions_do_not_depend_on_threads(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ag.engine.primitive import PRIMITIVES

    params = {"slope": 0.1} if function == "leaky_relu" else {}
    x, g = normal(5 * blocks.WIDE + 7), normal(5 * blocks.WIDE + 7)
    found = []
    for count in (1, 2, 3):
        monkeypatch.setattr(blocks, "threads", lambda count=count: count)
        y, dx = np.empty_like(x), np.empty_like(x)
        PRIMITIVES[function].reference(y, x, **params)
        PRIMITIVES[f"{function}_grad"].reference(dx, x, g, **params)
        found.append((y, dx))
    for y, dx in found[1:]:
        assert (y == found[0][0]).all() and (dx == found[0][1]).all()


@pytest.mark.parametrize(("heads", "batch", "rate"), [(1, 70, 0.0), (3, 16, 0.0), (4, 16, 0.3), (1, 40, 0.3)])
def test_attention_does_not_depend_on_threads(
    heads: int, batch: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v, g = (normal(8 * heads, 40, batch) for _ in range(4))
    key = np.arange(4, dtype=np.uint32)
    params: dict[str, Any] = {"heads": heads, "factor": 0.3, "causal": True, "rate": rate}
    lse, delta = (np.empty((heads, 40, batch), np.float32) for _ in range(2))
    monkeypatch.setattr("ag.engine.kernels.attention.WIDE", 1 << 10)
    found = []
    for count in (1, 2, 3):
        monkeypatch.setattr(blocks, "threads", lambda count=count: count)
        out, *slopes = (np.empty_like(x) for x in (v, q, k, v))
        attention.reference(out, lse, q, k, v, key, **params)
        np.add.reduce((out * g).reshape(heads, 8, 40, batch), 1, out=delta)
        attention_grad.reference(*slopes, q, k, v, g, lse, delta, key, **params)
        found.append([out, *slopes, lse.copy()])
    for arrays in found[1:]:
        assert all((a == b).all() for a, b in zip(arrays, found[0], strict=True))


def test_a_worker_makes_one_call_after_the_other() -> None:
    worker, seen = blocks.WorkerThread("test_worker"), list[int]()

    def call(i: int, done: threading.Event) -> None:
        seen.append(i)
        done.set()

    for i in range(3):
        done = threading.Event()
        worker.give(partial(call, i, done))
        assert done.wait(10)
    worker.retired = True
    worker.give(lambda: None)
    worker.join(10)
    assert seen == [0, 1, 2] and not worker.is_alive()
