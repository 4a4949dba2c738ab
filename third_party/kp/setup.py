"""Build the patched kp extension: one source file of ours that includes kp's own (see README.md)."""

import os
import sys
from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent))  # a build backend does not put it there
import recipe

MACROS = {
    "KOMPUTE_BUILD_PYTHON": "1",
    "KOMPUTE_DISABLE_VK_DEBUG_LAYERS": "1",  # else it turns the validation layer on wherever installed
    "KOMPUTE_OPT_ACTIVE_LOG_LEVEL": "6",  # off
    "KOMPUTE_OPT_LOG_LEVEL_DISABLED": "1",
    "KOMPUTE_VK_API_MINOR_VERSION": "2",
    "VK_NO_PROTOTYPES": "1",  # the Vulkan loader is opened at run time
    "VULKAN_HPP_DISPATCH_LOADER_DYNAMIC": "1",
    "NDEBUG": "1",
}


class BuildKp(build_ext):
    """Fetch and patch kp just before compiling, so that asking for metadata needs no network."""

    def build_extensions(self) -> None:
        kp = recipe.prepare(Path(self.build_temp))
        for extension in self.extensions:
            extension.include_dirs += ["src", str(kp), str(kp / "src/include"), str(kp / "python/src")]
            extension.define_macros += [("VERSION_INFO", f'"{self.distribution.get_version()}"')]
        super().build_extensions()


def extension() -> Pybind11Extension:
    """Describe the one extension module for this platform."""
    ours = [str(path) for folder in ("src", "patches") for path in sorted(Path(folder).iterdir())]
    kp = Pybind11Extension("kp", ["src/unity.cpp"], cxx_std=17, depends=ours)
    kp.define_macros += MACROS.items()
    sdk = os.environ.get("VULKAN_SDK")  # LunarG's, on Windows and macOS
    if sdk:
        kp.include_dirs += [str(Path(sdk, "include")), str(Path(sdk, "Include"))]
    if sys.platform == "win32":
        kp.define_macros += [("NOMINMAX", "1"), ("WIN32_LEAN_AND_MEAN", "1")]
    else:
        kp.extra_compile_args += ["-O2", "-g0"]
    if sys.platform == "linux":
        kp.libraries += ["dl"]
        kp.extra_link_args += ["-Wl,-s"]
        if os.environ.get("KP_STATIC_CXX"):  # a wheel for machines with an older libstdc++
            kp.extra_link_args += ["-static-libstdc++", "-static-libgcc"]
    return kp


setup(ext_modules=[extension()], cmdclass={"build_ext": BuildKp})
