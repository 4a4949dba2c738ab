"""Measure how long devices have worked, by their own timestamps: `Backend.meter`, and what `dp_train` reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.overlap_run import length, work
from helpers.pages import ROOT

import ag
from ag.engine.backend import Meter
from ag.engine.backends.vulkan.stream import Counter
from ag.engine.device import backend_of
from ag.parallel.trainer import replica
from ag.parallel.trainer.replica import DeviceClock, Replica

RNG = np.random.default_rng(11)
DATA = [RNG.standard_normal((8, 4)).astype(np.float32) for _ in range(6)]


def train(devices: list[str], **options: Any) -> list[dict[str, Any]]:
    """The report of a few steps."""
    settings: dict[str, Any] = {"micro_batch": 3, "n_iter": 4, "verbose": False, "seed": 0} | options
    return ag.dp_train(lambda: ag.ag_sequential(ag.ag_linear(8, 16), ag.ag_batch_norm(16), ag.ag_linear(16, 8)), DATA,
                       ag.ag_mse_loss, devices=devices, **settings).report


# ---------------------------------------------------------------------------------------------- meters


@pytest.mark.parametrize("replayed", [False, True], ids=["launches", "replays"])
def test_a_meter_has_the_time_of_what_is_launched_under_it(vulkan: str, replayed: bool) -> None:
    """The same time as a profile finds, which is on here to compare."""
    backend = backend_of(vulkan)
    x = ag.ag_tensor(np.ones((64, 64)), vulkan)
    step = ag.ag_capture(lambda x: ag.ag_exp(x) + x) if replayed else lambda x: ag.ag_exp(x) + x
    step(x), step(x)  # recorded, and compared
    meter = Meter()
    with ag.profile() as seen:
        step(x)
        backend.meter(meter)
        for _ in range(3):
            step(x)
        backend.meter(None)
        assert step(x).numpy()[0, 0] == pytest.approx(np.e + 1)
    commands = [e for e in seen.events if e.device == vulkan]
    of_one, download = divmod(len(commands), 5)  # the last is the download, unless the host reads the memory itself
    assert of_one and download <= 1
    assert meter.seconds * 1e9 == pytest.approx(sum(e.end - e.begin for e in commands[of_one : 4 * of_one]), rel=0.02)


def test_two_meters_share_nothing(vulkan: str) -> None:
    """Give a meter no time of what the device does for the other one, or before either."""
    backend = backend_of(vulkan)
    x = ag.ag_tensor(RNG.standard_normal((128, 128)), vulkan)
    much, none = Meter(), Meter()
    for meter, count in ((None, 3), (much, 9), (none, 0), (None, 3)):
        backend.meter(meter)
        for _ in range(count):
            ag.ag_matmul(x, x)
    backend.synchronize()
    assert much.seconds > 0 == none.seconds


class Watched:
    """A manager that remembers which of its sequences have timestamps."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.timed: set[int] = set()
        self._made: list[Any] = []  # so that no two have one id

    def sequence(self, queue: int = 0, timestamps: int = 0) -> Any:
        self._made.append(self._manager.sequence(queue, timestamps))
        if timestamps:
            self.timed.add(id(self._made[-1]))
        return self._made[-1]


