"""docs/adding_an_op.md is true: its blocks, in a copy of the repository, change four files, and its tests pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.pages import ROOT

from ag.engine.backends.cpu.library import library

pytestmark = pytest.mark.slow  # it copies the repository

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
SPIRV = Path("ag", "engine", "backends", "shader", "spv")
VULKAN = Path("ag", "engine", "backends", "vulkan")
NAMES = "ag/ops/__init__.py"
KERNELS, SHADERS, OPS, ROWS = FILES = (
    "ag/engine/kernels/activation.py", "shaders/functions.glsl", "ag/ops/activation.py",
    "tests/table/cases_pointwise.py")


def blocks() -> dict[str, str]:
    """The blocks of the page by the file they go to; the one that no file is named for is the trial, ``""``."""
    return all_blocks()[0]


def all_blocks() -> tuple[dict[str, str], dict[str, str]]:
    """Those of the op with kernels of its own, and those of functions and ops in a few lines."""
    page = (ROOT / "docs" / "adding_an_op.md").read_text("utf-8")
    found: dict[str, str] = {}
    short: dict[str, str] = {}
    end = 0
    for match in FENCE.finditer(page):
        introduction = page[end : match.start()].strip().split("\n\n")[-1]
        path = re.search(r"^(At the end|In the list `\w+`|A line|An op) of `(\S+)`", introduction)
        rooms = short if path and path[1].startswith("A") and path[1] != "At the end" else found
        rooms[path[2] if path else ""] = match[2]
        end = match.end()
    return found, short


def run(folder: Path, *command: str, limit: int = 300, **environment: str) -> str:
    """Python in the copy, which hides the package that is installed."""
    environment = {**os.environ, "PYTHONPATH": str(folder), **environment}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def git(folder: Path, *arguments: str) -> list[str]:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


def edit(path: Path, old: str, new: str) -> None:
    before, place, after = path.read_text("utf-8").partition(old)
    assert place, f"{path.name} has no {old!r} any more; docs/adding_an_op.md must name the new place"
    path.write_text(before + new + after, "utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with the op of the page, not committed, and the kernels that were compiled before."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository, so nothing says which files are the project's")
    folder = tmp_path_factory.mktemp("repository")
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "before")
    if (ROOT / SPIRV).is_dir():
        shutil.copytree(ROOT / SPIRV, folder / SPIRV)
    for extension in (ROOT / VULKAN).glob("_kp*"):
        shutil.copy(extension, folder / VULKAN)
    found = blocks()
    assert set(found) == {*FILES, ""}
    for name in (KERNELS, SHADERS, OPS):
        separator = "\n" if name == SHADERS else "\n\n"
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(separator + found[name])
    edit(folder / OPS, '"ag_log_softmax"]', '"ag_log_softmax",\n           "ag_smooth_relu"]')
    edit(folder / NAMES, "\nsoftmax = ag_softmax\n", "\nsoftmax = ag_softmax\nsmooth_relu = ag_smooth_relu\n")
    edit(folder / ROWS, "\nRECTIFIERS = [\n", "\nRECTIFIERS = [\n" + found[ROWS])
    return folder


def promised_tests(copy: Path, *selection: str) -> int:
    modules = ["tests/table", "tests/engine/kernels/test_kernel_reference.py",
               "tests/engine/compile/test_fuse_elementwise.py", "tests/test_api.py"]
    text = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "smooth_relu or every_op_has_a_row",
               *selection, *modules)
    passed = re.search(r"(\d+) passed", text)
    assert passed is not None and "failed" not in text, text
    return int(passed[1])


def test_no_file_changes_but_those_that_the_page_names(copy: Path) -> None:
    changed = sorted((*FILES, NAMES))
    assert git(copy, "diff", "--name-only") == changed
    assert git(copy, "status", "--short", "--porcelain") == [f" M {name}" for name in changed]


def test_the_trial_on_the_cpu(copy: Path) -> None:
    run(copy, "-W", "error", "-c", blocks()[""])
    run(copy, "-W", "error", "-c", "import doctest, ag, ag.ops.activation as module\n"
        "found = doctest.testmod(module, extraglobs={'ag': ag})\nassert found.attempted > 4 and not found.failed")


def test_an_error_of_layers_names_the_activation(copy: Path) -> None:
    run(copy, "-c", "import ag\ntry: ag.ag_linear(1, 1, activation='swish')\n"
        "except ValueError as error: assert 'relu' in str(error) and 'smooth_relu' in str(error), error")


def test_the_promised_tests_in_numpy(copy: Path) -> None:
    assert promised_tests(copy, "-m", "not vulkan") > 20


@pytest.mark.long
@pytest.mark.skipif(library() is None, reason="no kernels in C")
def test_the_promised_tests_in_c(copy: Path) -> None:
    run(copy, "tools/cpu_kernels.py")
    run(copy, "-c", "from ag.engine.backends.cpu.library import library; assert 'smooth_relu' in library().kernels")
    assert promised_tests(copy, "-m", "not vulkan") > 20


def compiled(copy: Path) -> None:
    if shutil.which("glslangValidator") is None or shutil.which("spirv-opt") is None:
        pytest.skip("no shader compiler: sudo apt-get install glslang-tools spirv-tools")
    run(copy, "kernels_build.py")
    for name in ("smooth_relu", "smooth_relu_grad"):
        assert (copy / SPIRV / f"{name}.spv").is_file()


@pytest.mark.long
@pytest.mark.vulkan
def test_the_promised_tests_on_vulkan(copy: Path, lavapipe: str, swiftshader: str) -> None:
    compiled(copy)
    assert promised_tests(copy, "-m", "vulkan") > 20


@pytest.mark.vulkan
def test_the_trial_on_vulkan(copy: Path, lavapipe: str) -> None:
    compiled(copy)
    code, kernels, rest = blocks()[""].partition("[event.kernel for event in launches.events]")
    assert kernels and rest == ' == ["matmul", "fused"]\n'
    run(copy, "-W", "error", "-c", f"import ag\nag.ag_device({lavapipe!r})\n{code}"
        "[event.kernel for event in launches.events if event.kernel != 'transfer'] == ['matmul_chain']")


@pytest.mark.long
def test_the_tests_that_know_all_ops_pass(copy: Path) -> None:
    """In numpy, so that they also show that everything works without kernels in C."""
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not vulkan and not slow", "-k", "not test_types",
        *map(str, sorted(copy.glob("tests/test_[ahln]*.py"))), "tests/ops", "tests/docs/test_docstrings.py",
        "tests/docs/test_site.py", "tests/engine/compile", limit=900, AG_CPU="numpy")


@pytest.mark.long
def test_types_and_style_are_right(copy: Path) -> None:
    run(copy, "-m", "ruff", "check", ".")
    (copy / "user.py").write_text("import ag\n\ny: ag.Tensor = ag.ag_smooth_relu(1.0, beta=2.0)\n", "utf-8")
    run(copy, "-m", "mypy", "--strict", "user.py", "ag")


def test_a_function_is_three_lines_in_three_files(copy: Path, tmp_path: Path) -> None:
    """And an op of other ops a few lines in one, with all tests that follow from a row."""
    folder = tmp_path / "repository"
    shutil.copytree(copy, folder, symlinks=True)
    lines = all_blocks()[1]
    places = {"shaders/functions.glsl": "", "ag/ops/functions.py": "\nsquare = _row(",
              "tests/table/cases_functions.py": '\n    row("sin", math.sin', "ag/ops/compositions.py": ""}
    assert lines.keys() == places.keys() and {len(x.splitlines()) for x in lines.values()} == {1, 4}
    for name, before in places.items():
        if before:
            edit(folder / name, before, "\n" + lines[name].rstrip() + before)
        else:
            with (folder / name).open("a", encoding="utf-8") as file:
                file.write("\n\n" + lines[name])
    edit(folder / "ag/ops/compositions.py", '"prelu", ', '"prelu", "ptp", ')
    edit(folder / "tests/table/cases_functions.py", '    statistic("amax"',
         '    statistic("ptp", along(np.ptp), draw=spread),\n    statistic("amax"')
    if library() is not None:
        run(folder, "tools/cpu_kernels.py")
    text = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not vulkan and not slow", "-k",
               "logit or ptp", "tests/table", "tests/engine/kernels/test_kernel_reference.py")
    passed = re.search(r"(\d+) passed", text)
    assert passed is not None and int(passed[1]) > 50 and "failed" not in text, text
    run(folder, "-c", "import ag; p = ag.ag_param([[0.2]])\nwith ag.with_grad_tape(): loss = p.logit().sum()\n"
        "assert abs(ag.backward(loss)[p].item() - 6.25) < 1e-5 and ag.ops.ptp([[1.0, 4.0]]).item() == 3.0")
