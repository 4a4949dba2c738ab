"""Adds up the legs of the tests: one line per leg, then "N passed, N failed". Fails when a leg failed.

Run by tools/test.sh with the folder of pytest's junit files and LEG=STATUS for each leg. A leg that failed
without a failed test (lint, a crash, a race that the validation layer reported) counts as one failure. Status
77 stands for a leg that lacked a piece, such as a driver.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

folder = Path(sys.argv[1])
total_passed = total_failed = 0
for leg, status in (argument.split("=") for argument in sys.argv[2:]):
    line = f"{leg:6}" + {"0": "ok", "77": "not run, see above for what is missing"}.get(status, "failed")
    failed = 0
    report = folder / f"{leg}.xml"
    if report.exists():
        suite = next(ElementTree.parse(report).iter("testsuite"))
        failed, skipped = int(suite.get("failures")) + int(suite.get("errors")), int(suite.get("skipped"))
        passed = int(suite.get("tests")) - failed - skipped
        line += f": {passed} passed, {failed} failed, {skipped} skipped"
        total_passed += passed
    total_failed += failed or int(status not in ("0", "77"))
    print(line)
print(f"{total_passed} passed, {total_failed} failed")
sys.exit(total_failed > 0)
