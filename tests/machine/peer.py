"""The process of one world, the subject or the twin: reads actions from standard input, answers on standard output."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]

import machine.settings
import machine.training  # noqa: F401  (their actions)
from machine.actions import perform
from machine.world import World


def main(device: str, captured: bool) -> None:
    """Carry out actions until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed does not get among the answers
    world = World(device, captured)
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(perform(world, *request), answers)
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "subject")
