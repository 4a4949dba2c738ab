"""Memory of captured programs: buffers share it, unread launches are gone, and every value is what it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.programs import buffer, reset_peak
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ag
from ag.engine.backend import Backend
from ag.engine.backends.cpu.backend import NumpyBackend
from ag.engine.buffer import Buffer
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.kernels.elementwise import add, copy, exp, mul, scale, sub
from ag.engine.kernels.indexing import permute
from ag.engine.kernels.reduce import sum_over

# ---------------------------------------------------------------------------------------------- random programs

WHAT = ["add", "sub", "mul", "exp", "sum", "permute", "view", "copy", "keep", "drop"]
STEPS = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 99), st.integers(0, 99)), min_size=3, max_size=40)


def run_steps(backend: Backend, steps: list[tuple[str, int, int]], inputs: list[Buffer], flat: Buffer) -> list[Buffer]:
    """Run the steps and return what they keep; everything else is dropped on the way."""
    launch, held, kept = backend.launch, list(inputs), []
    for k, (what, i, j) in enumerate(steps):
        a, b = held[i % len(held)], held[j % len(held)]
        if what in ("add", "sub", "mul"):
            c = launch({"add": add, "sub": sub, "mul": mul}[what], a, b)
            held.append(launch(scale, c, factor=0.5))
        elif what == "exp":
            held.append(launch(exp, launch(scale, a, factor=0.01)))
        elif what == "sum":
            held.append(launch(add, sum_over(launch, a, (0,), 0.25), b))
        elif what == "permute":
            held.append(launch(permute, a, axes=(1, 0)))
        elif what == "view":
            held.append(launch(scale, a.view((16,)), factor=0.5).view((4, 4)))
        elif what == "copy":
            launch(copy, a, into=flat.view((4, 4), 16 * (k % 4)))
        elif what == "keep":
            kept.append(a)
        elif len(held) > len(inputs):
            del held[len(inputs) + i % (len(held) - len(inputs))]
    return kept


@pytest.mark.sync
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, seed=st.integers(0, 2**31), recompute=st.booleans())
def test_a_replay_computes_what_the_launches_did(device: str, steps: list[tuple[str, int, int]], seed: int,
                                                 recompute: bool) -> None:
    backend, rng = backend_of(device), np.random.default_rng(seed)
    first, second = rng.normal(size=(2, 3, 4, 4)).astype(np.float32)
    inputs = [buffer(backend, x) for x in first]
    flat = buffer(backend, np.zeros(64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NumpyBackend, "target", NumpyBackend.target._replace(fuse_from=1))  # as on a device
        with record(backend, recompute=recompute) as recording:
            kept = run_steps(backend, steps, inputs, flat)
        program = recording.finished()
        for values in (first, second):
            for x, b in zip(values, inputs, strict=True):
                backend.upload(x, b)
            other_inputs, other_flat = [buffer(backend, x) for x in values], buffer(backend, np.zeros(64))
            want = run_steps(backend, steps, other_inputs, other_flat)
            program.run()
            for got, exact in zip([*kept, flat, *inputs], [*want, other_flat, *other_inputs], strict=True):
                assert backend.download(got).tobytes() == backend.download(exact).tobytes()
    program.close()


# ---------------------------------------------------------------------------------------------- what is shared


def test_a_chain_needs_few_buffers(device: str) -> None:
    backend = backend_of(device)
    x = buffer(backend, np.ones((64, 64)))
    with record(backend) as recording:
        y = x
        for _ in range(20):
            y = sum_over(backend.launch, y.view((64, 1, 64)), (1,)).view((64, 64))  # not index by index
        out = backend.launch(scale, y, factor=1.0)
    del y
    assert recording.finished().nbytes <= 8 * 64 * 64 * 4  # x, out, and 20 that share
    assert out.shape == (64, 64)


def test_memory_rests_before_others_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that runs three launches at once, three more results keep their memory for themselves."""
    backend, sizes = backend_of("cpu"), []
    for rest in (0, 3):
        monkeypatch.setattr(NumpyBackend, "target", NumpyBackend.target._replace(rest=rest))
        x = buffer(backend, np.ones((64, 64)))
        with record(backend) as recording:
            y = x
            for _ in range(20):
                y = backend.launch(permute, y, axes=(1, 0))
        program = recording.finished()
        assert not any(out.overlaps(operand) for out, operand in (launch.buffers for launch in program._launches))
        sizes.append(program.nbytes)
    assert sizes[1] - sizes[0] == 3 * 64 * 64 * 4


def test_an_elementwise_chain_works_in_place(device: str) -> None:
    backend = backend_of(device)
    x = buffer(backend, np.ones((64, 64)))
    with record(backend) as recording:
        y = x
        for _ in range(20):
            y = backend.launch(scale, y, factor=2.0)
    program = recording.finished()
    assert program.nbytes == 3 * 64 * 64 * 4  # x, y, and what lies between them
    backend.upload(np.full((64, 64), 0.5), x)
    program.run()
    assert backend.download(y)[0, 0] == 2.0**19


