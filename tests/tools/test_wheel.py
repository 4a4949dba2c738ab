"""Let pip make of the repository the source archive, wheels for two Pythons, and an editable installation.
Builds need packages of PyPI, and the wheels with Vulkan need a C++ compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from sysconfig import get_platform

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 900  # of one command; compiling the extension takes half a minute on an idle machine
OWN_PYTHON = getattr(sys, "_base_executable", sys.executable)
OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"
NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "not_built.txt")
NEEDED = ("g++", "glslangValidator", "spirv-opt", "spirv-val")

pytestmark = [pytest.mark.slow, pytest.mark.long,
              pytest.mark.skipif(sys.platform != "linux", reason="wheels of Linux")]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Return what a command prints, in an environment in which nothing leads to the repository."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "KP_STATIC_CXX")}
    done = subprocess.run([str(word) for word in command], cwd=cwd, text=True, timeout=LIMIT_S, check=False,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**kept, **environment})
    assert done.returncode == 0, f"{command}: exit status {done.returncode}\n{done.stdout[-6000:]}"
    return done.stdout


@cache
def other_python() -> str | None:
    """A Python of this machine of another version than this one, that can compile extensions; the newest there is."""
    code = ("import ensurepip, os, sys, sysconfig; assert os.path.exists(sysconfig.get_path('include') + '/Python.h');"
            "print('%d.%d' % sys.version_info[:2])")
    for version in (f"3.{minor}" for minor in range(14, 9, -1)):
        places = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
        for python in map(str, filter(None, places)) if version != OWN else ():
            said = subprocess.run([python, "-c", code], capture_output=True, text=True).stdout
            if said.strip() == version:
                return python
    return None


def environment(folder: Path, python: str) -> Path:
    """A fresh virtual environment; its Python."""
    subprocess.run([python, "-m", "venv", folder], check=True, timeout=LIMIT_S)
    return folder / "bin" / "python"


def without_tools(tmp_path: Path, python: Path) -> dict[str, str]:
    """Settings of a machine without a compiler, shader tools or anything else in PATH."""
    empty = tmp_path / "empty"
    empty.mkdir(exist_ok=True)
    settings = {"PATH": f"{python.parent}:{empty}", "CC": "", "CXX": ""}
    assert not any(shutil.which(tool, path=settings["PATH"]) for tool in NEEDED)
    return settings


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as git has it, as far as names tell: nothing in it was made."""
    folder = tmp_path_factory.mktemp("clone") / "ag"
    shutil.copytree(ROOT, folder, ignore=NOT_COPIED)
    for made in ("shader/spv", "cpu/built"):
        shutil.rmtree(folder / "ag" / "engine" / "backends" / made, ignore_errors=True)
    return folder


