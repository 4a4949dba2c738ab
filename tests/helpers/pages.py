"""The repository, the pages of its documentation, and a block of a page run as a program."""

from __future__ import annotations

import re
from pathlib import Path

from helpers import forked

ROOT = Path(__file__).parents[2]
PAGES = {str(path.relative_to(ROOT)): path.read_text("utf-8")
         for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}


def blocks(page: str) -> list[str]:
    """The Python blocks of a page that are to be run."""
    return re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)


def run(code: str, folder: Path = ROOT) -> None:
    """Python in a process of its own, with this repository's package."""
    done = forked.run(code, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
