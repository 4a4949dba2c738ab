#!/usr/bin/env python3
"""Put defects back, one at a time, and count the steps that the state machine needs to find each.

    python tests/machine/defects.py            all of them
    python tests/machine/defects.py gradient   those with one of these words

The exit status is 1 if one is not found within LIMIT steps.  A later guard that would notice is taken out, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIMIT = 20_000  # steps, as many as a long run has


class Edit(NamedTuple):
    """A replacement: the file, the text in it, and the text that stands in its place."""

    file: str
    old: str
    new: str


class Defect:
    """A defect that was there once: file, old and new text, once for each place."""

    def __init__(self, name: str, *texts: str) -> None:
        self.name = name
        self.edits = [Edit(*texts[k : k + 3]) for k in range(0, len(texts), 3)]

    def put_back(self, root: Path) -> None:
        """Put it into the package in a folder."""
        for file, old, new in self.edits:
            path = root / file
            path.write_text(path.read_text("utf-8").replace(old, new, 1), "utf-8")


_CALL, _PROGRAM = "ag/capture/call.py", "ag/capture/program.py"
_ARGUMENTS, _NOTES = "ag/capture/arguments.py", "ag/capture/guards.py"
# The machine's chances are generators, from which a step may not take; where it may, two recordings differ.
_TAKEN = (_NOTES, "if (taken := self._reader.taken()) is not None:", "if (taken := None) is not None:")
# A list in which a step keeps something has changed, so its recording would not be replayed.
_CHANGED = (_NOTES, "self.own_change = self.change(attributes=False)", "self.own_change = None")
_UNWATCHED = (_CALL, " or effects.difference(self.notes.effects)", "")
_MEANINGS = "ag/capture/guards.py"
_CAPTURE, _RECORDING = "ag/capture/step.py", "ag/engine/program.py"
_TAPE, _BACKEND = "ag/autograd/tape.py", "ag/engine/backend.py"
_UNCOMPARED = (_CAPTURE, "if difference is not None:", "if False:")
_WRITABLE_CONSTANTS = ("ag/engine/buffer.py", "buffer.block.changes.fixed = True", "pass")
DEFECTS = [
    # ---------------------------------------------------------------------------------------- A1: captured steps
    Defect(
        "work on another device is not recorded",
        *(_RECORDING, "elif self.backend is not device:", "elif False:"),
        *(_RECORDING, "        self.launches.append(launch)\n",
          "        self.launches.extend([launch] if self.backend is device else [])\n"),
        *(_CALL, "if not recording.launches:", "if False:"),
        *(_RECORDING, "waits = self.waits\n", "waits = self.waits and self.backend is device\n"),
    ),
    Defect(
        "a replay leaves no gradient",
        _PROGRAM,
        "        for x, grad in others:\n            x.set_grad(grad)\n",
        "        pass\n",
    ),
    Defect(
        "a gradient of before is that of the first call",
        *(_PROGRAM, "self.backend.assign(leaf.slot.buffer, leaf.tensor.peek_grad().buffer)", "pass"),
    ),
    Defect(
        "the gradients that are added to need not be there",
        *(_PROGRAM, 'return "a gradient is there that was not"', "return None"),
        *_UNCOMPARED,
    ),
    Defect(
        "optimizers and devices move parameters unseen",
        *(_NOTES, "if tensor.buffer is not buffer:", "if False:"),
        *(_NOTES, '(attributes["buffer"], tensors, places), ', ""),
    ),
    Defect("an array of the step's own stands for its argument", _ARGUMENTS,
           "_ArraySlot(i, _apart(x))", "_ArraySlot(i, x)"),
    Defect(
        "an argument may be changed in the step",
        *(_ARGUMENTS, "copied.flags.writeable = False", "pass"),
        *(_ARGUMENTS, "StepArgument(self.example, arguments, self.number)", "self.example.view()"),
    ),
    Defect(
        "the values of an argument may be read",
        *(_ARGUMENTS, "StepArgument(self.example, arguments, self.number)", "self.example.view()"),
        *_UNCOMPARED,
    ),
    Defect(
        "work of threads is not recorded",
        *("ag/parallel/replicas/data_parallel.py", "if len(calls) > 1 and recording_here() is not None:", "if False:"),
        *(_RECORDING, "if self._is_foreign(b.block):", "if False:"),
        *(_RECORDING, "if foreign is not None:", "if False:"),
        *(_RECORDING, "owner.fail(_threaded((self.nbytes,)))", "pass"),
        *_UNCOMPARED,
    ),
    Defect(
        "settings of layers may change",
        *(_NOTES, "if attributes or not group.is_watched:", "if not group.is_watched:"),
        *(_NOTES, "if group.in_dict],", "if group.in_dict and not group.is_watched],"),
    ),
    Defect("items of lists may change", _NOTES, "if has_other_items(container, items):", "if False:"),
    Defect("what names mean may change", _MEANINGS,
           "if not same(before.meant, snapshot(value)):", "if False:"),
    Defect("whether a parameter is trained may change", _NOTES, "tensor.requires_grad is not was:", "False:"),
    Defect("the default device may change", "ag/engine/device.py", "= (_device, _dtype)", "= (_dtype,)"),
    Defect("the default type may change", "ag/engine/device.py", "= (_device, _dtype)", "= (_device,)"),
    Defect(
        "the generator is seeded in the step",
        *("ag/engine/random.py", 'backend.refuse_while_recording("seeds the random generator")', "pass"),
    ),
    Defect(
        "a replay draws from the generator of another thread",
        *("ag/engine/random.py", "return None if generator_state(backend) is state else", "return None if True else"),
    ),
    Defect(
        "results are the program's memory",
        _PROGRAM,
        "program.quick_copy(buffer)", "buffer",
    ),
    Defect("large results are the program's memory", _PROGRAM, "copy_on_write(buffer, thread)\n", "buffer\n"),
    Defect(
        "gradients are the program's memory",
        *(_PROGRAM, "return Tensor(copy_on_write(self.buffer, self._thread))", "return Tensor(self.buffer)"),
    ),
    Defect("recordings are not compared", *_UNCOMPARED, *_TAKEN),
    Defect(
        "numbers of two recordings are not compared",
        *("ag/capture/call.py", 'what: Label = ("number", numbers.get(place, b.constant))',
          'what: Label = ("number", 0)'),
        *_TAKEN,
    ),
    Defect(
        "a step may keep its results",
        *("ag/engine/compile/graph.py", "    if kept is not None:\n        raise", "    if False:\n        raise"),
        *_CHANGED,
        *_UNWATCHED,
    ),
    Defect(
        "a step may keep its arguments",
        *(_CALL, "    placeholders.clear()\n", "    return placeholders.clear()\n"),
        *_CHANGED,
        *_UNWATCHED,
    ),
    Defect("what a step sets is not set by a replay", _PROGRAM, "self.effects.repeat()", "pass"),
    # ---------------------------------------------------------------------------------------- A2: recompute
    Defect(
        "random numbers are drawn again by recompute",
        *("ag/engine/primitive.py", "elementwise and not updates if cheap", "elementwise if cheap"),
    ),
    # ---------------------------------------------------------------------------------------- A3: shared buffers
    Defect(
        "two parameters share a gradient",
        *(_TAPE, "    return _of_their_own(leaves, began)", "    return leaves"),
        *_WRITABLE_CONSTANTS,
        *("ag/optim/clipping.py", "return {(g.backend, g.address): g for g in", "return {g: g for g in"),
    ),
    Defect(
        "a gradient is the constant 1",
        *(_TAPE, "if g.block.made < began or g.block in blocks:", "if g.block in blocks:"),
        *_WRITABLE_CONSTANTS,
    ),
    Defect(
        "a constant is handed out",
        *("ag/autograd/op.py", "if b.block is out.block:", "if b.block is out.block and b.constant is None:"),
        *_WRITABLE_CONSTANTS,
    ),
    Defect("a sum is its operand", "ag/autograd/op.py", "if b.block is out.block:", "if False:"),
    # ---------------------------------------------------------------------------------------- A4: dp_train
    Defect(
        "dp_train replays what its functions did first",
        *(_ARGUMENTS, "StepArgument(self.example, arguments, self.number)", "self.example.view()"),
        *("ag/parallel/trainer/replica.py", "            self._captured.result((sample,))",
          "            self._captured.result((sample,))\n            for t in self._captured._programs:\n"
          "                t.due = 1 << 30"),
        *_TAKEN,
    ),
    Defect(
        "dp_train does not see numbers that change in samples",
        *("ag/autograd/tree.py", "def _constant(x: object) -> _Constant:",
          "def _constant(x: object) -> _Constant:\n    return _Same(type(x), x)"),
        *("ag/autograd/tree.py", "def tree_flatten(",
          "class _Same(_Constant):\n    __eq__ = lambda self, other: True\n    __hash__ = lambda self: 0\n\n\n"
          "def tree_flatten("),
    ),
    Defect(
        "dp_train counts random streams on its first sample only",
        *("ag/engine/random.py", "            if self.drawn == 0:", "            if self.drawn == 0 and most != 0:"),
        *("ag/engine/random.py", "            if self.drawn == most:", "            if False:"),
        *("ag/engine/random.py", "        if draws:", "        if draws and most != 0:"),
        *("ag/engine/random.py", "if most is not None and draws > most:", "if False:"),
    ),
    Defect(
        "the next step overwrites what a callback sets",
        "ag/parallel/trainer/trainer.py",
        "if not (self.optimizers.changed_since(since) or any(r.changed_since(since) for r in self.replicas)):",
        "if since:",
    ),
]


def found_after(defect: Defect, device: str = "cpu") -> tuple[int, str] | None:
    """Return how many steps it takes to find a defect, and what is seen; None if it is not found."""
    with TemporaryDirectory(prefix="ag-defect-") as folder:
        shutil.copytree(ROOT / "ag", Path(folder, "ag"), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "shaders", Path(folder, "shaders"))
        defect.put_back(Path(folder))
        done = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("run.py")),
                "--device",
                device,
                "--steps",
                str(LIMIT),
                "--first",
                "--no-shrink",
                *WITHOUT,
            ],
            text=True,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    match = re.search(r"^after (\d+) steps, seed \d+: (.*)", done.stdout, re.MULTILINE)
    return (int(match[1]), match[2][:100]) if match else None


WITHOUT = ["--without", os.environ["AG_MACHINE_WITHOUT"]] if "AG_MACHINE_WITHOUT" in os.environ else []


def main() -> int:
    words, lost = sys.argv[1:], 0
    chosen = [d for d in DEFECTS if not words or any(w in d.name for w in words)]
    for d in chosen:
        found = found_after(d)
        lost += found is None
        print(f"{d.name:52} {f'{found[0]:5} steps  {found[1]}' if found else 'NOT FOUND'}", flush=True)
    print(f"{len(chosen) - lost} of {len(chosen)} found")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
