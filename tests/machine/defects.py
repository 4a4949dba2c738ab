#!/usr/bin/env python3
"""Put defects back, one at a time, and count the steps that the state machine needs to find each.

    python tests/machine/defects.py            all of them
    python tests/machine/defects.py gradient   those with one of these words

Each replaces a short text of the package in a copy of it, as the mutants of tests/mutant_table.py do; here it is not a
test that names what is wrong, but hypothesis that must come upon it.  Prints a table; the exit status is 1 if one is
not found within LIMIT steps.
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
LIMIT = 4000  # steps


class Edit(NamedTuple):
    """What is replaced: in which file which text, and what stands in its place."""

    file: str
    old: str
    new: str


class Defect:
    """A defect that was there once.

    Parameters
    ----------
    name : str
    *texts : str
        File, old text and new text; more of these where something else would notice what comes of it.

    Attributes
    ----------
    name : str
    edits : list of Edit
    """

    def __init__(self, name: str, *texts: str) -> None:
        self.name = name
        self.edits = [Edit(*texts[k : k + 3]) for k in range(0, len(texts), 3)]

    def put_back(self, root: Path) -> None:
        """Put it into the package in a folder."""
        for file, old, new in self.edits:
            path = root / file
            path.write_text(path.read_text("utf-8").replace(old, new, 1), "utf-8")


_CALL, _PROGRAM = "ag/autograd/captured/call.py", "ag/autograd/captured/program.py"
_ARGUMENTS, _WATCHED = "ag/autograd/captured/arguments.py", "ag/autograd/watched.py"
DEFECTS = [
    Defect(
        "work on another device is not recorded",
        "ag/engine/program.py",
        "elif self.backend is not device:",
        "elif False:",
    ),
    Defect(
        "a replay leaves no gradient",
        _PROGRAM,
        "            if x.peek_grad() is not grad:\n                x.set_grad(grad)\n",
        "            pass\n",
    ),
    Defect(
        "a gradient of before is that of the first call",
        _PROGRAM,
        "self.backend.assign(leaf.slot.buffer, leaf.tensor.peek_grad().buffer)",
        "pass",
    ),
    Defect(
        "the gradients that are added to need not be there",
        _PROGRAM,
        'return "a gradient is there that was not" if leaf.slot is None else "a gradient that was there is not"',
        "pass",
    ),
    Defect(
        "optimizers and devices move parameters unseen",
        _WATCHED,
        "if moved is not None and moved.buffer is not buffer:",
        "if False:",
    ),
    Defect("an array of the step's own stands for its argument", _ARGUMENTS, "example.copy()  #", "example  #"),
    Defect(
        "work of threads is not recorded",
        "ag/parallel/replicas/parallel_apply.py",
        "if len(calls) > 1 and recording_here() is not None:",
        "if False:",
    ),
    Defect("settings of layers may change", _WATCHED, "if not same(noted, now):", "if False:"),
    Defect(
        "items of a layer's lists may change",
        _WATCHED,
        "if has_other_items(container, items):",
        "if False:",
    ),
    Defect(
        "the generator is seeded in the step",
        "ag/engine/random.py",
        'backend.refuse_while_recording("seeds the random generator")',
        "pass",
    ),
    Defect(
        "results are the program's memory",
        _PROGRAM,
        "    if buffer.block.nbytes <= _SMALL:\n        lent =",
        "    if True:\n        lent = buffer\n    elif buffer.block.nbytes <= _SMALL:\n        lent =",
    ),
    Defect("recordings are not compared", "ag/autograd/capture.py", "if difference is not None:", "if False:"),
    Defect(
        "a step may keep its results",
        _PROGRAM,
        "            self.program = recording.finished()\n        except CaptureError:",
        "            self.program = recording.finished()\n        except KeyError:",
    ),
    Defect(
        "random numbers are drawn again by recompute",
        "ag/engine/primitive.py",
        "elementwise and not updates if cheap",
        "elementwise if cheap",
    ),
    Defect(
        "two parameters share a gradient",
        "ag/autograd/tape.py",
        "    return _of_their_own(leaves, began)",
        "    return leaves",
    ),
    Defect(
        "a gradient is the constant 1",
        "ag/autograd/tape.py",
        "if g.block.made < began or g.block in blocks:",
        "if g.block in blocks:",
    ),
    Defect("a sum is its operand", "ag/autograd/op.py", "if b.block is out.block:", "if False:"),
    Defect(
        "the next step overwrites what a callback sets",
        "ag/parallel/trainer/trainer.py",
        "if not (self.optimizers.changed_since(since) or any(r.changed_since(since) for r in self.replicas)):",
        "if since:",
    ),
]


def found_after(defect: Defect, device: str = "cpu") -> tuple[int, str] | None:
    """How many steps it takes to find a defect, and what is seen; None if it is not found."""
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
