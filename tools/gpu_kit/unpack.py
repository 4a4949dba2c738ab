"""Unpacks what the Python that runs this needs of a kit, once, and prints the folder; needs no pip.

A kit's check.sh calls it, on a machine that has nothing but the kit; build.py has packed it.
"""

import importlib.util
import sys
import tarfile
from pathlib import Path

kit = Path(__file__).resolve().parent
tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
known, site = (kit / "pythons").read_text("utf-8").split(), kit / f"site-{tag}"
if tag not in known:
    raise SystemExit(f"gpu-kit: this is Python {sys.version.split()[0]} and the kit is for {', '.join(known)}; "
                     f"name another with PYTHON=.")
if not (site / "whole").exists():
    parts = [f"{tag}/rest/"]
    if importlib.util.find_spec("numpy") is None:  # one that is there stays, as PyTorch has been built for it
        parts.append(f"{tag}/numpy/")
    with tarfile.open(kit / "sites.tar.xz") as packed:
        for member in packed:
            for part in parts:
                content = packed.extractfile(member) if member.name.startswith(part) else None
                if content is not None:
                    to = site / member.name.removeprefix(part)
                    to.parent.mkdir(parents=True, exist_ok=True)
                    to.write_bytes(content.read())
    (site / "whole").touch()
print(site)
