"""Disturb jobs by the number, and hold them against an undisturbed one; print counts, and end with 1 if one is wrong.
A job must make every step once and end with status 0, the undisturbed one's weights, optimizer and losses to the bit,
and nothing left; after SIGTERM to its launcher, with 143 and nothing left.  Options of this script:
    --count 60    kill -9 of 1 of 3 ranks, and, one time in six, of 2 of 5
    --starts 60   a signal to 1 of 3 ranks or the launcher, while the job starts
    --cuts 3      each host's link is cut, so many times; as root
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from helpers.dp_classifier import digest
from helpers.ranks import processes_of, train
from parallel.elastic.launched import PROGRAM, Launched, eventually, launched, what_is_left
from parallel.elastic.three_hosts import agent, three_hosts, why_not

STEPS, CUT_STEPS = 40, 100
DETECTOR = 2.0  # seconds; where links are cut
END = 30.0  # seconds in which a job must end that was disturbed as it started, started again or not


class Found(NamedTuple):
    """The faults of a job, and the seconds of its longest step."""

    wrong: list[str]
    longest: float
    text: str


def undisturbed(steps: int) -> str:
    """The digest of a job that nothing happens to, in this process."""
    return digest(train(["cpu"], n_iter=steps, batch=7))


def judged(job: Launched, wanted: str, ranks: set[int], steps: int, left: Sequence[str]) -> Found:
    """A job that went on in place, held against the undisturbed one."""
    results, wrong = job.results(), [f"left: {', '.join(left)}"] if left else []
    if results.keys() != ranks:
        wrong.append(f"ranks {sorted(results)} have ended well, not {sorted(ranks)}")
    wrong += [f"rank {rank} has {result['digest']}" for rank, result in results.items() if result["digest"] != wanted]
    wrong += [f"rank {rank} made steps {result['steps']}" for rank, result in results.items()
              if result["steps"] != [*range(steps)]]
    return Found(wrong, max((result["longest"] for result in results.values()), default=0.0), job.text)


def kill(ranks: int, victims: Sequence[int], seconds: Sequence[float], wanted: str) -> Found:
    """Kill ranks so many seconds after the first step."""
    plan = [x for victim, s in zip(victims, seconds, strict=True)
            for x in ("--kill", f"{victim},{int(signal.SIGKILL)},{s:.4f}")]
    with tempfile.TemporaryDirectory() as name, launched(
            "-n", ranks, PROGRAM, "--steps", STEPS, *plan, folder=Path(name)) as job:
        status = job.wait()
        found = judged(job, wanted, {*range(ranks)} - {*victims}, STEPS, what_is_left(job, Path(name)))
    return found._replace(wrong=[*found.wrong, *([f"status {status}"] if status else [])])


def kill_at_start(victim: int, number: int, seconds: float, wanted: str) -> Found:
    """Signal a rank so many seconds after its process is there; the job goes on without it, or is started again."""
    with tempfile.TemporaryDirectory() as name, launched("-n", 3, PROGRAM, "--steps", STEPS, folder=Path(name)) as job:
        pid, end = None, time.monotonic() + 60
        while pid is None:
            assert time.monotonic() < end, job.text
            pid = job.ranks().get(victim)
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        began = time.monotonic()
        status = job.wait()
        took = time.monotonic() - began
        results = job.results()
        ranks = {0, 1, 2} if "was lost as the job started" in job.text else {*results} | ({0, 1, 2} - {victim})
        found = judged(job, wanted, ranks, STEPS, what_is_left(job, Path(name)))
        again = job.text.count("3 ranks on this host") - 1
    wrong = [*found.wrong, *([f"status {status}"] if status else []), *(["started too often"] if again > 1 else []),
             *([f"ended after {took:.1f} s"] if took > END else [])]
    return Found(wrong, found.longest, f"{job.text}\n{took:.1f} s")


def end_at_start(seconds: float, number: int = signal.SIGTERM) -> Found:
    """Signal the launcher so many seconds after it has begun to start ranks; everything ends."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as saved, launched(
            "-n", 3, PROGRAM, "--steps", 10_000, "--checkpoint", Path(saved) / "job", folder=Path(name)) as job:
        job.wait_for("ag launch: 3 ranks on")
        time.sleep(seconds)
        job.process.send_signal(number)
        began = time.monotonic()
        status = job.wait()
        took = time.monotonic() - began
        wrong = [f"left: {x}" for x in what_is_left(job, Path(name))]
    wrong += [f"status {status}"] if status != 128 + number else []
    return Found([*wrong, *([f"ended after {took:.1f} s"] if took > END else [])], 0.0, f"{job.text}\n{took:.1f} s")


