"""Other systems' compilers take our C: clang, as on macOS, and MinGW, with the headers of Windows."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VULKAN = Path("/usr/include")
NATIVE = sorted(str(path) for path in (ROOT / "ag" / "native").glob("*.c"))
MINGW = "x86_64-w64-mingw32-{}-posix"

pytestmark = pytest.mark.slow


def compiler(command: str, package: str) -> str:
    if shutil.which(command) is None:
        pytest.skip(f"there is no {command} here (Debian's package {package}; make setup-test installs it)")
    return command


@pytest.fixture
def kompute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Arguments with which the whole extension is parsed, but for Python's headers and Vulkan's."""
    pybind11 = pytest.importorskip("pybind11")
    if not (VULKAN / "vulkan/vulkan.hpp").is_file():
        pytest.skip("there are no headers of Vulkan here (Debian's package libvulkan-dev; make setup installs it)")
    for folder in ROOT, ROOT / "tools", ROOT / "third_party/kp":
        monkeypatch.syspath_prepend(folder)
    import recipe

    import native_build

    source = recipe.prepare(tmp_path)
    folders = [ROOT / "third_party/kp/src", source, source / "src/include", source / "python/src",
               pybind11.get_include()]
    yield ["-std=c++17", "-fsyntax-only", *(f"-D{name}={value}" for name, value in native_build.MACROS.items()),
           *(f"-I{folder}" for folder in folders), str(ROOT / "third_party/kp/src/unity.cpp")]


@pytest.fixture
def windows(tmp_path: Path) -> list[str]:
    """Arguments that find Python's headers, as they are on Windows, and Vulkan's alone of this system's."""
    python, others = tmp_path / "python", tmp_path / "others"
    python.mkdir()
    others.mkdir()
    for header in Path(sysconfig.get_path("include")).iterdir():
        (python / header.name).symlink_to(header)
    (python / "pyconfig.h").unlink()
    (python / "pyconfig.h").write_text((Path(__file__).with_name("pyconfig_windows.h")).read_text("utf-8"), "utf-8")
    for name in "vulkan", "vk_video":
        if (VULKAN / name).is_dir():
            (others / name).symlink_to(VULKAN / name)
    return [f"-I{python}", f"-I{others}"]


def parse(*arguments: str) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


def test_kompute_with_clang(kompute: list[str]) -> None:
    parse(compiler("clang++", "clang"), f"-I{sysconfig.get_path('include')}", *kompute)


@pytest.mark.long
def test_kompute_with_mingw(kompute: list[str], windows: list[str]) -> None:
    command = compiler(MINGW.format("g++"), "g++-mingw-w64-x86-64-posix")
    parse(command, "-DNOMINMAX", "-DWIN32_LEAN_AND_MEAN", *windows, *kompute)


def test_vulkan_behind_the_headers_of_windows(tmp_path: Path, windows: list[str]) -> None:
    """They define MemoryBarrier, which is a struct of Vulkan's, too."""
    command = compiler(MINGW.format("g++"), "g++-mingw-w64-x86-64-posix")
    source = tmp_path / "behind.cpp"
    source.write_text('#include <vulkan/vulkan.hpp>\n#include "loader.hpp"\nvk::MemoryBarrier barrier;\n', "utf-8")
    parse(command, "-std=c++17", "-fsyntax-only", "-DNOMINMAX", "-DWIN32_LEAN_AND_MEAN", *windows,
          f"-I{ROOT / 'third_party/kp/src'}", str(source))


def test_the_hot_paths(windows: list[str]) -> None:
    parse(compiler("clang", "clang"), "-fsyntax-only", "-Wall", "-Werror", f"-I{sysconfig.get_path('include')}",
          *NATIVE)
    parse(compiler(MINGW.format("gcc"), "g++-mingw-w64-x86-64-posix"), "-fsyntax-only", "-Wall", "-Werror", *windows,
          *NATIVE)


def test_the_kernels_of_the_cpu_with_clang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import cpu_kernels

    cpu_kernels.build([compiler("clang", "clang")], tmp_path, {"": []})
    assert (tmp_path / "kernels.so").is_file()
