"""Ranks on three hosts, whose links are cut, and one of which crashes; hosts are network namespaces, made here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.ranks import UNDER_MPI
from parallel.elastic.kills import CUT_STEPS, cut, undisturbed
from parallel.elastic.launched import PROGRAM, launched
from parallel.elastic.three_hosts import agent, three_hosts, why_not

pytestmark = [pytest.mark.skipif(UNDER_MPI, reason="starts processes itself"),
              pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.slow]


def test_each_link_is_cut() -> None:
    """All three at the same time, of hosts of their own; `kills.py --cuts 3` does it more often."""
    wanted = undisturbed(CUT_STEPS)
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(lambda i: cut(i, wanted), (1, 2, 3))]
    assert not any(one.wrong for one in found), "\n".join(f"{one.text}\n{one.wrong}" for one in found if one.wrong)


def test_a_host_crashes(tmp_path: Path) -> None:
    with three_hosts() as hosts, launched(
            "--hosts", ",".join(hosts.names), PROGRAM, "--pause", 0.1, "--checkpoint", tmp_path / "job", "--every", 3,
            folder=tmp_path, before=hosts.on(1), env=agent()) as job:
        job.wait_for("step 6")
        hosts.crash(3)
        assert job.wait(90) == 0, job.text
    assert {result["digest"] for result in job.results().values()} == {undisturbed(40)}, job.text
    assert len(job.results()) == 2 and "10.77.0.3" in job.text and "2 ranks on 10.77.0.1:1, 10.77.0.2:1" in job.text
    (start,) = {result["steps"][0] for result in job.results().values()}
    assert start >= 6, start  # the last third step, or the one after which ranks have left, as mpiexec told them
    assert all(result["steps"] == [*range(start, 40)] for result in job.results().values())
