"""Adds up the legs of the tests: one line per leg with its time, then "N passed, N failed". Fails when a leg failed.

Run by tools/test.sh with the folder of pytest's junit files and LEG=STATUS=SECONDS for each leg; a leg LEG has written
LEG.xml, or LEG.PART.xml for each process; the line names the leg's longest test. What was run again is in
LEG.again.xml or LEG.PART.again.xml: a test that passed there has passed, and the line names it. A leg that failed
without a failed test (lint, a crash, a race that the validation layer reported) counts as one failure. Status 77 stands
for a leg that lacked a piece, such as a driver.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

folder = Path(sys.argv[1])
total_passed = total_failed = total_s = 0
for leg, status, seconds in (argument.split("=") for argument in sys.argv[2:]):
    line = f"{leg:9} {int(seconds) // 60:2}:{int(seconds) % 60:02} min  "
    line += {"0": "ok", "77": "not run, see above for what is missing"}.get(status, "failed")
    passed = failed = skipped = 0
    longest = 0.0, ""
    second: list[str] = []
    for report in folder.glob(f"{leg}.*xml"):
        suite = next(ElementTree.parse(report).iter("testsuite"))
        wrong = int(suite.get("failures")) + int(suite.get("errors"))
        if report.name.endswith(".again.xml"):
            second += [case.get("name") for case in suite.iter("testcase") if len(case) == 0]
            continue
        failed, skipped = failed + wrong, skipped + int(suite.get("skipped"))
        passed += int(suite.get("tests")) - wrong - int(suite.get("skipped"))
        longest = max([longest, *((float(case.get("time")), case.get("name")) for case in suite.iter("testcase"))])
    passed, failed = passed + len(second), failed - len(second)
    if passed or failed or skipped:
        line += f": {passed} passed, {failed} failed, {skipped} skipped, longest {longest[0]:.1f} s ({longest[1]})"
    if second:
        line += f"; passed only when run again: {', '.join(second)}"
    total_passed, total_s = total_passed + passed, total_s + int(seconds)
    total_failed += failed or int(status not in ("0", "77"))
    print(line)
print(f"{total_passed} passed, {total_failed} failed in {total_s // 60}:{total_s % 60:02} min")
sys.exit(total_failed > 0)
