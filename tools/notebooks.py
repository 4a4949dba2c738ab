"""Runs the notebooks of docs/notebooks, each in a process and a folder of its own; an error in a cell is an error here.

    python tools/notebooks.py          runs all, and writes their results into them
    python tools/notebooks.py FILE...  runs these, and writes nothing, as tests/docs/test_notebooks.py does
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
LIMIT_S = 600  # for a cell, and for a kernel to begin, on a busy machine


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the results of a run in its own folder."""
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=LIMIT_S, startup_timeout=LIMIT_S, kernel_name="python3", record_timing=False,
                   coalesce_streams=True, resources={"metadata": {"path": str(path.parent)}}).execute()
    book.metadata["language_info"] = {"name": "python"}  # without the interpreter's version
    return book


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        run(path)
    for path in sorted(FOLDER.glob("*.ipynb")) if not sys.argv[1:] else ():
        nbformat.write(run(path), path)


if __name__ == "__main__":
    main()
