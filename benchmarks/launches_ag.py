"""The launches of a captured step on the CPU by kernel, most time first: how long, how fast, and what the roofs are."""

from __future__ import annotations

import statistics
from collections import defaultdict

import steps

args = steps.arguments("captured")

import ag  # noqa: E402, I001 - after the thread pools are limited, and before numpy, as ag tells its threads to sleep

from common import emit  # noqa: E402
from roofs import copy_on_host, gemm_on_host  # noqa: E402
from step_ag import step_and_batches  # noqa: E402

PRODUCTS = ("matmul", "batched_matmul", "matmul_sums", "conv2d")  # and their gradients
ROUNDS = 3 if args.quick else 30


def is_product(kernel: str) -> bool:
    """Whether it is counted in FLOP."""
    return kernel.startswith(PRODUCTS)


def main() -> None:
    roofs = {"GFLOP/s": gemm_on_host(args.quick) / 1e9, "GB/s": copy_on_host(args.quick) / 1e9}
    step, batches = step_and_batches()
    run = ag.ag_capture(step)
    for i in range(4):
        run(*batches[i % len(batches)])
    program = run.program
    rounds = []
    for i in range(ROUNDS):
        with ag.profile() as seen:
            run(*batches[i % len(batches)])
        rounds.append([event.end - event.begin for event in seen.events])
    ns: dict[str, list[float]] = defaultdict(list)
    work: dict[str, float] = defaultdict(float)
    for launch, each in zip(program._launches, zip(*rounds, strict=True), strict=False):
        name = launch.primitive.name
        ns[name].append(statistics.median(each))
        row = program._backend.words(launch.primitive, launch.buffers, launch.params)
        work[name] += 2 * row[1] if is_product(name) else sum(b.nbytes for b in launch.buffers)
    for name in sorted(ns, key=lambda name: -sum(ns[name])):
        unit = "GFLOP/s" if is_product(name) else "GB/s"
        emit(workload=args.workload, kernel=name, launches=len(ns[name]), us=sum(ns[name]) / 1e3,
             reached=work[name] / sum(ns[name]), unit=unit, roof=roofs[unit])


if __name__ == "__main__":
    main()
