"""Fails unless the wheel given holds the SPIR-V of every shader, and the manifest. Run by `make wheel`."""

import sys
import zipfile
from pathlib import Path

spv = "ag/engine/backends/vulkan/spv/"
wanted = {f"{spv}{shader.stem}.spv" for shader in Path("shaders").glob("*.comp")}
wanted.add(f"{spv}manifest.json")
with zipfile.ZipFile(sys.argv[1]) as wheel:
    packed = {name for name in wheel.namelist() if name.startswith(spv)}
if packed != wanted:
    missing, stale = sorted(wanted - packed), sorted(packed - wanted)
    sys.exit(f"{sys.argv[1]}: missing {missing}, stale {stale}. Run python kernels_build.py and make wheel")
print(f"{sys.argv[1]}: {len(packed) - 1} kernels and their manifest")
