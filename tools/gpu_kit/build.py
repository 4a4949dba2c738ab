"""Packs what a bare Linux machine with a graphics card needs: `python tools/gpu_kit/build.py [--to KIT] [PYTHON...]`.

The machine has Python and the card's driver, and neither network, compiler nor git.  The kit, .make/gpu-kit and the
same as .make/gpu-kit.tar, has a wheel of ag for each Python named (default: those of 3.10 to 3.13 that are here),
linked statically with the C++ library; what ag and its tests need, numpy too; the Vulkan loader; the tests and
benchmarks; and check.sh, which unpacks what that machine's Python needs and runs benchmarks/gpu_check.sh.
`make gpu-kit` calls this.
Needs network and a compiler, and knows nothing of `ag`.
"""

from __future__ import annotations

import argparse
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
MADE = ("ag/engine/backends/shader/spv", "ag/engine/backends/cpu/built", "benchmarks/spv")  # which git does not have
KEPT = ("tests", "benchmarks", "pyproject.toml", "kernels_build.py", "shaders")  # the last two for the tests
NEEDED = ("numpy", "pyyaml", "safetensors", "threadpoolctl", "tqdm", "pytest", "hypothesis")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
LOADER = "libvulkan.so.1"
# NVIDIA's Vulkan driver does not start without these, and containers have the driver alone.
DISPATCH = ("libGLdispatch.so.0", "libGLX.so.0", "libEGL.so.1", "libOpenGL.so.0", "libGL.so.1")
LARGEST = 60 << 20


def pythons(named: list[str]) -> dict[str, str]:
    """Interpreters by their versions: those named, or all of VERSIONS that are on PATH or made by pyenv."""
    if not named:
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
        named = [str(path) for v in VERSIONS
                 for path in [*sorted(pyenv.glob(f"{v}.*/bin/python"))[-1:], shutil.which(f"python{v}")] if path]
    found: dict[str, str] = {}
    for python in named:
        done = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True,
                              text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() in VERSIONS:
            found.setdefault(done.stdout.strip(), python)
    if not found:
        raise SystemExit(f"gpu-kit: there is no Python of {', '.join(VERSIONS)} here; name one, with its headers.")
    return found


def copied(source: Path) -> None:
    """The working tree, as git knows it, and what has been built in it, with the kernel that measures FFMA."""
    subprocess.run([sys.executable, ROOT / "benchmarks" / "roofs.py"], check=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # not deleted
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    for name in MADE:
        shutil.copytree(ROOT / name, source / name, dirs_exist_ok=True)


def pip(python: str, *arguments: str) -> None:
    """Run pip of an interpreter in silence; what it says if it fails."""
    done = subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *arguments], capture_output=True,
                          text=True, check=False, env={**os.environ, "KP_STATIC_CXX": "1"})
    if done.returncode:
        raise SystemExit(f"gpu-kit: pip {' '.join(arguments)} failed:\n{done.stderr[-3000:]}")


def unpack(wheels: Path, to: Path) -> None:
    """What the wheels would install: numpy in one folder, all else in another, as numpy may be there already."""
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(to / ("numpy" if wheel.name.startswith("numpy-") else "rest"))
    shutil.rmtree(wheels)


def pack(folder: Path, packed: Path) -> None:
    """One file of what lies in a folder per Python.

    Files of the same name follow each other, so that the same file for another Python, or nearly the same, takes no
    room: four Pythons take little more than twice what one does.  Preset 9 takes 15 % less room and four times as long.
    """
    paths = sorted((path for path in folder.rglob("*") if path.is_file()),
                   key=lambda path: path.relative_to(folder).parts[::-1])
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": LARGEST << 1}]
    with lzma.open(packed, "wb", filters=filters) as stream, tarfile.open(fileobj=stream, mode="w") as file:
        for path in paths:
            file.add(path, str(path.relative_to(folder)))
    shutil.rmtree(folder)


def main() -> None:
    """Make the kit, and say how large it is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=Path, default=ROOT / ".make" / "gpu-kit")
    parser.add_argument("pythons", nargs="*")
    args = parser.parse_args()
    kit: Path = args.to
    shutil.rmtree(kit, ignore_errors=True)
    source = kit / "source"
    copied(source)
    found = {f"cp{version.replace('.', '')}": (version, python) for version, python in pythons(args.pythons).items()}
    (kit / "pythons").write_text(" ".join(found) + "\n", "utf-8")
    for tag, (version, python) in found.items():
        wheels = kit / "wheels"
        print(f"ag: gpu-kit: a wheel for Python {version}", flush=True)
        pip(python, "wheel", "-q", "--no-deps", "--wheel-dir", str(wheels), str(source))
        shutil.rmtree(source / "build", ignore_errors=True)
        pip(sys.executable, "download", "-q", "--only-binary=:all:", "--python-version", version,
            "--implementation", "cp", *(f"--platform={p}" for p in PLATFORMS), "--dest", str(wheels), *NEEDED)
        unpack(wheels, kit / "sites" / tag)
    pack(kit / "sites", kit / "sites.tar.xz")
    for path in source.iterdir():  # the package comes from its wheel, and nothing is built over there
        if path.name not in KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in source.rglob("__pycache__"):
        shutil.rmtree(path)
    with (kit / "commit").open("w") as file:
        subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=file, check=True)
    for name in ("check.sh", "unpack.py"):
        shutil.copy(HERE / name, kit)
    (kit / "lib").mkdir()
    for name, found in libraries().items():
        shutil.copy(found, kit / "lib" / name)
    packed = kit.with_suffix(".tar")
    with tarfile.open(packed, "w") as file:
        file.add(kit, kit.name)
    size = packed.stat().st_size
    print(f"ag: {kit.name} and {packed.name} in {kit.parent.name}, {size / (1 << 20):.0f} MiB; over there: "
          f"gpu-kit/check.sh kernels")
    if size > LARGEST:
        raise SystemExit(f"gpu-kit: that is more than {LARGEST >> 20} MiB; name fewer versions of Python.")


def libraries() -> dict[str, Path]:
    """This machine's Vulkan loader, and what it has of `DISPATCH`, by the names that programs ask for."""
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    known = dict(reversed(re.findall(r"(\S+) \(.*x86-64.*\) => (\S+)", listed)))  # of several, the first
    if LOADER not in known:
        raise SystemExit("gpu-kit: there is no Vulkan loader here to pack; install libvulkan1.")
    return {name: Path(known[name]).resolve() for name in (LOADER, *DISPATCH) if name in known}


if __name__ == "__main__":
    main()