@pytest.mark.parametrize("replayed", [False, True], ids=["launches", "replays"])
def test_timestamps_are_written_under_a_meter_only(vulkan: str, replayed: bool,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no timestamps without a meter, before or after one, though the step was recorded under a meter."""
    recorder: Any = backend_of(vulkan).recorder
    x = ag.ag_tensor(np.ones((8, 8)), vulkan)
    step = ag.ag_capture(lambda x: ag.ag_exp(x) + x) if replayed else lambda x: ag.ag_exp(x) + x
    watched, wait_oldest = Watched(recorder._manager), recorder._wait_oldest
    started: list[bool] = []

    def noted() -> None:
        started.append(id(recorder._batches[0].started[0]) in watched.timed)
        wait_oldest()

    monkeypatch.setattr(recorder, "_manager", watched)
    monkeypatch.setattr(recorder, "_wait_oldest", noted)
    recorder.retime(None)  # forgets sequences made before
    found = []
    for meter in (Meter(), None, Meter(), None, None):
        recorder.meter(meter)
        started.clear()
        for _ in range(3):
            step(x)
            recorder.wait()
        found.append(set(started))
        assert meter is None or meter.seconds > 0
    assert found == [{True}, {False}, {True}, {False}, {False}]


@pytest.mark.parametrize(("since", "until", "ticks"), [(5, 9, 4), (2**32 - 3, 2, 5), (9, 5, 0)])
def test_ticks_of_a_counter(since: int, until: int, ticks: int) -> None:
    """Also of one that started again at zero, or was set back."""
    assert Counter(bits=32, period=1.0).passed(since, until) == ticks


# ---------------------------------------------------------------------------------------------- the report


def test_a_clock_meters_some_steps_and_takes_samples_of_the_others_to_be_like_them() -> None:
    """A sample of the first step takes 5 s, and 1 s until step 16, where the device has become slower."""
    clock, metered = DeviceClock(), []
    for k in range(40):
        assert clock.meter is clock.meter
        if clock.meter is not None:
            metered.append(k)
            clock.meter.seconds += 4 * (5.0 if k == 0 else 1.0 if k < 16 else 2.0)
        clock.note(0 if clock.meter is None and k == 20 else 4)
    assert metered == [0, 1, 16, 33]  # the replica had no part in step 20
    assert clock.seconds == 4 * (5.0 + 15 * 1.0 + 23 * 2.0)


def test_most_steps_of_a_job_are_not_metered(vulkan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is afterwards, nor after a step that failed."""
    backend: Any = backend_of(vulkan)
    meters: list[Meter | None] = []
    metered: list[bool] = []  # of each step
    set_meter, start = backend.meter, Replica.start

    def noted(meter: Meter | None) -> None:
        meters.append(meter)
        set_meter(meter)

    def started(self: Replica) -> None:
        before = len(meters)
        start(self)
        metered.append(len(meters) > before)

    monkeypatch.setattr(backend, "meter", noted)
    monkeypatch.setattr(Replica, "start", started)
    (row,) = train([vulkan], n_iter=20)
    assert metered == [k in (0, 1, 16) for k in range(20)]
    assert [m is not None for m in meters] == [True, False] * 3 and backend.recorder.timing is None
    assert row["compute_ms"] > 0
    with pytest.raises(ag.ShapeError):
        ag.dp_train(lambda: ag.ag_linear(3, 3), DATA, ag.ag_mse_loss, devices=[vulkan], n_iter=1, verbose=False)
    assert backend.recorder.timing is None


def test_the_report_says_whose_clock_it_is(device: str) -> None:
    for row in train([device, device]):
        assert row["clock"] == ("host" if device == "cpu" else "device")
        assert row["compute_ms"] > 0
        assert device != "cpu" or row["compute_ms"] == row["elapsed_ms"]


def test_the_host_is_late_and_the_device_does_not_count_that(vulkan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Replica.run

    def late(self: Replica, *args: Any) -> None:
        time.sleep(0.02)
        run(self, *args)

    monkeypatch.setattr(Replica, "run", late)
    monkeypatch.setattr(replica, "METERED_EVERY", 1)
    (row,) = train([vulkan])
    assert 0 < row["compute_ms"] <= row["elapsed_ms"] - 4 * 20


@pytest.mark.parametrize("together", [False, True], ids=["apart", "in lock step"])
def test_each_replica_has_the_time_of_its_own_samples(vulkan: str, together: bool,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two on one device the first waits for the work of both, which only the device tells apart."""
    monkeypatch.setattr(replica, "METERED_EVERY", 1)
    many, few, none = train([vulkan] * 3, micro_batch=2, balance=[5, 1, 0], n_iter=4, sync_batch_norm=together)
    assert none["compute_ms"] == 0 < few["compute_ms"] < many["compute_ms"]
    assert few["compute_ms"] > 0.02 * many["compute_ms"]


def test_a_device_without_timestamps_has_the_clock_of_the_host(vulkan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = backend_of(vulkan)
    monkeypatch.setattr(backend, "timestamps", False)
    (row,) = train([vulkan])
    assert row["clock"] == "host" and row["compute_ms"] == row["elapsed_ms"] > 0


# ---------------------------------------------------------------------------------------------- two devices at once


@pytest.mark.slow  # test_dp_train proves that neither device waits for the other
@pytest.mark.vulkan
def test_two_devices_work_at_the_same_time(lavapipe: str, swiftshader: str) -> None:
    """In some steps, the two together take less time than their work: one after the other, no step can.

    This holds on a busy machine, too, where both are slower and most steps may be held up.
    """
    parts = [length(step) / sum(w.busy for w in step) for step in work([lavapipe, swiftshader], [8, 2], steps=8)]
    assert sorted(parts)[1] < 1, parts


@pytest.mark.slow  # the quick leg leaves no core to either device
@pytest.mark.vulkan
@pytest.mark.skipif(not os.path.exists("/proc/stat") or len(os.sched_getaffinity(0)) < 2,
                    reason="two devices need a core each, and the kernel to say what else runs")
def test_a_step_of_two_devices_takes_as_long_as_of_one_alone(lavapipe: str, swiftshader: str, tmp_path: Path) -> None:
    """With D ms of work alone, <= 1.3 D together, where each driver has one thread, and so a core of its own.

    The test says so only on a machine that leaves two cores to it.  On a busy one, two devices at the same time need as
    long as one after the other; only the test above, by timestamps within a step, tells these apart.
    """
    (tmp_path / "SwiftShader.ini").write_text("[Processor]\nThreadCount=1\n")
    env = {**os.environ, "LP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
           "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    script = ROOT / "tests" / "helpers" / "overlap_run.py"
    done = subprocess.run([sys.executable, str(script), lavapipe, swiftshader, "8"], cwd=tmp_path, env=env,
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    fair = [attempt for attempt in found if attempt["fair"]]
    if not fair:
        pytest.skip(f"other programs took {min(x['others'] for x in found):.2g} cores or more, or shares were unequal")
    assert any(attempt["kept"] for attempt in fair), done.stdout
