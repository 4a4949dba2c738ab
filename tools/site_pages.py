"""What the documentation site has besides the Markdown in docs/: hooks of mkdocs, named in tools/mkdocs.yml.

Pages are made of README.md, CHANGELOG.md, CONTRIBUTING.md, the table of all messages, and notebooks; links to files of
the repository lead there, or to the page that is made of the file; the reference has both names of everything.  A link
to a file that does not exist is a warning, and warnings are errors.  Nobody else calls this.
"""

from __future__ import annotations

import inspect
import logging
import posixpath
import re
from pathlib import Path
from runpy import run_path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

log = logging.getLogger("mkdocs.hooks.site_pages")

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/ag-autograd/ag/blob/main/"
REFERENCE = run_path(str(ROOT / "tools" / "reference.py"))
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n\n"  # the head of a page that would fill the results of a search
HIDDEN = "---\nhide: [navigation, toc]\n---\n\n"
HEADS = {"README.md": HIDDEN, "CHANGELOG.md": UNSEARCHED}
BUTTONS = """
[Install](install.md){ .md-button .md-button--primary }
[Quick start](quick_start.md){ .md-button }
[Recipes](recipes/index.md){ .md-button }
[Reference](reference/index.md){ .md-button }
"""
# Files outside docs/ that are pages here.
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
FENCES = {
    "py onnx": 'python title="onnx"', "py torch": 'python title="PyTorch"',
    "py torchvision": 'python title="torchvision"', "py albumentations": 'python title="albumentations"',
    "py hardware": 'python title="Needs a graphics card; not run by the tests"',
    "py elsewhere": 'python title="Needs another library; not run by the tests"',
}

# What layers tell each other and files; methods, but none that users call.
INNER = {"config", "configs_inside", "is_as_made", "largest_tensor", "replace_devices", "rebind", "set_grad",
         "peek_grad"}


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        text = HEADS.get(source, "") + (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "messages.md", content=UNSEARCHED + messages()))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = notebook(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def messages() -> str:
    """Every error with its message, by module."""
    modules: dict[str, list[str]] = {}
    for row in run_path(str(ROOT / "tools" / "errors_table.py"))["rows"]():
        fence = "``" if "`" in row.message else "`"
        message = f"{fence} {row.message} {fence}" if fence == "``" else f"`{row.message}`"
        modules.setdefault(row.module, []).append(f"* `{row.error}`: {message}")
    about = "What `ag` raises, module by module; names in braces stand for what is found when it happens."
    return "\n\n".join(["# All messages", about, *(f"## {module}\n\n" + "\n".join(lines)
                                                   for module, lines in modules.items())]) + "\n"


def notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook, with the results that lie in it, as Markdown; the pictures that it shows, by name."""
    text, made = MarkdownExporter().from_notebook_node(nbformat.read(path, as_version=4),
                                                       {"unique_key": path.stem, "output_files_dir": ""})
    title, _, rest = text.partition("\n")
    return f"{title}\n\n[This page as a notebook]({path.name})\n{rest}", made["outputs"]


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    source = next((name for name, made in PAGES.items() if made == page.file.src_uri), f"docs/{page.file.src_uri}")
    markdown = re.sub(r"(?<=\]\()([^)#:\s]+)(?=[)#])", lambda found: target(found[1], source, page.file), markdown)
    markdown = re.sub(r"^```(py \w+)$", lambda found: f"```{FENCES[found[1]]}", markdown, flags=re.M)
    if source == "README.md":  # below the tagline, the first paragraph
        markdown = re.sub(r"(?<=\n\n)(?P<tagline>\w[^\n]*(?:\n[^\n]+)*\n)", rf"\g<tagline>{BUTTONS}", markdown, count=1)
    if source.startswith("docs/reference/"):
        markdown = REFERENCE["summary"](REFERENCE["filled"](markdown))
    if page.file.src_uri == "reference/index.md":
        markdown = markdown.replace("<!-- all names -->", REFERENCE["table"]())
    return REFERENCE["NAME"].sub(lambda found: entry(found[1]), markdown)


def on_page_content(html: str, **_: Any) -> str:
    html = re.sub(r"<table>.*?</table>", lambda found: labelled(found[0]), html, flags=re.S)
    return re.sub(r"\s+–\s*<div class=\"doc-md-description\">\s*</div>", "", html)


def labelled(table: str) -> str:
    """Give each cell of a table the heading of its column, for narrow screens; two columns need none."""
    heads = [re.sub(r"<[^>]+>", "", head) for head in re.findall(r"<th\b[^>]*>(.*?)</th>", table, re.S)]
    if len(heads) < 3:
        return table

    def cells(row: re.Match[str]) -> str:
        labels = iter(heads)
        return re.sub(r"<td\b", lambda _: f'<td data-label="{next(labels, "")}"', row[0])

    return re.sub(r"<tr>.*?</tr>", cells, table, flags=re.S)


def target(link: str, source: str, file: File) -> str:
    """Where a link of the file `source` leads, on the page that is made of it."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    inside = PAGES.get(path)
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
    if inside is None:
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which does not exist", source, link)
        return REPOSITORY + path
    if inside.endswith(".ipynb") and not file.src_uri.startswith("notebooks/"):
        inside = inside.removesuffix(".ipynb") + ".md"
    return posixpath.relpath(inside, posixpath.dirname(file.src_uri) or ".")


# ---------------------------------------------------------------------------------------------- the reference


def entry(name: str) -> str:
    """Ask mkdocstrings for the description of a name, under all its names."""
    thing, names = REFERENCE["found"](name), REFERENCE["names"](name)
    title = " · ".join(names)
    lines = [f"::: ag.{name}", "    options:", f'      heading: "{title}"', f'      toc_label: "{names[0]}"']
    if inspect.isclass(thing):
        lines.append(f"      members: {methods(thing)}")
        if not made_by_users(thing):
            lines.append("      merge_init_into_class: false")  # then no signature is shown
    return "\n".join(lines)


def made_by_users(kind: type) -> bool:
    """Tell whether users call a class: a description has its parameters, or it needs none."""
    if getattr(kind, "_is_protocol", False) or issubclass(kind, (tuple, Exception)):
        return False
    described = any("Parameters\n" in (base.__doc__ or "") for base in kind.__mro__)
    arguments = inspect.signature(kind).parameters.values()
    return described or not any(x.default is x.empty and x.kind < x.VAR_POSITIONAL for x in arguments)


def methods(kind: type) -> list[str]:
    """List the methods and properties that a class adds; attributes are in its description."""
    return [name for name, x in vars(kind).items() if not name.startswith("_") and name not in INNER
            and (inspect.isfunction(x) or isinstance(x, (property, classmethod, staticmethod)))]
