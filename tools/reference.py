"""The names on the pages of the reference. Operations are derived from what is public: a new one needs no line there.

`tools/site_pages.py` fills the pages in with it; tests/docs/test_site.py reads them so.
"""

from __future__ import annotations

import re
from pathlib import Path

import ag

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
NAME = re.compile(r"^::: ag\.([\w.]+)$", re.M)
PLACE = "<!-- all operations -->"


def operations() -> list[str]:
    """The public functions of `ag.ops` that no page names, in the order in which `ag` lists them."""
    named = {name for path in FOLDER.glob("*.md") for name in NAME.findall(path.read_text("utf-8"))}
    return [name for name in ag.__all__
            if name not in named and getattr(getattr(ag, name), "__module__", "").startswith("ag.ops.")]


def filled(page: str) -> str:
    """A page with a line for each operation where they belong."""
    if PLACE not in page:  # reading all pages takes time
        return page
    return page.replace(PLACE, "\n\n".join(f"::: ag.{name}" for name in operations()))
