"""The documentation site that `make docs` builds: every public name in it, nothing fetched, broken links are errors."""

from __future__ import annotations

import html
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from runpy import run_path

import pytest
import yaml
from helpers.pages import PAGES, ROOT
from reference import NAME, filled, found, names, public_names, shown, summary, table

import ag

REFERENCE = {name: filled(page) for name, page in PAGES.items() if name.startswith("docs/reference/")}
SITE = run_path(str(ROOT / "tools" / "site_pages.py"))
NAMED = [name for page in REFERENCE.values() for name in NAME.findall(page)]


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", "tools/mkdocs.yml", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(root)},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0 and "WARNING" not in done.stdout, done.stdout
    return folder


def section(site: Path, name: str) -> str:
    """The text of the part of the reference about a name, with its white space as single blanks."""
    path = next(path for path, page in REFERENCE.items() if f"::: ag.{name}\n" in page)
    page = (site / "reference" / path.rpartition("/")[2].replace(".md", ".html")).read_text("utf-8")
    found = re.search(rf'<h2 id="ag\.{re.escape(name)}".*?(?=<h2 |</article>)', page, re.S)
    assert found is not None, f"{name} is not in {path}"
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", found[0])).split())


def test_the_reference_has_every_public_name_once() -> None:
    named = Counter(NAMED)
    assert {name for name in named if "." not in name} == set(ag.__all__) and set(named.values()) == {1}


@pytest.mark.slow
def test_the_table_has_every_name_of_every_public_module() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed, so its estimators cannot be looked at")
    rows, public = table(), dict(public_names())
    for name, thing in public.items():
        bare = name.rpartition(".")[2]
        assert f"`{name}`" in rows or (public.get(bare) is thing and f"`{bare}`" in rows), f"ag.{name} is not there"
    assert {"training.EarlyStopping", "training.AgClassifier", "optim.Schedule", "data.imagenet.topk_hits"} <= {*public}
    assert all(found(name) is public[shown(name)] for name in NAMED)
    assert len(re.findall(r"^\| \[", rows, re.M)) == len(NAMED)


def test_every_page_of_the_reference_is_in_the_menu() -> None:
    menu = (ROOT / "tools" / "mkdocs.yml").read_text("utf-8")
    assert all(f": {name.removeprefix('docs/')}\n" in menu for name in PAGES if name != "README.md")
    assert yaml.safe_load(menu)["strict"] is True


@pytest.mark.slow
def test_every_name_is_there_with_its_description(site: Path) -> None:
    index = html.unescape((site / "reference" / "index.html").read_text("utf-8"))
    for name in NAMED:
        assert f'#ag.{name}"><code>{names(name)[0]}</code>' in index
        text = section(site, name)
        if name == "data.imagenet.MEAN_AND_DEVIATION":  # a number
            assert "0.485" in text
            continue
        first, *_ = (found(name).__doc__ or "").split("\n\n")
        assert first, f"ag.{name} has no docstring"
        for word in re.findall(r"[A-Za-z_]{4,}", first):
            assert word in text, f"{name}: {word!r} of {first!r} is not in {text[:200]!r}"


def examples(page: str, name: str) -> str:
    """Return the description of a name, and what its page says below it."""
    below = re.split(r"^(?:::: |## )", page.partition(f"::: ag.{name}\n")[2], maxsplit=1, flags=re.M)[0]
    return (inspect.getdoc(found(name)) or "") + below


@pytest.mark.parametrize("page", [  # the page of the estimators loads scikit-learn
    pytest.param(page, marks=pytest.mark.slow if "estimators" in text else ()) for page, text in REFERENCE.items()
    if NAME.search(text)])
def test_every_name_has_an_example(page: str) -> None:
    imagenet = REFERENCE["docs/reference/data.md"].partition("## ImageNet")[2]  # one program for all of these
    for name in NAME.findall(REFERENCE[page]):
        if name.startswith("data.imagenet."):
            assert name.rpartition(".")[2] in imagenet
        else:
            text = examples(REFERENCE[page], name)
            assert ">>> " in text or "```python" in text, f"ag.{name} has no example"


