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
# Files outside docs/ that are pages here, and files that pages let readers download.
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
DOWNLOADS = {f"examples/data/{name}": f"downloads/{name}" for name in ("digits.csv.gz", "iris.csv", "sonnets.txt")}
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
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    files.append(File.generated(config, "messages.md", content=messages()))
    for source, page in DOWNLOADS.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
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
    markdown = REFERENCE["filled"](markdown)
    if page.file.src_uri == "reference/index.md":
        markdown = markdown.replace("<!-- all names -->", REFERENCE["table"]())
    return REFERENCE["NAME"].sub(lambda found: entry(found[1]), markdown)


def target(link: str, source: str, file: File) -> str:
    """Where a link of the file `source` leads, on the page that is made of it."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    inside = PAGES.get(path) or DOWNLOADS.get(path)
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
    """What mkdocstrings is asked for: the description of a name, under all its names."""
    thing, shown = REFERENCE["found"](name), REFERENCE["shown"](name)
    title = " · ".join([shown, *REFERENCE["other_names"](name)])
    lines = [f"::: ag.{name}", "    options:", f'      heading: "{title}"', f'      toc_label: "{shown}"']
    if inspect.isclass(thing):
        lines.append(f"      members: {methods(thing)}")
        if getattr(thing, "_is_protocol", False):  # which is never made: its __init__ is typing's own
            lines.append("      merge_init_into_class: false")
    return "\n".join(lines)


def methods(kind: type) -> list[str]:
    """The methods and properties that a class adds; attributes are in its description."""
    return [name for name, x in vars(kind).items() if not name.startswith("_") and name not in INNER
            and (inspect.isfunction(x) or isinstance(x, (property, classmethod, staticmethod)))]
