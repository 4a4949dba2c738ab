#!/usr/bin/env python3
"""Run the state machine for many steps, and print how many, what was refused, and what diverged.
The exit status is 1 if anything diverged.  With `--first` the run stops there; else it goes on in a new pair of worlds.

    python tests/machine/run.py --device cpu --steps 20000
    python tests/machine/run.py --device vulkan:0 --steps 4000 --seed 7
    python tests/machine/run.py --eager      the subject is not captured either: the machine itself is tested
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from time import perf_counter

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test
from machine.pair import Divergence, Pair, reduced, written
from machine.rules import machine_for

LENGTH = 25  # actions of one example


def explore(
    pair: Pair, number: int, examples: int, length: int = LENGTH, kinds: tuple[str, ...] = ()
) -> str:
    """Run some examples; return the divergence that was found, or nothing."""
    machine = machine_for(pair, kinds) if kinds else machine_for(pair)
    chosen = settings(
        max_examples=examples,
        stateful_step_count=length,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(seed(number)(machine), settings=chosen)
    except (Divergence, Flaky) as found:
        return str(found)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", help="models, with commas")
    parser.add_argument("--without", default="", help="actions that are left out, with commas")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    begin, steps, found, number = perf_counter(), 0, [], given.seed
    actions, refused = {}, {}
    while steps < given.steps and not (found and given.first):
        pair = Pair(given.device, not given.eager, tuple(given.without.split(",")))
        explore(pair, number, 10, kinds=tuple(filter(None, given.kinds.split(","))))
        number += 1
        steps += sum(pair.actions.values())
        for total, part in ((actions, pair.actions), (refused, pair.refused)):
            for k, n in part.items():
                total[k] = total.get(k, 0) + n
        for what, history in pair.found[:1]:
            found.append(what)
            if not given.no_shrink:
                what, history = min(
                    (what, history), reduced(given.device, history), key=lambda x: (not x[0], len(x[1]))
                )
            print(f"after {steps} steps, seed {number - 1}: {what}\n{written(history)}\n", flush=True)
        pair.close()
    print(
        f"{given.device}: {steps} steps, {perf_counter() - begin:.0f} s, {len(actions)} kinds of action, "
        f"{sum(refused.values())} refused, {len(found)} divergences"
    )
    for error, n in sorted(refused.items(), key=lambda x: -x[1]):
        print(f"{n:7} {error}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
