"""Count the files of `ag` that a call enters for the first time: `python tools/journeys.py [DEVICE...]`.

Prints one row per journey: an op forward and back, the first call of a captured step, a replay, a step of `dp_train`
once it is warm.  Python files are seen by a profile function, C files of ag/native by `code.entered`; the CPU's kernels
count as one file.  `--files` lists them in order.  The table is in docs/architecture.md.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

import ag
from ag.native import code

ROOT = os.path.dirname(os.path.abspath(ag.__file__)) + os.sep
JOURNEYS = ("an op, forward and backward", "a first captured call", "a replay", "a warm step of dp_train")


class Seen:
    """Files in the order in which they were entered while it counts."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.counts = False

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note the file of a call."""
        if self.counts and event == "call" and frame.f_code.co_filename.startswith(ROOT):
            self.files[frame.f_code.co_filename.removeprefix(ROOT)] = None

    def begin(self) -> None:
        """Count from now on."""
        self.files.clear()
        if code is not None:
            code.entered()
        self.counts = True

    def end(self) -> list[str]:
        """Return the files."""
        self.counts = False
        compiled = [f"native/{name}.c" for name in code.entered()] if code is not None else []
        return [*self.files, *compiled]


def journeys(device: str) -> dict[str, list[str]]:
    """Return the files of each journey on a device."""
    seen, found = Seen(), dict[str, list[str]]()
    kernels = ["engine/backends/cpu/kernels"] if device.startswith("cpu") else []
    threading.setprofile(seen.profile)  # for the threads of devices
    sys.setprofile(seen.profile)

    def walk(name: str, function: Callable[[], object]) -> None:
        seen.begin()
        function()
        found[name] = [*seen.end(), *kernels]

    with ag.ag_device(device):
        x = ag.ag_tensor(np.ones((4, 5), np.float32))
        W, sample = ag.ag_param(np.ones((1, 4), np.float32)), ag.ag_tensor(np.ones((4, 1), np.float32))

        def op() -> None:
            with ag.with_grad_tape():
                loss = ag.ag_matmul(W, sample)
            ag.backward(loss)

        model = ag.ag_sequential(ag.ag_linear(4, 32, activation="relu"), ag.ag_linear(32, 3))
        optimizer = ag.optimizer_adam(model.parameters(), lr=1e-3)

        def step(x: ag.Tensor, y: Any) -> ag.Tensor:
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(model(x), y)
            optimizer.step(ag.backward(loss))
            optimizer.zero_grad()
            return loss

        captured, labels = ag.ag_capture(step), np.array([0, 1, 2, 1, 0])
        walk(JOURNEYS[0], op)
        walk(JOURNEYS[1], lambda: captured(x, labels))
        for _ in range(3):
            captured(x, labels)
        walk(JOURNEYS[2], lambda: captured(x, labels))

    def between(state: Any) -> None:
        if state.step == 4:
            seen.begin()
        elif state.step == 5:
            found[JOURNEYS[3]] = [*seen.end(), *kernels]

    data = [(np.ones((4, 1), np.float32), np.array([k % 3])) for k in range(8)]
    ag.dp_train(lambda: ag.ag_linear(4, 3), data, ag.ag_softmax_cross_entropy_loss, lambda model, s: model(s[0]),
                target_fn=lambda s: s[1], devices=[device], n_iter=7, batch=4, verbose=False, callback=between)
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    return found


def documented() -> dict[str, list[int]]:
    """Return the numbers of the table in docs/architecture.md, by journey."""
    path = os.path.join(os.path.dirname(ROOT.rstrip(os.sep)), "docs", "architecture.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return {name: [int(n) for n in row.groups()] for name in JOURNEYS
            if (row := re.search(rf"^\| {re.escape(name)} \| (\d+) \| (\d+) \|", text, re.M))}


def main() -> None:
    """Print the journeys on the named devices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("devices", nargs="*", default=["cpu"])
    parser.add_argument("--files", action="store_true")
    given = parser.parse_args()
    for device in given.devices:
        for name, files in journeys(device).items():
            print(f"{device}: {name}: {len(files)}{': ' + ' > '.join(files) if given.files else ''}")


if __name__ == "__main__":
    main()
