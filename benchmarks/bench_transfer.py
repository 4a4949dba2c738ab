"""Transfers between host and device: bandwidth and latency; and the latency of a launch and of a replay."""

from __future__ import annotations

import sys

from common import in_turn, medians, parsed, parser, table, write


def main() -> None:
    args = parsed(parser(__doc__, seconds=0.3))
    command = [sys.executable, "transfer_ag.py", "--device", args.device, "--seconds", str(args.seconds)]
    rows = in_turn({"ag": [*command, *(["--quick"] if args.quick else [])]}, args.rounds, args.keep)
    found = medians(rows, ["what", "bytes"], "us")
    results = [{"what": what, "bytes": nbytes, "us": us, "gbytes": nbytes / us / 1e3}
               for (what, nbytes), us in found.items()]
    table(["what", "bytes", "us", "GB/s"], [list(r.values()) for r in results])
    write("transfer", args, results=results)


if __name__ == "__main__":
    main()
