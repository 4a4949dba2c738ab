#!/usr/bin/env python3
"""Break the package in each of the ways of mutant_table.py, and see that the quick leg's tests notice.
Words, as in `python tests/mutants.py conv pass`, choose mutants by family, name or file; else all are made.

Each mutant is made in a copy of the tree.  The tests that are to fail run there, and must pass there before.  A test
that fails otherwise than by an assertion, or by an error of the tape or of ranks, kills nothing.  The script prints a
table; the exit status is 1 if a mutant survives.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from threading import Timer
from time import perf_counter
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = map(str, (ROOT, ROOT / "tests"))

from mutant_table import MUTANTS, Mutant  # noqa: E402

import kernels_build  # noqa: E402

COPIED = ("ag", "shaders", "third_party/kp/fault", "tests", "tools", "docs", "examples", "benchmarks", "pyproject.toml",
          "kernels_build.py", "README.md", "CHANGELOG.md", "Makefile")
SPV = "ag/engine/backends/shader/spv"
LIMIT_S = 300  # of one run of pytest
# Runs pytest with the arguments of each line, in a fork that need not import it and numpy, and prints its number first.
SERVER = """
import importlib, json, os, sys
import _pytest.config, numpy, pytest
for name in _pytest.config.default_plugins:
    importlib.import_module(f"_pytest.{name}")
