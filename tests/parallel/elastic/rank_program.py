"""A training that the tests start as ranks, alone or by the launcher; every rank prints what became of it.

``python rank_program.py --steps 40 --kill 1,9,0.2``: rank 1 sends itself signal 9, 0.2 s after the first step.  Ranks
that do so do it only in a job that begins with step 0.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from helpers.dp_classifier import digest
from helpers.ranks import train

import ag


def trained(errors: Path | None, rank: int, work: Callable[[], ag.DPResult]) -> ag.DPResult:
    """The result; an error is written down, too."""
    try:
        return work()
    except ag.AgError as error:
        if errors is not None:
            (errors / f"rank{rank}").write_text(f"{type(error).__name__}: {error}", "utf-8")
        raise


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.01)
    parser.add_argument("--batch", type=int, default=7)
    parser.add_argument("--devices", default="cpu")
    parser.add_argument("--checkpoint")
    parser.add_argument("--every", type=int)
    parser.add_argument("--kill", action="append", default=[])
    parser.add_argument("--unread", type=int, help="the step after which nobody reads what rank 0 prints")
    parser.add_argument("--errors", type=Path, help="folder for the errors of ranks that are cut off")
    options = parser.parse_args()
    world = ag.DistributedWorld.init("mpi", devices=options.devices.split(","), timeout=60)
    if world.rank == 0:
        print("job", Path(os.environ.get("TMPDIR", "")).name, flush=True)  # the name of its folders
    steps: list[int] = []
    longest, last = 0.0, 0.0

    def callback(step: ag.DPStep) -> None:
        nonlocal longest, last
        now = time.perf_counter()
        longest, last = max(longest, now - last if steps else 0.0), now
        if step.step == 0:
            for victim, number, seconds in (plan.split(",") for plan in options.kill):
                if int(victim) == world.rank:
                    threading.Timer(float(seconds), os.kill, (os.getpid(), int(number))).start()
        if step.step == options.unread and step.ranks.rank == 0:
            reader, writer = os.pipe()
            os.close(reader)
            os.dup2(writer, 1)
        steps.append(step.step)
        if step.ranks.rank == 0:
            print("step", step.step, "of", step.ranks.size, flush=True)
        time.sleep(options.pause)

    result = trained(options.errors, world.rank, lambda: train(
        list(world.devices), world, n_iter=options.steps, batch=options.batch, callback=callback,
        checkpoint=options.checkpoint, checkpoint_every=options.every, resume=options.checkpoint is not None))
    print(json.dumps({"rank": world.rank, "digest": digest(result), "steps": steps, "longest": longest}), flush=True)


if __name__ == "__main__":
    main()