@pytest.fixture(scope="module")
def archive(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive."""
    for tool in NEEDED:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed, so no wheel with Vulkan can be built")
    folder = tmp_path_factory.mktemp("archive")
    copy = folder / "source"
    shutil.copytree(clone, copy)  # the clone itself stays as it is
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, copy, cwd=folder)
    (found,) = folder.glob("*.tar.gz")
    return found


def wheel_of(archive: Path, folder: Path, python: Path, **settings: str) -> Path:
    """The wheel that pip builds."""
    run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, archive, cwd=folder, **settings)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_a_wheel_trains_without_clone_and_compiler(archive: Path, tmp_path: Path,
                                                   request: pytest.FixtureRequest) -> None:
    """Of another Python, if there is one: `make wheel` builds and checks one for this."""
    user = environment(tmp_path / "user", other_python() or OWN_PYTHON)
    wheel = wheel_of(archive, tmp_path, user)  # built in an environment of pip's own
    print(run(sys.executable, ROOT / "tools" / "check_wheel.py", wheel, cwd=tmp_path))
    bare = without_tools(tmp_path, user)
    run(user, "-m", "pip", "install", "--only-binary", ":all:", wheel, cwd=tmp_path, **bare)
    assert "cpu: " in run(user, "-W", "error", ROOT / "tools" / "try_wheel.py", "cpu", cwd=tmp_path, **bare)
    (extension,) = (tmp_path / "user").rglob("_kp.*.so")
    linked = run("ldd", extension, cwd=tmp_path)
    assert "libc." in linked and "libvulkan" not in linked  # which is opened when a device is asked for
    request.getfixturevalue("lavapipe")
    (icd,) = [path for path in os.environ.get("VK_ICD_FILENAMES", "").split(os.pathsep) if "lvp" in path] or [""]
    driver = {"VK_ICD_FILENAMES": icd} if icd else {}
    devices = run(user.parent / "ag", "devices", cwd=tmp_path, **bare, **driver)
    assert "llvmpipe" in devices and "Every device computed a test product correctly." in devices
    tested = run(user.parent / "ag", "selftest", cwd=tmp_path, **bare, **driver)
    assert "ok     vulkan:0  attention" in tested and "\n0 of 32 checks failed." in tested
    trained = run(user, "-W", "error", ROOT / "tools" / "try_wheel.py", "vulkan:0", cwd=tmp_path, **bare, **driver)
    assert "vulkan:0: " in trained


def test_a_bare_clone_without_tools_gives_a_wheel_for_the_cpu_that_says_why(clone: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", OWN_PYTHON)
    copy = tmp_path / "ag-clone"
    shutil.copytree(clone, copy)
    left = copy / "build" / f"lib.{get_platform()}-{sys.implementation.cache_tag}" / "ag"  # of an earlier build
    left.mkdir(parents=True)
    (left / "old.py").touch()
    bare = without_tools(tmp_path, python)
    wheel = wheel_of(copy, tmp_path, python, **bare)
    run(sys.executable, ROOT / "tools" / "check_wheel.py", "--cpu-only", wheel, cwd=tmp_path)
    run(python, "-m", "pip", "install", wheel, cwd=tmp_path, **bare)
    assert "cpu: " in run(python, "-W", "error", ROOT / "tools" / "try_wheel.py", "cpu", cwd=tmp_path, **bare)
    said = run(python, "-m", "ag", "devices", cwd=tmp_path, **bare)
    (why,) = [line for line in said.splitlines() if line.startswith("Vulkan: ")]
    assert "glslangValidator and spirv-opt and spirv-val not found" in why and "no C++ compiler that works" in why
    assert "apt install g++" in why and "pip install ag-autograd" in why


def test_type_checkers_see_an_editable_install_and_a_folder_does_not_hide_it(clone: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", OWN_PYTHON)
    copy = tmp_path / "work" / "ag"  # as a clone is called
    shutil.copytree(clone, copy)
    run(python, "-m", "pip", "install", "-e", copy, cwd=tmp_path, **without_tools(tmp_path, python))
    said = run(python, "-c", "import ag; print(ag.__file__, ag.ag_tensor([1.0]).shape)", cwd=copy.parent)
    assert str(copy / "ag" / "__init__.py") in said and "so the CPU computes with numpy" in said  # without a compiler
    program = tmp_path / "work" / "program.py"
    program.write_text("import ag\n\nreveal_type(ag.ag_tensor([1.0]))\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, program]
    assert 'Revealed type is "ag.autograd.tensor.Tensor"' in run(*mypy, cwd=program.parent)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="cibuildwheel needs Python 3.11")
def test_cibuildwheel_builds_for_every_python_and_both_processors(tmp_path: Path) -> None:
    """It refuses options that it does not know; building itself needs containers."""
    python = environment(tmp_path / "venv", OWN_PYTHON)
    run(python, "-m", "pip", "install", "cibuildwheel>=3.1", cwd=tmp_path)
    for processor in ("x86_64", "aarch64"):
        said = run(python, "-m", "cibuildwheel", "--platform", "linux", "--archs", processor,
                   "--print-build-identifiers", ROOT, cwd=tmp_path)
        assert said.split() == [f"cp3{minor}-manylinux_{processor}" for minor in range(10, 15)]


def test_the_tests_of_the_source_archive_run(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as file:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        file.extractall(tmp_path, **safe)
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    wanted = {"Makefile", "CHANGELOG.md", "LICENSE", "docs/architecture.md", "examples/dp_iris.py", "tests/conftest.py",
               "tests/golden/golden.json", "tools/setup.sh", "third_party/kp/kp-0.9.0.tar.gz", "third_party/kp/NOTICE",
               "benchmarks/bench_step.py", "ag/engine/backends/shader/spv/manifest.json"}
    assert [name for name in sorted(wanted) if not (source / name).is_file()] == []
    stray = [path for pattern in ("*.so", "*.pyc", "not_built.txt") for path in source.rglob(pattern)]
    assert stray == []
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    collected = run(*pytest_, "--collect-only", "-m", "not slow", cwd=source, PYTHONPATH=str(source))
    assert "error" not in collected.splitlines()[-1]
    some = ["tests/test_architecture.py", "tests/ops/test_operands.py", "tests/engine/test_shape.py",
            "tests/kompute/test_kp_patch.py", "tests/docs/test_errors_page.py"]
    ran = run(*pytest_, *some, "-m", "not vulkan", cwd=source, PYTHONPATH=str(source))
    assert " passed" in ran.splitlines()[-1]