nothing = os.open(os.devnull, os.O_RDONLY)
for line in sys.stdin:
    if not (child := os.fork()):
        printed = os.open("printed.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        for here, there in enumerate((nothing, printed, printed)):
            os.dup2(there, here)
        os.setpgid(0, 0)
        status = pytest.main(json.loads(line))
        sys.stdout.flush()
        os._exit(status)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""
# How the message of a failed test begins: an assertion, or what the library says itself, but not that a
# kernel was not compiled.
KILLS = ("AssertionError", "assert ", "Failed: ", *(
    f"ag.errors.{name}Error" for name in ("Tape", "Comm", "Capture", "Shape")))


class Outcome(NamedTuple):
    """The fate of a mutant: the test that killed it, or why it lives."""

    mutant: Mutant
    killer: str
    reason: str
    seconds: float

    @property
    def name(self) -> str:
        """The mutant's family and name."""
        return f"{self.mutant.family}: {self.mutant.name}"


class Copy:
    """A copy of the tree.

    Parameters
    ----------
    folder : Path
        Where; it is not there yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.is_file():
                shutil.copy2(source, folder / name)
        self._env = {**os.environ, "PYTHONPATH": f"{folder}:{folder / 'tests'}", "OPENBLAS_NUM_THREADS": "1",
                     "AG_CPU": "numpy", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins cost a sixth of the time
        self._env.pop("PYTHONDONTWRITEBYTECODE", None)
        # A mutant may have the length and the second of the text before it, so bytecode goes by the text's hash.
        compiling = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "ag", "kernels_build.py"]
        subprocess.run([sys.executable, *compiling], cwd=folder, env=self._env, check=True)
        self._server = subprocess.Popen(  # ends with its stdin
            [sys.executable, "-c", SERVER], cwd=folder, env=self._env, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE)

    @contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        """The tree with a mutant in it, its kernels compiled."""
        path, spv, whole = self.folder / mutant.file, self.folder / SPV, self.folder / "spv"
        text = path.read_text("utf-8")
        if mutant.kernels:
            shutil.copytree(spv, whole)
        path.write_text(text.replace(mutant.old, mutant.new, 1), "utf-8")
        try:
            self._compile(mutant.kernels)
            yield
        finally:
            path.write_text(text, "utf-8")
            if mutant.kernels:
                shutil.rmtree(spv)
                whole.rename(spv)

    def _compile(self, kernels: Sequence[str]) -> None:
        """Compile these kernels, and no others, which would take most of the time."""
        spv = self.folder / SPV
        manifest = kernels_build.read_manifest(spv)
        for name in kernels:
            shader = self.folder / "shaders" / f"{name}.comp"
            manifest["kernels"][name] = kernels_build.compile_shader(shader, spv / f"{name}.spv")
        if kernels:
            (spv / "manifest.json").write_text(json.dumps(manifest), "utf-8")

    def test(self, ids: Sequence[str], *options: str) -> tuple[dict[str, str], str]:
        """Run tests: what failed, by test, or the name of another outcome, such as passed; and what pytest printed."""
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        printed = self._run("-q", "-m", "not slow", "-p", "no:cacheprovider", f"--junitxml={report}",
                            *options, *(f"tests/{i}" for i in ids))
        return outcomes(report) if report.is_file() else {}, printed

    def _run(self, *arguments: str) -> str:
        asked, answers = self._server.stdin, self._server.stdout
        assert asked is not None and answers is not None
        print(json.dumps(arguments), file=asked, flush=True)
        child, late = int(answers.readline()), []

        def end() -> None:
            late.append(f"it took more than {LIMIT_S} s")
            os.killpg(child, signal.SIGKILL)

        timer = Timer(LIMIT_S, end)
        timer.start()
        answers.readline()
        timer.cancel()
        return "".join(late) or (self.folder / "printed.txt").read_text("utf-8", "replace")


def outcomes(report: Path) -> dict[str, str]:
    """From pytest's junit file: by id below tests, "passed", "skipped", "error", or the message of a failure."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        folders = (case.get("classname") or "").removeprefix("tests.").replace(".", "/")
        failure = case.find("failure")
        other = next((kind for kind in ("error", "skipped") if case.find(kind) is not None), "passed")
        name = f"{folders}.py::{case.get('name')}"
        if found.get(name, "passed") == "passed":  # and not the error of the teardown behind a failure
            found[name] = other if failure is None else failure.get("message") or "failed"
    return found


def chosen(words: Sequence[str]) -> list[Mutant]:
    """The mutants that have one of the words; all, if there are none."""
    return [m for m in MUTANTS if not words or any(w in f"{m.family}: {m.name} ({m.file})" for w in words)]


def not_ready(copy: Copy, mutants: Sequence[Mutant]) -> list[str]:
    """List what is wrong with the tests before anything is broken."""
    ids = sorted({i for m in mutants for i in m.killers})
    found, printed = copy.test(ids)
    if not found:
        return [printed]
    wrong = [f"{i} does not pass: {what}" for i, what in found.items() if what not in ("passed", "skipped")]
    return wrong + [f"{i} does not run here" for i in ids
                    if not any(what == "passed" and same(i, name) for name, what in found.items())]


def same(killer: str, test: str) -> bool:
    """Return whether a test is the one that an id names, or one of its parameters."""
    return test == killer or test.startswith(f"{killer}[")


def attempt(mutant: Mutant, copy: Copy) -> Outcome:
    """Make a mutant and run its tests until one fails."""
    begin = perf_counter()
    with copy.broken(mutant):
        found, printed = copy.test(mutant.killers, "-x")
    failed = {i: what for i, what in found.items() if what not in ("passed", "skipped")}
    killer = next((i for i, what in failed.items() if what.startswith(KILLS)), "")
    reason = next(iter(failed.values()), "" if found else printed[-500:]) or "its tests pass"
    return Outcome(mutant, killer, "" if killer else reason, perf_counter() - begin)


def main(words: Sequence[str]) -> int:
    """Exit status: 0 all killed, 1 some survive, 2 nothing can be said."""
    mutants, jobs = chosen(words), min(2, os.cpu_count() or 1)
    if not mutants:
        print(f"mutants.py: no mutant has any of the words {' '.join(words)}", file=sys.stderr)
        return 2
    with TemporaryDirectory(prefix="ag-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies: Queue[Copy] = Queue()
        for k in range(jobs):
            copies.put(Copy(Path(folder, str(k))))
        if wrong := not_ready(copies.queue[0], mutants):
            print("mutants.py:", *wrong, sep="\n", file=sys.stderr)
            return 2

        def one(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                return attempt(mutant, copy)
            finally:
                copies.put(copy)

        survivors = []
        for o in pool.map(one, mutants):
            if not o.killer:
                survivors.append(o)
            what = f"killed by {o.killer}" if o.killer else f"SURVIVES: {o.reason.splitlines()[0]}"
            print(o.name.ljust(66), f"{o.seconds:5.1f} s  {what}", flush=True)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants killed")
    for o in survivors:  # at the end too, with all that is known, as a log may lack its middle
        print(f"\n{o.name} survives {', '.join(o.mutant.killers)}: {o.reason}")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
