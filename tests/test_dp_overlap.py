"""dp_train: two devices work at the same time, as their own timestamps say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from overlap_run import length, work


@pytest.mark.vulkan
def test_two_devices_work_at_the_same_time(lavapipe: str, swiftshader: str) -> None:
    """In every step both have begun before either has finished, and it takes <= 1.3 times what one of them is at work.

    The two share the cores of the machine, so their work is slower together; it is compared with itself.
    """
    ratios: list[float] = []
    for step in work([lavapipe, swiftshader], [8, 2]):
        assert max(w.begin for w in step) < min(w.end for w in step), "one device worked after the other"
        ratios.append(length(step) / max(w.busy for w in step))
    assert float(np.median(ratios)) <= 1.3, ratios


@pytest.mark.vulkan
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two devices need a core each")
def test_a_step_of_two_devices_takes_as_long_as_of_one_alone(lavapipe: str, swiftshader: str, tmp_path: Path) -> None:
    """With D ms of work alone, <= 1.3 D together, where each driver has one thread, and so a core of its own.

    What other programs take of the cores is measured by two threads that have nothing to do with each other: the bound
    is for a machine that has two cores to give, and is as much longer as those are slower together.
    """
    (tmp_path / "SwiftShader.ini").write_text("[Processor]\nThreadCount=1\n")
    env = {**os.environ, "LP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
           "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])}
    script = Path(__file__).with_name("overlap_run.py")
    done = subprocess.run([sys.executable, str(script), lavapipe, swiftshader, "8"], cwd=tmp_path, env=env,
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["kept"], done.stdout
