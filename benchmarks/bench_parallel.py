"""Scaling of W2 over devices: one and all of them with `dp_train`, and with a thread per device that exchange nothing.

Every replica has a batch of 128 per step, and a core; one also has all of them, as it has by itself.
"""

from __future__ import annotations

import sys

from common import in_turn, medians, parsed, parser, table, write


def main() -> None:
    command_line = parser(__doc__, seconds=2.0)
    command_line.add_argument("--devices", default="cpu,cpu:1", help="comma-separated")
    args = parsed(command_line)
    devices = args.devices.split(",")
    args.device = devices[0]
    more = ["--seconds", str(args.seconds), *(["--quick"] if args.quick else [])]
    command = [sys.executable, "parallel_ag.py"]
    peers = {f"{how} on {len(used)}": [*command, "--how", how, "--devices", ",".join(used), *more]
             for how in ("dp_train", "threads") for used in (devices[:1], devices)}
    if devices[0].startswith("cpu"):
        peers["dp_train on 1 with all cores"] = [*command, "--how", "dp_train", "--devices", devices[0], "--cores",
                                                 str(len(devices)), *more]
    found = medians(in_turn(peers, args.rounds, args.keep), ["peer"], "samples_per_s")
    results = []
    for (peer,), rate in found.items():
        alone = found[(f"{peer.partition(' ')[0]} on 1",)]
        results.append({"how": peer, "samples_per_s": rate, "speedup": rate / alone})
    table(["how", "samples/s", "x one"], [list(r.values()) for r in results])
    write("parallel", args, devices=devices, results=results)


if __name__ == "__main__":
    main()
