"""README.md and docs/ are true: blocks run, commands, links and files exist, the layers are those that are enforced."""

from __future__ import annotations

import re
from contextvars import copy_context
from pathlib import Path

import pytest
from helpers.devices import WITHOUT_EXTENSION
from helpers.pages import ROOT, run

README = (ROOT / "README.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
MIXED_PRECISION = (ROOT / "docs" / "mixed_precision.md").read_text("utf-8")


def on_cpu_only(code: str) -> str:
    return f"{WITHOUT_EXTENSION}\n{code}"


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs_without_vulkan(number: int) -> None:
    run(on_cpu_only(BLOCKS[number]))


@pytest.mark.slow
@pytest.mark.vulkan
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs_on_vulkan(number: int, lavapipe: str, swiftshader: str) -> None:
    run(BLOCKS[number])


def test_the_blocks_on_mixed_precision_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", MIXED_PRECISION, re.M | re.S)
    assert len(blocks) == MIXED_PRECISION.count("```") / 2 >= 6
    monkeypatch.chdir(tmp_path)
    copy_context().run(exec, "".join(blocks), {})  # a copy, as they change the default type


def test_the_blocks_on_operands_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "operands.md").read_text("utf-8"), re.M | re.S)
    assert len(blocks) == 4
    run("".join(blocks))


def test_the_quick_start_is_short() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(lines) <= 15
    assert "dp_train" in BLOCKS[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_named_are_targets(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text("utf-8"), re.M))
    assert named <= targets, f"{page.name} names {sorted(named - targets)}, which the Makefile does not have"


def test_the_two_commands_come_first() -> None:
    first = re.search(r"^```(\w+)\n(.*?)^```$", README, re.M | re.S)
    assert first is not None and re.findall(r"^make (\w+)", first[2], re.M) == ["demo", "test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8"))
    broken = [link for link in links if not (page.parent / link).is_file()]
    assert not broken, f"{page.name} links to {broken}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    named = re.findall(r"`((?:ag|docs|examples|tests|tools|benchmarks)/[\w/.]+|\w+\.py)`", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing, f"{page.name} names {missing}"
