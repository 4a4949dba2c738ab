"""Training steps side by side with PyTorch: eager, captured, in `dp_train`; its eager, fused and compiled.

`ag numpy` is the captured step on the CPU without kernels in C, which is what a machine without a compiler has.

`same work` compares the loss after a fixed number of steps from the same initial weights.  With `--jax-python PYTHON`
also JAX takes part, by `jax.jit` over a whole step, on the device that PyTorch has.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from common import Row, in_turn, medians, parsed, parser, table, write
from steps import WORKLOADS

SAME_LOSS = 2e-3  # relative; float32 over a few hundred steps
SAME_LOSS_BF16 = 0.05  # PyTorch's optimizers have no float32 copy of the weights


def peers(workload: str, args: Any) -> dict[str, list[str]]:
    """Command line of every peer."""
    more = ["--workload", workload, "--seconds", str(args.seconds), *(["--quick"] if args.quick else [])]
    if args.variants:  # in each element type, and nothing else
        own = [(f"ag {v}", [sys.executable, "step_ag.py", "--variant", v, "--device", args.device])
               for v in args.variants.split(",")]
        others = [(f"torch {v}", [args.torch_python, "step_torch.py", "--variant", v, "--device", args.torch_device])
                  for v in args.against.split(",") if args.torch]
        return {f"{peer} {dtype}" if dtype != "f32" else peer: [*command, *more, "--dtype", dtype]
                for dtype in ("f32", "bf16") for peer, command in own + others}
    variants = ["eager", "captured", *(["dp_train"] if workload == "W1b" else []),
                *(["numpy"] if args.device.startswith("cpu") else [])]
    found = {f"ag {v}": [sys.executable, "step_ag.py", "--variant", v, "--device", args.device, *more]
             for v in variants}
    if args.torch:
        found |= {f"torch {v}": [args.torch_python, "step_torch.py", "--variant", v, "--device", args.torch_device,
                                 *more] for v in args.against.split(",")}
    if args.jax_python:
        found["jax jit"] = [args.jax_python, "step_jax.py", "--variant", "jit", "--device", args.torch_device, *more]
    return found


def summary(workload: str, rows: list[Row]) -> list[Row]:
    """Print the table of a workload; medians over rounds, ratios, and whether the work was the same."""
    found = {peer: us for (peer,), us in medians(rows, ["peer"], "us_per_step").items()}
    losses = {row["peer"]: row["loss_last"] for row in rows}
    middle = statistics.median(losses.values())
    others = [peer for peer in found if not peer.startswith("ag ")]
    result = []
    for peer in sorted(found, key=lambda p: found[p]):
        room = SAME_LOSS_BF16 if peer.endswith("bf16") else SAME_LOSS
        same = abs(losses[peer] - middle) <= room * max(abs(middle), 1e-3)
        result.append({"workload": workload, "peer": peer, "us_per_step": found[peer],
                       **{f"x_{o.replace(' ', '_')}": found[o] / found[peer] for o in others},
                       "rounds": [r["us_per_step"] for r in rows if r["peer"] == peer],
                       "loss_last": losses[peer], "same_work": same})
    print(f"\n{workload}: {WORKLOADS[workload].title}")
    table(["peer", "us/step", *(f"speed against {o}" for o in others), "loss", "same work"],
          [[r["peer"], r["us_per_step"], *(f"{r['x_' + o.replace(' ', '_')]:.2f}x" for o in others),
            f"{r['loss_last']:.5f}", "yes" if r["same_work"] else "NO"] for r in result])
    return result


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("--workloads", default="W1,W1b,W2,W3,W4")
    command_line.add_argument("--against", default="eager,fused,compiled", help="variants of PyTorch")
    command_line.add_argument("--variants", help="of this library, in float32 and bfloat16; default: all, in float32")
    args = parsed(command_line)
    if not args.jax_python:
        print("JAX takes no part: --jax-python names an interpreter that has it")
    results = []
    for workload in args.workloads.split(","):
        results += summary(workload, in_turn(peers(workload, args), args.rounds, args.keep))
        write("step", args, results=results)


if __name__ == "__main__":
    main()
