"""Get kp 0.9.0's source ready to compile: check the sdist that lies here, unpack it, patch it.

Knows nothing of compilers or Vulkan.  Called by native_build.py in the root of the repository.
"""

import hashlib
import shutil
import tarfile
from pathlib import Path

from unified_diff import apply_patch

HERE = Path(__file__).resolve().parent
SDIST = HERE / "kp-0.9.0.tar.gz"  # as PyPI has it
SHA256 = "98e583dc6e9731ff6d7a3e3317817e4d93f7b2945929619e29a56325db279949"
PATCHES = HERE / "patches"


def prepare(folder: Path) -> Path:
    """Return the patched source tree, made anew inside `folder`."""
    check(SDIST)
    source = folder / SDIST.name.removesuffix(".tar.gz")
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(SDIST) as archive:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder, **safe)
    for patch in sorted(PATCHES.glob("*.patch")):
        apply_patch(patch, source)
    return source


def check(sdist: Path) -> None:
    """Raise ValueError unless the file is the sdist that the patches were made for."""
    found = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"{sdist}: sha256 is {found}, not {SHA256}; get the file from git or from PyPI again.")
