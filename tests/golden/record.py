"""Write what this machine's devices give now to golden.json, beside other machines, and to sketches.json.

Run ``python tests/golden/record.py`` at a commit whose results you trust, with names of devices or entries to restrict
it: ``--device vulkan:0``, ``--entry "W1 eager"``.  `AG_CPU` chooses the level of the CPU's kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.entries import ENTRIES, FILE, SKETCHES, fingerprint, measured
from golden.hashing import Digest, Found

import ag


def sketched(known: dict[str, list[float]], found: Found) -> None:
    """Add an entry's sketches: how far machines are apart, and what the first of them gave."""
    for key, value in found.items():
        if isinstance(value, Digest):
            spread, *first = known.setdefault(key, [0.0, *value.sketch])
            apart = max(abs(a - b) for a, b in zip(value.sketch, first, strict=True))
            known[key] = [max(spread, float(f"{apart:.2g}")), *first]


def main() -> None:
    """Measure every entry on every device, and replace what the file has under these devices' fingerprints."""
    parser = argparse.ArgumentParser(description=__doc__)
    devices = ["cpu", *(info.name for info in ag.ag_vulkan_devices())]
    parser.add_argument("--device", action="append", choices=devices, help="only these; may be given several times")
    parser.add_argument("--entry", action="append", choices=ENTRIES, metavar="NAME", help="only these, likewise")
    args = parser.parse_args()
    known = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    sketches = json.loads(SKETCHES.read_text("utf-8")) if SKETCHES.exists() else {}
    for device in args.device or devices:
        entries = known.setdefault(fingerprint(device), {}) if args.entry else {}
        for name in args.entry or ENTRIES:
            begin = time.perf_counter()
            entries[name] = found = measured(name, device)
            if any(isinstance(value, Digest) for value in found.values()):
                sketched(sketches.setdefault(name, {}), found)
            print(f"{device:10} {time.perf_counter() - begin:6.2f} s  {name}", flush=True)
        known[fingerprint(device)] = entries
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")
    rows = [f"{json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in sorted(sketches.items())]
    SKETCHES.write_text("{" + ",\n ".join(rows) + "}\n", "utf-8")


if __name__ == "__main__":
    main()
