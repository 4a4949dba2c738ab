"""dp_train: two devices work at the same time, as their own timestamps say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.overlap_run import length, work
from helpers.pages import ROOT


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

    It says so only on a machine that leaves two cores to it: on a busy one, two devices at the same time need as long
    as one after the other, and only the test above, by timestamps within a step, tells them apart.
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
