"""The reference that `make docs` writes: every public name with its description, and no warning on the way."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ag

ROOT = Path(__file__).parents[2]
WRITE = [sys.executable, "-W", "error", "tools/reference.py"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("reference")
    done = subprocess.run([*WRITE, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return (folder / "ag.html").read_text("utf-8")


def section(page: str, name: str) -> str:
    """The text of the part about a name, with its white space as single blanks."""
    found = re.search(rf'<section id="{name}">.*?(?=<section |</main>)', page, re.S)
    assert found is not None, f"{name} is not in the reference"
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", found[0])).split())


@pytest.mark.parametrize("name", ag.__all__)
def test_a_public_name_is_there_with_its_description(page: str, name: str) -> None:
    text = section(page, name)
    first, *_ = (getattr(ag, name).__doc__ or "").split("\n\n")
    assert first, f"ag.{name} has no docstring"
    for word in re.findall(r"[A-Za-z_]{4,}", first):
        assert word in text, f"{name}: {word!r} of {first!r} is not in {text[:200]!r}"


def test_signatures_say_which_classes(page: str) -> None:
    assert "ag_silu( x: Tensor | " in section(page, "ag_silu") and ") -> Tensor:" in section(page, "ag_silu")
    assert "class ag_linear(ag.Layer):" in section(page, "ag_linear")
    assert "in_features: int, out_features: int" in section(page, "ag_linear")


def test_sections_of_a_docstring_are_headings(page: str) -> None:
    for heading in ("Parameters", "Returns", "Raises", "Examples"):
        assert re.search(rf"<h6[^>]*>{heading}</h6>", page), heading
    assert "----" not in re.sub(r"<style.*?</style>|<script.*?</script>|<!--.*?-->", "", page, flags=re.S)


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    code = ("import ag, runpy, sys; ag.ag_seed.__annotations__['seed'] = 'Nowhere'; sys.argv[:] = ['', sys.argv[1]]; "
            "runpy.run_path('tools/reference.py', run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode != 0 and "Nowhere" in done.stderr
