"""docs/performance.md and its pictures are made of the files in benchmarks/results."""

from __future__ import annotations

import html
import json
import re
from math import log2
from runpy import run_path
from typing import Any

import pytest
from helpers.pages import ROOT

MADE: dict[str, Any] = run_path(str(ROOT / "tools" / "pictures.py"))
PAGE = (ROOT / "docs" / "performance.md").read_text("utf-8")
AGAIN = "run `python tools/pictures.py`"


@pytest.mark.parametrize("name", MADE["pictures"]())
def test_a_picture_is_that_of_its_file(name: str) -> None:
    assert (ROOT / "docs" / "images" / name).read_text("utf-8") == MADE["pictures"]()[name], AGAIN
    assert f"](images/{name})" in PAGE


def boxes(picture: str) -> list[tuple[str, float, float, float, float]]:
    """Texts with the left, right, top and bottom edge of what they cover; letters are at most 0.62 em wide."""
    found = []
    for x, y, style, anchor, words in re.findall(
            r'<text x="([\d.]+)" y="([\d.]+)" class="(\w+)" text-anchor="(\w+)">([^<]*)</text>', picture):
        em = {"head": 15, "group": 13, "small": 12}[style]
        width = 0.62 * em * len(html.unescape(words)) * (0.9 if style != "small" else 0.85)
        left = float(x) - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
        found.append((words, left, left + width, float(y) - 0.8 * em, float(y) + 0.25 * em))
    return found


def rectangles(picture: str) -> list[tuple[float, ...]]:
    return [tuple(map(float, found)) for found in re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', picture)]


@pytest.mark.parametrize("name", MADE["pictures"]())
def test_each_bar_is_as_long_as_its_number(name: str) -> None:
    found = MADE["steps"](name.replace(".svg", ".json"))
    ratios = [peers[peer]["x_torch_eager"] for peers in found.values() for peer in MADE["PEERS"] if peer in peers]
    drawn = rectangles(MADE["pictures"]()[name])
    assert len(drawn) == len(ratios) > 10
    longest = max(range(len(ratios)), key=lambda i: abs(log2(ratios[i])))
    unit = drawn[longest][2] / abs(log2(ratios[longest]))  # pixels for a factor of two
    one = drawn[longest][0] if ratios[longest] > 1 else drawn[longest][0] + drawn[longest][2]
    for (left, _, width, _), ratio in zip(drawn, ratios, strict=True):
        assert abs(width - max(1.0, unit * abs(log2(ratio)))) < 0.05, ratio
        assert abs((left if ratio > 1 else left + width) - one) < 1.0, ratio


@pytest.mark.parametrize("name", MADE["pictures"]())
def test_texts_are_inside_a_phone_and_lie_on_nothing(name: str) -> None:
    picture = MADE["pictures"]()[name]
    width, height = map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', picture)[0])
    texts = boxes(picture)
    assert width <= 360 and len(texts) == picture.count("<text ")
    bars = [("bar", x, x + w, y, y + h) for x, y, w, h in rectangles(picture)]
    lines = [("line", *map(float, (x, x2, y, y2))) for x, y, x2, y2 in re.findall(
        r'<path d="M([\d.]+) ([\d.]+) L([\d.]+) ([\d.]+)"', picture)]
    assert all(left >= 0 and right <= width and top >= 0 and low <= height for _, left, right, top, low in texts)
    for i, (words, left, right, top, low) in enumerate(texts):
        for other, left2, right2, top2, low2 in [*texts[i + 1 :], *bars, *lines]:
            assert left >= right2 or left2 >= right or top >= low2 or top2 >= low, f"{words} lies on {other}"


def test_tables_are_those_of_their_files() -> None:
    assert PAGE.count("<!-- table: ") == 9 and PAGE.count("<!-- words: ") == 4
    assert MADE["with_tables"](PAGE) == PAGE, AGAIN


def test_jax_has_a_column_and_bars_where_a_file_has_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "step_cpu.json").read_text("utf-8"))
    found["results"] = [row for row in found["results"] if row["peer"] != "jax jit"]
    marks = "<!-- table: step_cpu.json -->\n\n<!-- words: step_cpu.json -->\nold\n<!-- end -->\n"
    monkeypatch.setitem(MADE["comm_table"].__globals__, "RESULTS", tmp_path)
    for row in found["results"]:
        row.pop("x_jax_jit", None)
    found["machine"].pop("jax", None)
    (tmp_path / "step_cpu.json").write_text(json.dumps(found), "utf-8")
    assert "jax" not in (MADE["with_tables"](marks) + MADE["bars"]("step_cpu.json")).lower()
    for row in found["results"]:
        row["x_jax_jit"] = 4.0 if row["workload"] == "W3" else 5.0
    found["results"].append({**found["results"][0], "workload": "W3", "peer": "jax jit", "us_per_step": 4321.0,
                             "x_torch_eager": 1.25, "x_jax_jit": 1.0})
    found["machine"]["jax"] = "0.1.2"
    (tmp_path / "step_cpu.json").write_text(json.dumps(found), "utf-8")
    page, picture = MADE["with_tables"](marks), MADE["bars"]("step_cpu.json")
    table = [line.split(" | ") for line in page.splitlines() if line.startswith("|")]
    assert [row[-1] for row in table] == ["jax jit |", "---: |", "– |", "– |", "– |", "4,321 |", "– |"]
    assert "* Against what `jax.jit` makes of a whole step, captured steps here are 4 to 5 times as fast." in page
    assert ", PyTorch " in page and " and JAX 0.1.2." in page
    assert ">jax jit 1.2x<" in picture and picture.count('class="f4"') == 1


def test_sentences_follow_the_files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "step_cpu.json").read_text("utf-8"))
    for row in found["results"]:
        if row["peer"] == "ag captured":
            row["x_torch_eager"] = 0.25 if row["workload"] == "W4" else 40.0
            row["same_work"] = row["workload"] != "W1"
    monkeypatch.setitem(MADE["comm_table"].__globals__, "RESULTS", tmp_path)
    for driver in ("numpy 2.4.6", "kernels for x86_64-v3, numpy 2.4.6"):
        found["machine"]["device"] = f"DeviceInfo(name='cpu', driver='{driver}')"
        (tmp_path / "step_cpu.json").write_text(json.dumps(found), "utf-8")
        page = MADE["with_tables"]("<!-- words: step_cpu.json -->\nold\n<!-- end -->\n")
        assert "its eager step, captured steps here are 0.25 to 40 times as fast; slower: ResNet-8, 32 images." in page
        assert "Losses differ: perceptron 4-32-3, 32 samples (ag captured)." in page and "old\n" not in page
        assert f"({driver})" in page and ("older than the kernels in C" in page) is driver.startswith("numpy")
