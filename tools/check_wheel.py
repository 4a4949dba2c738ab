"""Fails unless a wheel holds what it must and nothing else: kernels, extension, types, metadata.  Run by `make wheel`.

    python tools/check_wheel.py [--cpu-only] WHEEL...

`--cpu-only` is for the wheel of a machine that could not compile: it must say why in not_built.txt.  Where auditwheel
is installed, the last line says which Linux systems the wheel is for.  Reads the wheel, ag/ and shaders/ as files.
"""

from __future__ import annotations

import email
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import kernels_build  # noqa: E402

BACKEND = "ag/engine/backends/vulkan/"
KERNELS = "ag/engine/backends/shader/spv/"
EXTENSIONS = {name: re.compile(rf"{folder}{name}\.[^/]*(so|pyd)")
              for folder, name in ((BACKEND, "_kp"), ("ag/native/", "_code"))}
IN_C = "ag/engine/backends/cpu/built/"
COMPILED = re.compile(rf"{IN_C}(kernels(\.v\d)?\.so|manifest\.json)")
NOTE = re.compile(r"ag/engine/backends/\w+/not_built\.txt")
DATA_SETS = [f"ag/data/sets/{path.name}" for path in sorted((ROOT / "ag" / "data" / "sets").iterdir())]
LARGEST_DATA = 120_000  # bytes of all data sets
CLASSIFIERS = [f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)]


def faults(wheel: zipfile.ZipFile, cpu_only: bool) -> Iterator[str]:
    """What is wrong with a wheel, a sentence each."""
    names = [name for name in wheel.namelist() if not name.endswith("/")]
    info = next((name.partition("/")[0] for name in names if name.endswith(".dist-info/METADATA")), "none")
    built = {module: [name for name in names if pattern.fullmatch(name)] for module, pattern in EXTENSIONS.items()}
    extensions = [name for found in built.values() for name in found]
    notes = [name for name in names if NOTE.fullmatch(name)]
    known = {*extensions, *notes, *DATA_SETS, f"{KERNELS}manifest.json", "ag/py.typed"}
    for name in names:
        source = name.startswith("ag/") and name.endswith(".py")
        if not (name in known or source or name.startswith((f"{info}/", KERNELS)) or COMPILED.fullmatch(name)):
            yield f"it holds {name}, which nobody needs"
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ag").rglob("*.py")}
    for name in sorted(files.symmetric_difference(name for name in names if name.endswith(".py"))):
        yield f"{name} is in the tree or in the wheel, not in both"
    yield from (f"{name} is missing" for name in DATA_SETS if name not in names)
    if (size := sum(wheel.getinfo(name).file_size for name in DATA_SETS if name in names)) > LARGEST_DATA:
        yield f"its data sets have {size} bytes, more than {LARGEST_DATA}"
    if "ag/py.typed" not in names:
        yield "py.typed is missing, so type checkers do not look into it"
    if cpu_only:
        if extensions or f"{BACKEND}not_built.txt" not in notes:
            yield "it should have no extension and say why"
    else:
        for module, found in built.items():
            if len(found) != 1:
                yield f"it has {len(found)} extensions {module} {found}; one is required"
        for name in notes:
            yield f"the build left out: {wheel.read(name).decode().strip()}"
        yield from kernel_faults(wheel, names)
        if f"{IN_C}manifest.json" not in names:
            yield "the manifest of the CPU's kernels is missing"
        else:
            manifest = json.loads(wheel.read(f"{IN_C}manifest.json"))
            libraries = [f"{IN_C}kernels{x}.so" for x in manifest["levels"]]
            yield from (f"{name} is missing" for name in libraries if name not in names)
            yield from (f"kernels{x}.so was left out: {why}" for x, why in manifest.get("left_out", {}).items())
    yield from metadata_faults(wheel, names, info)


