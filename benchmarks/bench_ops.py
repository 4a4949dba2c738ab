"""Single operations: per cent of the device's own measured roof, and the ratio to PyTorch.

The roof of an operation is ``max(flops / FFMA peak, bytes / copy bandwidth)`` and the time of one empty launch,
whatever the number of launches is that it takes today.
"""

from __future__ import annotations

import statistics
import sys

from common import Row, in_turn, medians, parsed, parser, table, write
from ops import SIZES, Case


def main() -> None:
    command_line = parser(__doc__, seconds=0.3)
    command_line.add_argument("--sizes", choices=list(SIZES), help="default: by the kind of device")
    args = parsed(command_line)
    judged = args.sizes == "judged"
    sizes = ("judged quick" if judged else "quick") if args.quick else args.sizes or _sizes_for(args.device)
    more = ["--sizes", sizes, "--seconds", str(args.seconds)]
    peers = {"ag": [sys.executable, "ops_ag.py", "--device", args.device, *more]}
    if args.torch:
        peers["torch"] = [args.torch_python, "ops_torch.py", "--device", args.torch_device, *more]
    roofs, results = results_of(in_turn(peers, args.rounds, args.keep), SIZES[sizes])
    print(f"\nroofs: {roofs['flops'] / 1e9:.4g} GFLOP/s, {roofs['bytes'] / 1e9:.4g} GB/s, "
          f"{1e6 * roofs['empty']:.3g} us for an empty launch")
    columns = {"launches": "launches", "us": "us", "gflops": "GFLOP/s", "gbytes": "GB/s", "roof_percent": "% of roof"}
    if args.torch:
        columns |= {"torch_us": "torch us", "x_torch": "x torch"}
    table(["operation", *columns.values(), "kernels"],
          [[Case(r["op"], r["sizes"]).name, *(r[c] for c in columns), " ".join(r["kernels"])] for r in results])
    shown = {(r["op"], r["sizes"]) for r in results}
    if left := [case.name for case in SIZES[sizes] if (case.op, case.sizes) not in shown]:
        print(f"left out, as float32's kernels ran: {', '.join(left)}")
    write("ops", args, roofs=roofs, results=results)


def results_of(rows: list[Row], cases: list[Case]) -> tuple[Row, list[Row]]:
    """The roofs, and a result for each case that all rounds so far have a row of.

    Products of lower precision count only if kernels for matrix units made them: devices without make them in float32.
    """
    roofs = {key: statistics.median(r[key] for r in rows if r["case"] == "roofs")
             for key in ("flops", "bytes", "empty")}
    found = medians((r for r in rows if r["case"] != "roofs"), ["peer", "case"], "us")
    launches = {r["case"]: r["launches"] for r in rows if "launches" in r}
    kernels = {r["case"]: r["kernels"] for r in rows if "kernels" in r}
    results = []
    for case in cases:
        ran = kernels.get(case.name, [])
        if ("ag", case.name) not in found or (case.precision != "highest" and not any("_coop" in k for k in ran)):
            continue
        us, torch = found["ag", case.name], found.get(("torch", case.name))
        roof = 1e6 * (max(case.flops / roofs["flops"], case.bytes / roofs["bytes"]) + roofs["empty"])
        results.append({"op": case.op, "sizes": case.sizes, "us": us, "launches": launches[case.name], "kernels": ran,
                        "gflops": case.flops / us / 1e3, "gbytes": case.bytes / us / 1e3,
                        "intensity": case.flops / case.bytes, "roof_percent": 100 * roof / us,
                        "torch_us": torch, "x_torch": torch / us if torch else None})
    return roofs, results


def _sizes_for(device: str) -> str:
    """Cards get large sizes, processors small ones, and drivers that emulate a card the smallest."""
    from ag.engine.device import backend_of

    kind = backend_of(device).info.kind
    if kind in ("discrete", "integrated", "virtual"):
        return "large"
    return "small" if device.startswith("cpu") else "quick"


if __name__ == "__main__":
    main()
