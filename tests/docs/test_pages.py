"""Every Python block of README.md and docs/ runs: those of a page one after the other, as one program.

Blocks that begin with ``py hardware`` or ``py elsewhere`` cannot run here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.devices import WITHOUT_EXTENSION
from helpers.pages import PAGES, ROOT, blocks, run

ELSEWHERE = {
    "docs/adding_an_op.md": "test_adding_an_op.py", "docs/interop.md": "test_interop.py",
    "docs/porting_from_ggmlr.md": "test_porting.py", "docs/porting_from_pytorch.md": "test_porting.py",
}
QUICK = {"README.md", "docs/operands.md", "docs/mixed_precision.md", "docs/quick_start.md", "docs/tutorials/tensors.md"}
ON_VULKAN = {"README.md", "docs/quick_start.md", "docs/about/equal_replicas.md", "docs/tutorials/tensors.md",
             "docs/recipes/mixed_devices.md"}
WITH_BLOCKS = {name: page for name, page in PAGES.items() if blocks(page) and name not in ELSEWHERE}


def in_folder(folder: Path, name: str, before: str = "") -> None:
    run("\n".join([before, *blocks(WITH_BLOCKS[name])]), folder=folder)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
                                  for name in WITH_BLOCKS])
def test_the_blocks_run_without_vulkan(name: str, tmp_path: Path) -> None:
    in_folder(tmp_path, name, WITHOUT_EXTENSION)


@pytest.mark.slow
def test_the_blocks_with_albumentations(tmp_path: Path) -> None:
    pytest.importorskip("albumentations", reason="albumentations is not installed, so its blocks were not run")
    pytest.importorskip("PIL", reason="Pillow is not installed, so no image folder was made for albumentations")
    page = PAGES["docs/recipes/augmentation.md"]
    code = re.findall(r"^```(?:python|py albumentations)\n(.*?)^```$", page, re.M | re.S)
    assert len(code) == len(blocks(page)) + 2
    offline = 'import os\nos.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"\n'  # it asks PyPI for a newer version
    run(offline + "\n".join(code), folder=tmp_path)


@pytest.mark.slow
def test_the_blocks_with_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed, so its recipe was not run")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed, so the recipe of ONNX was not run")
    run("\n".join(re.findall(r"^```py onnx\n(.*?)^```$", PAGES["docs/recipes/onnx.md"], re.M | re.S)), folder=tmp_path)


@pytest.mark.slow
@pytest.mark.vulkan
@pytest.mark.parametrize("name", sorted(ON_VULKAN))
def test_the_blocks_run_on_vulkan(name: str, tmp_path: Path, lavapipe: str, swiftshader: str) -> None:
    in_folder(tmp_path, name)


def test_the_lists_name_pages() -> None:
    assert set(WITH_BLOCKS) >= QUICK | ON_VULKAN and set(ELSEWHERE) <= set(PAGES)
    assert all((ROOT / "tests" / "docs" / test).is_file() for test in ELSEWHERE.values())


DEVELOPERS = {f"docs/{name}.md" for name in ("architecture", "internals", "capture", "glossary", "kernels",
                                             "adding_an_op")}
LONGEST = 30  # words, as in docstrings


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a page's prose: no code, tables, headings or pictures."""
    page = re.sub(r"^```.*?^```$|<!--.*?-->", "", page, flags=re.M | re.S)
    prose = "\n".join(line for line in page.splitlines() if not line.startswith(("|", "#", ":::", "!", "    ")))
    prose = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "x", prose))
    for part in re.split(r"\n\s*\n|\n\* ", prose):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(part.split()))


@pytest.mark.parametrize("name", sorted({*PAGES} - DEVELOPERS))
def test_sentences_of_pages_for_users_are_short(name: str) -> None:
    assert [sentence for sentence in sentences(PAGES[name]) if len(sentence.split()) > LONGEST] == []


def test_a_long_sentence_is_seen() -> None:
    page = "# Title\n\nShort. " + "word " * 31 + "end.\n\n```python\n" + "x " * 40 + "\n```\n"
    assert [len(sentence.split()) for sentence in sentences(page)] == [1, 32, 0]


@pytest.mark.parametrize("name", PAGES)
def test_every_kind_of_block_is_known(name: str) -> None:
    kinds = re.findall(r"^```(?=(.*)\n)", PAGES[name], re.M)[::2]
    assert set(kinds) <= {"python", "py onnx", "py torch", "py torchvision", "py albumentations", "py hardware",
                          "py elsewhere", "sh", "text", "r", "glsl"}
    for kind in {"py hardware", "py elsewhere"} & set(kinds):
        assert "not run by the" in " ".join(PAGES[name].split()), f"{name} has a {kind} block, and does not say so"
