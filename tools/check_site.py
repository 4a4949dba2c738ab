"""Check the site that `make docs` built on a phone of 360 pixels: `python tools/check_site.py [FOLDER]`.

It needs Chromium and `pip install playwright`. No page may scroll sideways. Tables and pictures must be whole, and
large enough to be read. The copy button must copy programs.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

WIDTH = 360  # of a common phone, in CSS pixels
LEAST = 0.55  # of a picture's size: letters of 13 pixels keep 7
FAULTS = """least => {
    const wide = document.documentElement.clientWidth, found = [];
    const all = document.documentElement.scrollWidth;
    const scrolls = e => e && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
    if (all > wide) found.push(`the page is ${all} wide`);
    for (const table of document.querySelectorAll(".md-content table"))
        if (table.getBoundingClientRect().right > wide + 1 && !table.closest(".highlight"))
            found.push(`a table is cut: ${table.innerText.slice(0, 60)}`);
    for (const image of document.querySelectorAll(".md-content img")) {
        const name = image.src.split("/").pop().slice(0, 40), scale = image.width / image.naturalWidth;
        const right = image.getBoundingClientRect().right;
        if (right > wide + 1 && !scrolls(image.parentElement)) found.push(`${name} is cut`);
        if (scale < least) found.push(`${name} is shrunk to ${Math.round(100 * scale)} %`);
    }
    for (const code of document.querySelectorAll(".language-pycon code")) {
        code.setAttribute("data-md-copying", "");
        if (code.innerText.includes(">>>")) found.push(`a prompt is copied: ${code.innerText.slice(0, 60)}`);
        code.removeAttribute("data-md-copying");
    }
    return found;
}"""


def faults(page: Page, path: Path) -> list[str]:
    """List what is wrong with a page."""
    page.goto(path.as_uri())
    return [f"{path.name}: {fault}" for fault in page.evaluate(FAULTS, LEAST)]


def main(folder: Path) -> int:
    """Print every fault of every page, and return how many there are."""
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 740})
        pages = sorted(folder.rglob("*.html"))
        found = [fault for path in pages for fault in faults(page, path)]
    print("\n".join([*found, f"{len(pages)} pages at {WIDTH} pixels: {len(found)} faults"]))
    return len(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".make/docs")) > 0)
