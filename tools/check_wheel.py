"""Fails unless the wheel given holds the manifest and the SPIR-V of every kernel as it is now. Run by `make wheel`."""

import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import kernels_build

if kernels_build.main(["--check"]):
    sys.exit(1)
folder = kernels_build.OUT.relative_to(kernels_build.ROOT).as_posix()
wanted = {f"{folder}/{path.name}" for path in kernels_build.OUT.iterdir()}
with zipfile.ZipFile(sys.argv[1]) as wheel:
    packed = {name for name in wheel.namelist() if name.startswith(folder)}
if packed != wanted:
    missing, stale = sorted(wanted - packed), sorted(packed - wanted)
    sys.exit(f"{sys.argv[1]}: missing {missing}, stale {stale}. Run make wheel again")
print(f"{sys.argv[1]}: {len(kernels_build.read_manifest(kernels_build.OUT)['kernels'])} kernels and their manifest")
