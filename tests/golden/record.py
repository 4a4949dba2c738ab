"""Writes golden.json: the bits that this machine's devices give now, beside those of other machines.

Run it as ``python tests/golden/record.py`` at a commit whose results you trust, with the names of drivers or entries to
restrict it: ``--device vulkan:0``, ``--entry "W1 eager"``.  test_golden.py compares with the file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.entries import ENTRIES, FILE, fingerprint, measured

import ag


def main() -> None:
    """Measure every entry on every device, and replace what the file has under these devices' fingerprints."""
    parser = argparse.ArgumentParser(description=__doc__)
    devices = ["cpu", *(info.name for info in ag.ag_vulkan_devices())]
    parser.add_argument("--device", action="append", choices=devices, help="only these; may be given several times")
    parser.add_argument("--entry", action="append", choices=ENTRIES, metavar="NAME", help="only these, likewise")
    args = parser.parse_args()
    known = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    for device in args.device or devices:
        entries = known.setdefault(fingerprint(device), {}) if args.entry else {}
        for name in args.entry or ENTRIES:
            begin = time.perf_counter()
            entries[name] = measured(name, device)
            print(f"{device:10} {time.perf_counter() - begin:6.2f} s  {name}", flush=True)
        known[fingerprint(device)] = entries
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