def cut(i: int, wanted: str, after: float = 0.0) -> Found:
    """Cut a host's link; that of host 1, which launches, is healed later, and the job launched again."""
    with three_hosts() as hosts, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = ("--hosts", ",".join(hosts.names), PROGRAM, "--steps", CUT_STEPS, "--pause", 0.05, "--checkpoint",
                   folder / "job", "--every", 5, "--errors", folder)
        options = {"folder": folder, "detector": DETECTOR, "before": hosts.on(1), "env": agent()}
        with launched(*command, **options) as job:
            job.wait_for("step 6")
            time.sleep(after)
            began = time.monotonic()
            hosts.cut(i)
            status = job.wait(90)
            gone = eventually(lambda: not processes_of(job.token), max(0.0, began + 60 - time.monotonic()))
            left = [] if gone else [f"process {x}" for x in processes_of(job.token)]
            error = folder / f"rank{i - 1}"
            said = error.read_text("utf-8") if error.is_file() else ""
            found = judged(job, wanted, {0, 1, 2} - {i - 1}, CUT_STEPS, left)
        wrong = [] if said.startswith("CommError: ") and "may not go on" in said else [f"rank {i - 1} said {said!r}"]
        if i > 1:
            if found.longest > DETECTOR + 2:
                wrong.append(f"a step took {found.longest:.1f} s")
            return found._replace(wrong=[*found.wrong, *wrong, *([f"status {status}"] if status else [])])
        hosts.heal(1)
        with launched(*command, **options) as job:
            again = job.wait(180)
        digests = {result["digest"] for result in job.results().values()}
        if (status, again, digests, len(job.results())) != (1, 0, {wanted}, 3) or left:
            wrong.append(f"status {status}, then {again}, digests {digests}, left {left}")
        return Found(wrong, 0.0, found.text + job.text)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--starts", type=int, default=0)
    parser.add_argument("--cuts", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, found = random.Random(options.seed), list[Found]()
    wanted = undisturbed(STEPS)
    for k in range(options.count):
        ranks, victims = (5, chance.sample(range(5), 2)) if k % 6 == 5 else (3, [k % 3])
        found.append(kill(ranks, victims, [chance.uniform(0.0, 0.5) for _ in victims], wanted))
        print(f"{k + 1}: of {ranks} ranks {victims} killed, longest step {found[-1].longest:.2f} s",
              *found[-1].wrong, flush=True)
    for k in range(options.starts):
        when = chance.uniform(0.0, 1.8)
        number = (signal.SIGKILL, signal.SIGTERM)[k // 4 % 2]
        what = f"rank {k % 4} gets {number.name}" if k % 4 < 3 else "the launcher gets SIGTERM"
        found.append(kill_at_start(k % 4, number, when, wanted) if k % 4 < 3 else end_at_start(when))
        print(f"{k + 1}: {what} after {when:.2f} s, {found[-1].text.splitlines()[-1]}", *found[-1].wrong, flush=True)
    if options.cuts and (reason := why_not()):
        print(f"No links are cut: {reason}.")
        return 1
    wanted = undisturbed(CUT_STEPS)
    for k in range(options.cuts):
        with ThreadPoolExecutor(3) as pool:
            for i, one in enumerate(pool.map(lambda i: cut(i, wanted, chance.uniform(0.0, 0.5)), (1, 2, 3)), 1):
                found.append(one)
                print(f"{k + 1}: the link of host {i} cut, longest step {one.longest:.2f} s", *one.wrong, flush=True)
    bad = [one for one in found if one.wrong]
    for one in bad:
        print(one.text, *one.wrong, sep="\n")
    times = [one.longest for one in found if one.longest]
    print(f"{len(found) - len(bad)} of {len(found)} as the undisturbed job; the longest step took "
          f"{max(times, default=0):.2f} s, the median of the longest {statistics.median(times or [0]):.2f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
