"""docs/adding_an_op.md is true: its blocks, put where it says in a copy of the repository, pass the tests it promises.

Everything runs in processes of its own, so the op is unknown to the other tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def blocks() -> dict[str, str]:
    """The blocks of the page by the file they go to; the one that no file is named for is the trial, ``""``."""
    page = (ROOT / "docs" / "adding_an_op.md").read_text("utf-8")
    found = {}
    end = 0
    for match in FENCE.finditer(page):
        introduction = page[end : match.start()].strip().splitlines()[-1]
        path = re.search(r"`(\w+/\S+)`[^`]*(`__all__`)?:$", introduction)
        found[path[1] if path else ""] = match[2]
        end = match.end()
    return found


def run(folder: Path, *command: str) -> str:
    """Python in the copy, which hides the package that is installed."""
    done = subprocess.run([sys.executable, *command], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text("utf-8") + text, "utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with the op of the page."""
    folder = tmp_path_factory.mktemp("repository")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("ag", "shaders", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name in ("kernels_build.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    found = blocks()
    assert set(found) == {"ag/ops/activation.py", "ag/__init__.py", "", "shaders/softplus.comp",
                          "shaders/softplus_grad.comp", "tests/table/cases_pointwise.py"}
    append(folder / "ag/ops/activation.py", "\n\n" + found["ag/ops/activation.py"])
    append(folder / "ag/__init__.py", "\n" + found["ag/__init__.py"] + '__all__ += ["ag_softplus"]\n')
    for name in ("shaders/softplus.comp", "shaders/softplus_grad.comp"):
        (folder / name).write_text(found[name], "utf-8")
    cases = folder / "tests/table/cases_pointwise.py"
    before, heading, after = cases.read_text("utf-8").partition("\nRECTIFIERS = [\n")
    assert heading, "cases_pointwise.py has no list RECTIFIERS any more; docs/adding_an_op.md must name the new place"
    cases.write_text(before + heading + found["tests/table/cases_pointwise.py"] + after, "utf-8")
    return folder


def promised_tests(copy: Path, *selection: str) -> int:
    """Run the tests that the page promises; how many passed."""
    modules = ["tests/table", "tests/engine/kernels/test_kernel_reference.py"]
    text = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "softplus or every_op_has_a_row",
               *selection, *modules)
    passed = re.search(r"(\d+) passed", text)
    assert passed is not None and "failed" not in text, text
    return int(passed[1])


def test_the_op_on_the_cpu(copy: Path) -> None:
    run(copy, "-W", "error", "-c", blocks()[""])
    run(copy, "-W", "error", "-c", "import doctest, ag.ops.activation as module\n"
        "found = doctest.testmod(module)\nassert found.attempted > 4 and not found.failed")
    assert promised_tests(copy, "-m", "not vulkan") > 20


def test_the_kernels_compile(copy: Path) -> None:
    if shutil.which("glslangValidator") is None or shutil.which("spirv-opt") is None:
        pytest.skip("no shader compiler: sudo apt-get install glslang-tools spirv-tools")
    run(copy, "kernels_build.py")
    for name in ("softplus", "softplus_grad"):
        assert (copy / "ag/engine/backends/vulkan/spv" / f"{name}.spv").is_file()


@pytest.mark.vulkan
def test_the_op_on_vulkan(copy: Path, lavapipe: str, swiftshader: str) -> None:
    run(copy, "kernels_build.py")
    assert promised_tests(copy, "-m", "vulkan") > 20