def kernel_faults(wheel: zipfile.ZipFile, names: list[str]) -> Iterator[str]:
    """Kernels that are missing, too many, or of other shaders than those of the tree."""
    if f"{KERNELS}manifest.json" not in names:
        yield "the manifest of the kernels is missing"
        return
    manifest = json.loads(wheel.read(f"{KERNELS}manifest.json"))
    shaders = {path.stem: path for path in kernels_build.kernels(kernels_build.SHADERS)}
    if shaders.keys() != manifest["kernels"].keys() | set(manifest["left_out"]):
        yield f"the kernels {sorted(shaders.keys() ^ manifest['kernels'].keys())} are not those of shaders/"
    for kernel, entry in manifest["kernels"].items():
        if f"{KERNELS}{kernel}.spv" not in names:
            yield f"kernel {kernel} is missing"
        if kernel in shaders and entry["sha256"] != kernels_build.source_hash(shaders[kernel]):
            yield f"kernel {kernel} does not come from shaders/{kernel}.comp as it is now"
    for name in names:
        kernel = name.removeprefix(KERNELS).partition(".")[0]
        if name.startswith(KERNELS) and name.endswith(".spv") and kernel not in manifest["kernels"]:
            yield f"{name} is in no manifest"


def metadata_faults(wheel: zipfile.ZipFile, names: list[str], info: str) -> Iterator[str]:
    """What is wrong with what PyPI shows and pip reads."""
    if f"{info}/METADATA" not in names:
        yield "the metadata is missing"
        return
    found = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    text = (ROOT / "ag" / "version.py").read_text("utf-8")
    for key, name in (("Name", "DISTRIBUTION"), ("Version", "__version__")):
        if f'{name} = "{found[key]}"' not in text:
            yield f"its {key} is {found[key]}, which is not {name} of ag/version.py"
    if "<" in found["Requires-Python"]:
        yield f"Requires-Python is {found['Requires-Python']}; a cap keeps newer versions out for ever"
    for classifier in CLASSIFIERS:
        if classifier not in found.get_all("Classifier", []):
            yield f"the classifier {classifier} is missing"
    if not found.get_all("Project-URL"):
        yield "it has no links"
    for licence in ("LICENSE", "third_party/kp/LICENSE", "third_party/kp/NOTICE"):
        if f"{info}/licenses/{licence}" not in names:
            yield f"the licence {licence} is missing"
    if b"ag = ag.__main__:main" not in wheel.read(f"{info}/entry_points.txt"):
        yield "the command ag is missing"
    if links := re.findall(r"\]\((?!https?://|#|mailto:)([^)]*)\)", found.get_payload()):
        yield f"the description links to {links}, which PyPI does not have"


def systems(path: str) -> str:
    """For which Linux systems the wheel is, in one line."""
    if find_spec("auditwheel") is None:
        return "auditwheel is not installed, so nobody knows which Linux systems the wheel is for"
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", path], capture_output=True, text=True)
    text = " ".join((shown.stdout + shown.stderr).split())
    tag = re.search(r'platform tag: "(\w+)"', text)
    if tag is None:
        return f"auditwheel says: {text}"
    return (f"built here it is for {tag[1]}, says auditwheel, as this machine's compiler and C library allow; "
            f"cibuildwheel builds for manylinux_2_28")


def check(path: str, cpu_only: bool) -> bool:
    """Whether a wheel is right; prints what it holds, or what is wrong."""
    with zipfile.ZipFile(path) as wheel:
        found = list(faults(wheel, cpu_only))
        kernels = len([name for name in wheel.namelist() if name.endswith(".spv")])
    for fault in found:
        print(f"{path}: {fault}", file=sys.stderr)
    if not found:
        what = "it says why it has no Vulkan" if cpu_only else f"the Vulkan extension and {kernels} files of kernels"
        print(f"{path}: {what}; types, metadata and licences are right")
        if sys.platform == "linux":
            print(f"{path}: {systems(path)}")
    return not found


def main(arguments: list[str]) -> int:
    """Exit status: 0 the wheels are right, 1 they are not."""
    paths = [word for word in arguments if word != "--cpu-only"]
    results = [check(path, "--cpu-only" in arguments) for path in paths]
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