def test_what_nobody_reads_is_not_computed(device: str) -> None:
    backend = backend_of(device)
    x = buffer(backend, [1.0, 2.0])
    with record(backend) as recording:
        unread = backend.launch(exp, backend.launch(scale, x, factor=2.0))
        kept = backend.launch(scale, x, factor=3.0)
        del unread
    program = recording.finished()
    assert program.launches == 1
    program.run()
    assert backend.download(kept).tolist() == [3.0, 6.0]


def test_what_is_yet_to_be_written_is_memory_for_others(device: str) -> None:
    backend = backend_of(device)
    x = buffer(backend, np.ones((64, 64)))
    with record(backend) as recording:
        y = backend.launch(exp, sum_over(backend.launch, x.view((64, 1, 64)), (1,)))
        sums = sum_over(backend.launch, y.view((64, 64)), (0, 1))
        for _ in range(4):  # memory rests for some launches
            sums = backend.launch(permute, sums.view((1, 1)), axes=(1, 0))
        del y
        out = [backend.launch(scale, x, factor=k) for k in (2.0, 3.0)]  # held: nobody else has this memory later
    program = recording.finished()
    assert program.nbytes <= 3 * 64 * 64 * 4 + 4096  # x, and both results; what becomes of y lies in one of them
    backend.upload(np.full((64, 64), 0.5), x)
    program.run()
    # 1.1e-6 on one processor, whose BLAS adds up 4096 numbers in 64 places
    np.testing.assert_allclose(backend.download(sums), 4096 * np.exp(0.5), rtol=64 * 2**-24)
    assert [backend.download(b)[0, 0] for b in out] == [1.0, 1.5]


@pytest.mark.parametrize("name", ["gpt", "resnet8"])
def test_recomputing_changes_no_bit(name: str) -> None:
    (few, losses), (more, others) = (run_curve(name, recompute) for recompute in (False, True))
    assert losses == others and few < more


def run_curve(name: str, recompute: bool) -> tuple[int, list[float]]:
    """Launches and losses of a captured step."""
    from curves.models import numbers, training
    from curves.workloads import SMALL_BATCH

    weights, batches = numbers(name, SMALL_BATCH[name])
    step, batch = training(name, weights), batches[0]
    captured = ag.ag_capture(step, recompute=recompute)
    losses = [captured(*batch).item() for _ in range(3)]
    assert captured.program is not None
    launches = captured.program.launches
    captured.close()
    return launches, losses


def test_constants_made_in_the_step_keep_their_memory(device: str) -> None:
    def step(x: ag.Tensor) -> ag.Tensor:
        c = ag.ag_tensor(np.array(3.0), device=device)  # uploaded once; a replay only reads it
        y = ag.ag_exp(x * 0.0)
        for _ in range(5):
            y = y + y * 0.5
        return y * c

    captured = ag.ag_capture(step)
    x = ag.ag_tensor(np.ones((3, 3)), device=device)
    assert [captured(x).numpy()[0, 0] for _ in range(3)] == [np.float32(1.5**5 * 3)] * 3


def test_guard_words_survive_a_replay() -> None:
    backend = NumpyBackend(guard=64)
    x = buffer(backend, np.ones((5, 7)))
    with record(backend) as recording:
        y = backend.launch(exp, x)
        z = backend.launch(permute, backend.launch(mul, y, y), axes=(1, 0))
        out = backend.launch(scale, z, factor=2.0)
        del y, z
    recording.finished().run()
    backend.check_guards()
    np.testing.assert_allclose(backend.download(out), 2 * np.exp(2) * np.ones((7, 5)), rtol=1e-6)


@pytest.mark.slow
def test_a_gpt_needs_much_less_memory_captured() -> None:
    eager, captured, recomputing = gpt_peaks(lambda step: step, ag.ag_capture,
                                             lambda step: ag.ag_capture(step, recompute=True))
    assert captured <= 0.75 * eager and captured < 46e6, (eager, captured)
    assert recomputing <= 0.60 * eager and recomputing < 34e6, (eager, recomputing)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "most"), [(16, 0.75), (128, 0.60)])
def test_a_gpt_in_16_bits_needs_less_memory(batch: int, most: float) -> None:
    wide, eager_wide = gpt_peaks(ag.ag_capture, lambda step: step, batch=batch)
    ag.ag_dtype("bf16")
    try:
        half, eager_half = gpt_peaks(ag.ag_capture, lambda step: step, batch=batch)
    finally:
        ag.ag_dtype("f32")
    assert half <= most * wide and eager_half <= most * eager_wide, (half, wide, eager_half, eager_wide)


def gpt_peaks(*wraps: Any, batch: int = 16) -> list[int]:
    """The most bytes that are live at once in steps of the benchmark W3, parameters and optimizer's state included."""
    from curves.models import training
    from curves.workloads import workload

    weights, batches = workload("gpt", batch)
    x, labels = (np.moveaxis(array, 0, -1).copy() for array in batches[0])
    peaks = []
    for wrap in wraps:
        backend = backend_of("cpu")
        before = backend.arena.stats().live
        step = wrap(training("gpt", weights))
        step(x, labels), step(x, labels)  # recorded, and compared
        reset_peak(backend.arena)
        for _ in range(2):
            step(x, labels)
        peaks.append(backend.arena.stats().peak - before)
        del step
    return peaks
