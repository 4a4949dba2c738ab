"""README.md and docs/ are true: commands, links and files exist, and the README begins as it promises."""

from __future__ import annotations

import re

import pytest
from helpers.pages import PAGES, ROOT, blocks

README = PAGES["README.md"]


def test_the_quick_start_is_short() -> None:
    first = blocks(README)[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 15
    assert "dp_train" in first


def test_the_readme_is_short_and_shows_a_picture() -> None:
    assert len(README.splitlines()) < 120
    pictures = re.findall(r"^!\[[^]]+\]\((\S+)\)", README, re.M)
    assert pictures and len(README[: README.index(pictures[0])].splitlines()) < 60


@pytest.mark.parametrize("page", PAGES)
def test_commands_named_are_targets(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", PAGES[page], re.M))
    assert named <= targets, f"{page} names {sorted(named - targets)}, which the Makefile does not have"


def test_two_commands_do_all_the_set_up() -> None:
    blocks_of_commands = re.findall(r"^```sh\n(.*?)^```$", README, re.M | re.S)
    assert [re.findall(r"^make (\w+)", block, re.M) for block in blocks_of_commands] == [[], ["demo", "test"]]


def test_the_first_screen_says_what_how_and_on_which_cards() -> None:
    first = "\n".join(README.splitlines()[:60])
    assert re.search(r"^```sh\npip install git\+https://", first, re.M) and "```python" in first and "licence" in first
    assert all(f"| {card}" in first for card in ("NVIDIA", "AMD, Intel", "Apple"))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", PAGES[page])
    broken = [link for link in links if not ((ROOT / page).parent / link).is_file()]
    assert not broken, f"{page} links to {broken}"


def commands() -> list[str]:
    rows = re.findall(r"^\| .* \| (.*) \|$", PAGES["docs/about/what_works.md"], re.M)
    return [command for row in rows for command in re.findall(r"`([^`]+)`", row) if command != "--json"]


@pytest.mark.parametrize("command", commands())
def test_what_shows_a_feature_is_there(command: str) -> None:
    files = re.findall(r"\b(?:examples|tests|benchmarks)/[\w./]+", command)
    assert files or command == "python -m ag doctor", f"{command} names nothing"
    for file in files:
        assert (ROOT / file).is_file(), f"{command}: there is no {file}"
    for words in re.findall(r" -k (\w+)", command):
        names = re.findall(r"^def (test_\w+)", (ROOT / files[-1]).read_text("utf-8"), re.M)
        assert any(words in name for name in names), f"{command} selects nothing"


@pytest.mark.parametrize("page", PAGES)
def test_files_named_exist(page: str) -> None:
    text = re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.M | re.S)
    named = re.findall(r"`((?:ag|docs|examples|tests|tools|benchmarks)/[\w/.]+|\w+\.py)`", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing, f"{page} names {missing}"
