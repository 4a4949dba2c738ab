"""Build the files of `pip install .` that need compilers: shaders, kernels in C, and extension modules.

No step is an error.  A step that cannot be done writes the reason, in one line, into ``not_built.txt`` in its backend's
folder, which ag's messages, `devices` and `doctor` show: pip shows nothing of a build that succeeds.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cpu_kernels  # of tools
import recipe  # of third_party/kp
import setuptools.command.build_ext
import setuptools.command.build_py
import setuptools.command.sdist
from setuptools import Extension
from setuptools.errors import BaseError, CCompilerError

import kernels_build

ROOT = Path(__file__).resolve().parent
KP = Path("third_party", "kp")
VULKAN, SHADER, CPU = (Path("ag", "engine", "backends", name) for name in ("vulkan", "shader", "cpu"))
NATIVE = Path("ag", "native")
NOTE = "not_built.txt"

# ---------------------------------------------------------------------------------------------- files in the tree


class Step(NamedTuple):
    """A step that makes files in the source tree."""

    name: str
    backend: Path
    makes: str
    run: Callable[[], str]


def compile_shaders() -> str:
    """Bring the SPIR-V up to date."""
    lacking = kernels_build.missing_tools()
    if not lacking:
        try:
            kernels_build.build()
        except kernels_build.ShaderError as error:
            return one_line("the shaders do not compile", error)
        return ""
    known = kernels_build.read_manifest(kernels_build.OUT)
    if known["kernels"] and not kernels_build.stale(kernels_build.SHADERS, kernels_build.OUT, known, known["compiler"]):
        return ""  # made elsewhere, as those of an sdist are
    return lacking


# tools/setup.sh makes these files itself, beside pip.
STEPS = () if os.environ.get("AG_BUILD_KERNELS") == "no" else (
    Step("kernels", SHADER, kernels_build.OUT.name, compile_shaders),
    Step("kernels", CPU, cpu_kernels.OUT.name, cpu_kernels.update),
)


def note(backend: Path, step: str, why: str) -> None:
    """Replace the note on a step by the reason why it failed; "" if it succeeded."""
    path = backend / NOTE
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    lines = [line for line in lines if not line.startswith(f"{step}: ")]
    if why:
        lines.append(f"{step}: {why}")
        print(f"ag: {step} of {backend.name} cannot be built: {why}", file=sys.stderr)
    if lines:
        backend.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", "utf-8")
    else:
        path.unlink(missing_ok=True)


def one_line(what: str, error: Exception) -> str:
    """Return the failure with the beginning of the error."""
    return f"{what} ({' '.join(str(error).split())[:300]})"


# ---------------------------------------------------------------------------------------------- the extensions

MACROS = {
    "KOMPUTE_BUILD_PYTHON": "1",
    "KOMPUTE_DISABLE_VK_DEBUG_LAYERS": "1",  # else it turns the validation layer on wherever installed
    "KOMPUTE_OPT_ACTIVE_LOG_LEVEL": "6",  # off
    "KOMPUTE_OPT_LOG_LEVEL_DISABLED": "1",
    "KOMPUTE_VK_API_MINOR_VERSION": "2",
    "VK_NO_PROTOTYPES": "1",  # the Vulkan loader is opened at run time
    "VULKAN_HPP_DISPATCH_LOADER_DYNAMIC": "1",
    "NDEBUG": "1",
    "PYBIND11_COMPILER_TYPE": '"_ag"',  # its own table of types, so that PyPI's kp can be loaded beside it
    "VERSION_INFO": '"0.9.0+ag1"',
}
# What the compiler must find, each with what it is called and the package of Debian that has it.
NEEDED = (
    ("", "no C++ compiler that works", "g++"),
    ("#include <Python.h>", "no header of Python", f"python{sys.version_info[0]}.{sys.version_info[1]}-dev"),
    ("#include <vulkan/vulkan.h>\n#if !__has_include(<vulkan/vulkan.hpp>)\n#error\n#endif", "no headers of Vulkan",
     "libvulkan-dev"),
)


def extensions() -> list[Extension]:
    """List the extensions for this platform: Kompute, and compiled forms of hot paths."""
    options = [] if sys.platform == "win32" else ["-fvisibility=hidden", "-O3", "-g0"]
    sources = [str(path.relative_to(ROOT)) for path in sorted((ROOT / NATIVE).glob("*.c"))]
    return [kompute(), Extension(".".join([*NATIVE.parts, "_code"]), sources, depends=[str(NATIVE / "native.h")],
                                 extra_compile_args=options)]


def kompute() -> Extension:
    """Return the extension module of the Vulkan backend."""
    ours = [path for folder in ("src", "patches") for path in sorted((ROOT / KP / folder).iterdir())]
    depends = [str(path.relative_to(ROOT)) for path in ours]
    kp = Extension(".".join([*VULKAN.parts, "_kp"]), [str(KP / "src" / "unity.cpp")], language="c++", depends=depends,
                   define_macros=list(MACROS.items()), include_dirs=[str(KP / "src")])
    if sdk := os.environ.get("VULKAN_SDK"):  # LunarG's, on Windows and macOS
        kp.include_dirs += [str(Path(sdk, "include")), str(Path(sdk, "Include"))]
    if sys.platform == "win32":
        kp.define_macros += [("NOMINMAX", "1"), ("WIN32_LEAN_AND_MEAN", "1")]
        kp.extra_compile_args += ["/std:c++17", "/EHsc", "/bigobj"]
        return kp
    kp.extra_compile_args += ["-std=c++17", "-fvisibility=hidden", "-O2", "-g0"]
    if sys.platform == "linux":
        kp.libraries += ["dl", "pthread"]  # which C libraries before glibc 2.34 have apart
        kp.extra_link_args += ["-Wl,-s"]
        if os.environ.get("KP_STATIC_CXX"):  # a wheel for machines with an older libstdc++
            kp.extra_link_args += ["-static-libstdc++", "-static-libgcc"]
    return kp


class BuildExtensions(setuptools.command.build_ext.build_ext):
    """Compile extensions where possible; else note why not."""

    whys = "", ""  # why Kompute and the hot paths cannot be built

    def run(self) -> None:
        self.force = self.force or bool(os.environ.get("KP_STATIC_CXX"))  # which no file's time tells
        super().run()
        target = Path(ROOT if self.inplace else self.build_lib)
        note(target / VULKAN, "extension", self.whys[0])
        note(target / CPU, "quick paths", self.whys[1])

    def build_extensions(self) -> None:
        kp, native = self.extensions
        self.whys = self._missing(kp) or self._compiled(kp), self._compiled(native)
        self.extensions = [each for each, why in zip((kp, native), self.whys, strict=True) if not why]  # are copied

    def _missing(self, kp: Extension) -> str:
        """Name the requirements of Kompute that the compiler does not find."""
        try:
            import pybind11
        except ImportError:
            return "pybind11 is not installed; install with: pip install pybind11"
        kp.include_dirs.append(pybind11.get_include())
        probe = Path(self.build_temp, "probe.cpp")
        probe.parent.mkdir(parents=True, exist_ok=True)
        for text, lacking, package in NEEDED:
            probe.write_text(f"{text}\nint main() {{ return 0; }}\n", "utf-8")
            try:
                self.compiler.compile([str(probe)], self.build_temp, include_dirs=kp.include_dirs)
            except (CCompilerError, BaseError, OSError):
                return f"{lacking}; install with: apt install {package}"
        return ""

    def _compiled(self, module: Extension) -> str:
        """Compile and link; return why it failed."""
        try:
            if module.language == "c++":
                source = recipe.prepare(Path(self.build_temp))
                module.include_dirs += [str(source), str(source / "src/include"), str(source / "python/src")]
            self.build_extension(module)
        except (CCompilerError, BaseError, OSError, ValueError) as error:
            return one_line("the extension does not compile", error)
        return ""


# ---------------------------------------------------------------------------------------------- description

PAGES = "https://github.com/ag-autograd/ag/blob/main/"
PICTURES = "https://raw.githubusercontent.com/ag-autograd/ag/main/"


def description() -> str:
    """Return README.md for PyPI, with links to the repository."""
    text = re.sub(r"(!\[[^]]*\]\()(?!https?://)", rf"\1{PICTURES}", (ROOT / "README.md").read_text("utf-8"))
    return re.sub(r"\]\((?!https?://|#|mailto:)", f"]({PAGES}", text)


# ---------------------------------------------------------------------------------------------- commands


class BuildFiles(setuptools.command.build_py.build_py):
    """Make files before they are copied; do not copy outdated ones."""

    def run(self) -> None:
        target = ROOT if self.editable_mode else Path(self.build_lib)
        if target != ROOT:
            shutil.rmtree(target / "ag", ignore_errors=True)  # of an earlier build: setuptools would pack all of it
        whys = [(step, step.run()) for step in STEPS]
        self.__dict__.pop("data_files", None)  # listed already, when setuptools wrote the metadata
        super().run()
        for step, why in whys:
            note(target / step.backend, step.name, why)
            if why and target != ROOT:
                shutil.rmtree(target / step.backend / step.makes, ignore_errors=True)


class SourceArchive(setuptools.command.sdist.sdist):
    """Compile the shaders first: SPIR-V is the same on every machine, so a wheel needs no compiler for them."""

    def run(self) -> None:
        compile_shaders()
        super().run()


COMMANDS = {"build_py": BuildFiles, "build_ext": BuildExtensions, "sdist": SourceArchive}
