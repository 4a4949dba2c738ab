"""Apply a unified diff to a source tree, exactly or not at all.

A machine that builds kp may have neither `patch` nor git, and both accept near misses.  Here every
context and removed line must stand where the diff says; otherwise PatchError is raised and no file
is touched.  Only changes of existing text files are understood.  Called by recipe.py.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class PatchError(ValueError):
    """The diff is malformed or does not fit the tree."""


@dataclass
class Hunk:
    """One run of changed lines: at line `start` (from 1), `old` becomes `new`."""

    start: int
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


def apply_patch(patch: Path, root: Path) -> None:
    """Apply the unified diff in file `patch` to the files under `root`.

    Parameters
    ----------
    patch : Path
        The diff; text before its first file header is taken for a description.
    root : Path
        The folder that the diff's `a/` and `b/` stand for.

    Raises
    ------
    PatchError
        If the diff is malformed, or any line differs from what it expects.
    """
    results = {}
    for name, hunks in parse(read(patch), patch.name):
        if name in results:
            raise PatchError(f"{patch.name}: {name} appears twice.")
        target = root / name
        if not target.is_file():
            raise PatchError(f"{patch.name}: there is no file {name}.")
        results[name] = rewrite(read(target), hunks, f"{patch.name}: {name}")
    if not results:
        raise PatchError(f"{patch.name}: changes no file.")
    for name, text in results.items():
        (root / name).write_bytes(text.encode())


def read(path: Path) -> str:
    """Return the text with its line ends as they are."""
    return path.read_bytes().decode()


def rewrite(text: str, hunks: list[Hunk], where: str) -> str:
    """Return `text` with the hunks applied; `where` begins the error messages."""
    lines = text.split("\n")
    result: list[str] = []
    done = 0
    for hunk in hunks:
        begin = hunk.start - 1
        if begin < done:
            raise PatchError(f"{where}: the hunk at line {hunk.start} overlaps the one before.")
        found = lines[begin : begin + len(hunk.old)]
        for offset, expected in enumerate(hunk.old):
            actual = found[offset] if offset < len(found) else None
            if actual != expected:
                raise PatchError(f"{where}: line {hunk.start + offset} is {actual!r}, not {expected!r}.")
        result += lines[done:begin] + hunk.new
        done = begin + len(hunk.old)
    return "\n".join(result + lines[done:])


def parse(text: str, name: str) -> Iterator[tuple[str, list[Hunk]]]:
    """Yield (path, hunks) for each file of the diff; `name` begins the error messages."""
    lines = text.removesuffix("\n").split("\n")
    at = 0
    while at < len(lines) and not lines[at].startswith("--- "):
        at += 1  # the description
    while at < len(lines):
        if lines[at].startswith(("diff --git ", "index ")):
            at += 1
            continue
        path = target(lines, at, name)
        at += 2
        hunks = []
        while at < len(lines) and lines[at].startswith("@@"):
            hunk, at = read_hunk(lines, at, name)
            hunks.append(hunk)
        if not hunks:
            raise PatchError(f"{name}: line {at + 1}: no hunk follows the header of {path}.")
        yield path, hunks


def target(lines: list[str], at: int, name: str) -> str:
    """Return the path that the two header lines at `at` agree on."""
    old, new = lines[at], lines[at + 1] if at + 1 < len(lines) else ""
    path = old.removeprefix("--- a/")
    if path == old or new != f"+++ b/{path}":
        wanted = "'--- a/PATH' and '+++ b/PATH'"
        raise PatchError(f"{name}: line {at + 1}: expected {wanted}, not {old!r}, {new!r}.")
    if ".." in PurePosixPath(path).parts or PurePosixPath(path).is_absolute():
        raise PatchError(f"{name}: line {at + 1}: {path} leaves the tree.")
    return path


def read_hunk(lines: list[str], at: int, name: str) -> tuple[Hunk, int]:
    """Return the hunk whose header is line `at`, and the index of the line after it."""
    header = HUNK.match(lines[at])
    if not header:
        raise PatchError(f"{name}: line {at + 1}: not a hunk header: {lines[at]!r}.")
    olds, news = int(header[2] or 1), int(header[4] or 1)
    hunk = Hunk(int(header[1]))
    at += 1
    while len(hunk.old) < olds or len(hunk.new) < news:
        line = lines[at] if at < len(lines) else ""
        if line[:1] not in (" ", "-", "+") or not line:
            raise PatchError(f"{name}: line {at + 1}: the hunk ends early: {line!r}.")
        if line[0] != "+":
            hunk.old.append(line[1:])
        if line[0] != "-":
            hunk.new.append(line[1:])
        at += 1
    if (len(hunk.old), len(hunk.new)) != (olds, news):
        raise PatchError(f"{name}: line {at}: the hunk has more lines than its header says.")
    return hunk, at