def test_a_page_begins_with_a_table_of_its_names() -> None:
    page = summary(REFERENCE["docs/reference/optimizers.md"])
    rows = re.findall(r"^\| \[`([\w.]+)`\]\(#ag\.([\w.]+)\)", page, re.M)
    assert rows[0] == ("optim.SGD", "optimizer_sgd") and ("optim.Schedule", "optim.Schedule") in rows
    assert len(rows) == len(NAME.findall(page)) and page.index("| names |") < page.index("::: ag.optimizer_sgd")
    layers = summary(REFERENCE["docs/reference/layers.md"])
    assert "| [`nn.Linear`](#ag.ag_linear)<br>`ag_linear` | Fully connected" in layers
    data = summary(REFERENCE["docs/reference/data.md"])
    assert data.count("| names |") == 1 and data.index("| names |") < data.index("::: ag.ag_dataloader")


def test_cells_know_their_columns_and_empty_descriptions_have_no_dash() -> None:
    table = "<table><tr><th>a <b>b</b></th><th>c</th><th>d</th></tr><tr><td>1</td><td>2</td><td>3</td></tr></table>"
    shown = SITE["on_page_content"](table)
    assert '<td data-label="a b">1</td><td data-label="c">2</td>' in shown
    assert SITE["on_page_content"]("<table><tr><th>a</th></tr><tr><td>1</td></tr></table>").count("data-label") == 0
    item = '<li><b>x</b> (Tensor)\n –\n <div class="doc-md-description">\n{}</div></li>'
    assert "–" not in SITE["on_page_content"](item.format(""))
    assert "–" in SITE["on_page_content"](item.format("<p>Input.</p>"))


def test_what_users_do_not_make_shows_no_signature() -> None:
    classes = {name: found(name) for name in NAMED if "estimators" not in name and inspect.isclass(found(name))}
    made = {name for name, kind in classes.items() if SITE["made_by_users"](kind)}
    assert {"ag_linear", "DataParallel", "training.EarlyStopping", "KeyValueCache"} <= made
    assert made.isdisjoint({"Tensor", "Batch", "DPResult", "Gradients", "ShapeError", "io.Stateful"})
    assert "merge_init_into_class: false" in SITE["entry"]("Tensor")
    assert 'heading: "nn.Linear · ag_linear"' in SITE["entry"]("ag_linear")


@pytest.mark.slow
def test_signatures_and_both_names(site: Path) -> None:
    silu, linear = section(site, "ag_silu"), section(site, "ag_linear")
    assert "x: Tensor" in silu and "ops.silu" in silu
    assert "in_features: int" in linear and "nn.Linear" in linear
    for heading in ("Parameters", "Returns", "Examples"):
        assert heading in section(site, "ag_matmul")
    assert "Raises" in section(site, "ag_capture")
    assert "----" not in linear + silu


@pytest.mark.slow
def test_nothing_is_fetched(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text("utf-8")
        fetched = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(https?:[^"]*)', text)
        links = re.findall(r'<link\b(?=[^>]*\brel="(?:stylesheet|preload|preconnect|icon))[^>]*>', text)
        fetched += [link for link in links if re.search(r'href="https?:', link)]
        assert not fetched, f"{page.name} fetches {fetched}"


@pytest.mark.slow
def test_broken_links_are_errors(tmp_path: Path) -> None:
    for name in ("docs", "tools", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples", "ag"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("reference", "notebooks"))
        else:
            shutil.copy(ROOT / name, tmp_path)
    page = tmp_path / "docs" / "install.md"
    broken = "\n[a](nowhere.md) [b](quick_start.md#nothing) [c](../nowhere.py)\n"
    page.write_text(page.read_text("utf-8") + broken, "utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for link in ("nowhere.md", "#nothing", "nowhere.py"):
        assert link in done.stdout, done.stdout
