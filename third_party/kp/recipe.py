"""Get kp 0.9.0's source ready to compile: fetch the sdist with pip, check it, unpack it, patch it.

Knows nothing of compilers or Vulkan.  Called by setup.py.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from unified_diff import apply_patch

VERSION = "0.9.0"
SHA256 = "98e583dc6e9731ff6d7a3e3317817e4d93f7b2945929619e29a56325db279949"
PATCHES = Path(__file__).parent / "patches"


def prepare(folder: Path) -> Path:
    """Return the patched source tree, made anew inside `folder`."""
    sdist = fetch(folder)
    source = folder / f"kp-{VERSION}"
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder, **safe)
    for patch in sorted(PATCHES.glob("*.patch")):
        apply_patch(patch, source)
    return source


def fetch(folder: Path) -> Path:
    """Return kp's sdist, downloaded into `folder` with pip unless it is there already.

    pip runs the sdist's setup.py for its metadata (kp's needs CMake only to compile), therefore pip
    itself is given the hash and checks it first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sdist = folder / f"kp-{VERSION}.tar.gz"
    if not sdist.exists():
        wanted = folder / "kp.txt"
        wanted.write_text(f"kp=={VERSION} --hash=sha256:{SHA256}\n")
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
        options = ["--no-deps", "--no-binary", "kp", "--no-build-isolation", "--dest", str(folder)]
        subprocess.run([*pip, *options, "--requirement", str(wanted)], check=True)
    check(sdist)
    return sdist


def check(sdist: Path) -> None:
    """Raise ValueError unless the file is the sdist that the patches were made for."""
    found = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"{sdist}: sha256 is {found}, not {SHA256}; delete the file and build again.")
