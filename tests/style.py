"""Count what breaks the style guide of CONTRIBUTING.md, by rule and room.

`python tests/style.py` lists every case; `--record` lowers the ratchet in style.json, never raises it.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RATCHET = Path(__file__).with_name("style.json")
CLAUSES = {"What", "Who", "Whether", "How", "Which", "Where", "Whoever", "Whose"}  # begin a noun clause, not a verb
FORMULA = re.compile(r"\bKnows\b|\bcalls (it|them)\b|\bcalled by\b|\bcall(s)? this\b")
LONGEST_SENTENCE, LONGEST_HEAD, LONGEST_SUBJECT = 30, 6, 65  # words, lines, characters
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.M)  # a heading of numpydoc
CODE = re.compile(r"``.*?``|`.*?`", re.S)
SINCE = "6079d9cb"  # the last commit before subjects were counted
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(text: str) -> Iterator[tuple[ast.AST, str, int]]:
    """Yield each documented node, its docstring and the line where that begins."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and (found := ast.get_docstring(node)):
            yield node, found, node.body[0].lineno


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring's prose: no examples, tables, lists of parameters or code."""
    for block in SECTION.split(text)[:1][0].split("\n\n"):
        lines = block.splitlines()
        if any(line.startswith((" ", ">>>", "|", "* ", "- ")) for line in lines):
            continue
        yield from re.split(r"(?<=[.!?:])\s+(?=[A-Z`\"'])", CODE.sub("x", " ".join(lines)))


def broken(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield the rule, the line and the text of what breaks the style guide in a file."""
    for node, text, line in docstrings(path.read_text("utf-8")):
        if text.split()[0].strip(",.:") in CLAUSES:
            yield "clause", line, text.splitlines()[0]
        if found := FORMULA.search(text):
            yield "formula", line, found.group()
        if isinstance(node, ast.Module) and len(text.splitlines()) > LONGEST_HEAD:
            yield "head", line, f"{len(text.splitlines())} lines"
        for sentence in sentences(text):
            if len(sentence.split()) > LONGEST_SENTENCE:
                yield "sentence", line, f"{len(sentence.split())} words: {sentence}"


def room(path: Path) -> str:
    """Name the folder under which a file is counted."""
    parts = path.relative_to(ROOT).parts[:-1]
    return "/".join(parts[:2])


def rooms() -> dict[str, list[Path]]:
    """List the files by the folder under which they are counted."""
    found: dict[str, list[Path]] = {}
    for path in sorted(path for top in ("ag", "tests") for path in (ROOT / top).rglob("*.py")):
        found.setdefault(room(path), []).append(path)
    return found


def breaches(paths: list[Path]) -> dict[str, list[str]]:
    """List the places of every breach in these files, by rule."""
    found: dict[str, list[str]] = {}
    for path in paths:
        for rule, line, text in broken(path):
            found.setdefault(rule, []).append(f"{path.relative_to(ROOT)}:{line}: {text}")
    return found


def long_subjects() -> list[str] | None:
    """List subjects of commits that are too long; None outside of a clone that has the history."""
    done = subprocess.run(["git", "log", "--no-merges", "--format=%s", f"{SINCE}..HEAD"], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    if done.returncode:
        return None
    return [subject for subject in done.stdout.splitlines() if len(subject) > LONGEST_SUBJECT]


def main() -> None:
    """List breaches, or record their number."""
    found = {name: breaches(paths) for name, paths in rooms().items()}
    if "--record" in sys.argv:
        counts = {name: {rule: len(places) for rule, places in sorted(rules.items())} for name, rules in found.items()}
        kept = {name: rules for name, rules in counts.items() if rules}
        RATCHET.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    else:
        print("\n".join(f"{rule} {place}" for rules in found.values() for rule in rules for place in rules[rule]))


if __name__ == "__main__":
    main()
