"""Unpacks the wheels of a kit for the Python that runs this, once, and prints the folder; needs no pip.

A kit's check.sh calls it, on a machine that has nothing but the kit; build.py has packed it.
"""

import importlib.util
import sys
import zipfile
from pathlib import Path

kit = Path(__file__).resolve().parent
tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
wheels, site = kit / "wheels" / tag, kit / f"site-{tag}"
if not wheels.is_dir():
    raise SystemExit(f"gpu-kit: this is Python {sys.version.split()[0]} and the kit is for "
                     f"{', '.join(sorted(path.name for path in wheels.parent.iterdir()))}; name another with PYTHON=.")
if not (site / "whole").exists():
    for wheel in sorted(wheels.glob("*.whl")):
        # A numpy that is there stays, as PyTorch has been built for it.
        if not (wheel.name.startswith("numpy-") and importlib.util.find_spec("numpy")):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(site)
    (site / "whole").touch()
print(site)
