"""Products of matrices by this library's kernels in C beside numpy's BLAS, at the shapes that the kernels tell apart.

Which kernel makes a product is a fixed rule (docs/internals.md), so that results have the same bits in every run; this
is how it compares, in one thread and in as many as all benchmarks have.  Each library runs in processes of its own, in
turn; a figure is the least time of a call over all rounds, with that of launching it.  Called by hand; a process that
is given --peer measures and prints, and knows only one of the two libraries.
"""

from __future__ import annotations

import sys
from typing import Any

from common import THREADS, emit, in_turn, limit_threads, parsed, parser, repeated, table, write

PEERS = ("ag", "BLAS")
Case = tuple[str, int, int, int, int, bool, bool]
# What the rule says of it: batch, rows, columns and inner axis, and whether the factors lie transposed.
CASES: list[Case] = [
    ("small, as it lies", 1, 16, 16, 16, False, False),
    ("small, as it lies", 1, 32, 24, 32, False, False),
    ("matrix by vector", 1, 1000, 1, 1000, False, False),
    ("transposed by vector", 1, 1000, 1, 1000, True, False),
    ("row by matrix", 1, 1, 1000, 1000, False, False),
    ("few columns", 1, 512, 8, 512, False, False),
    ("few rows", 1, 8, 512, 512, False, False),
    ("packed", 1, 64, 64, 64, False, False),
    ("packed", 1, 128, 128, 128, False, False),
    ("packed", 1, 256, 256, 256, False, False),
    ("packed, A transposed", 1, 256, 256, 256, True, False),
    ("packed, B transposed", 1, 256, 256, 256, False, True),
    ("packed", 1, 512, 512, 512, False, False),
    ("packed, odd sizes", 1, 317, 211, 509, False, False),
    ("long inner axis", 1, 64, 64, 8192, False, False),
    ("packed", 1, 1024, 1024, 1024, False, False),
    ("batch", 32, 64, 64, 32, False, False),
]


def main() -> None:
    command_line = parser(__doc__, seconds=0.2, rounds=5)
    command_line.add_argument("--peer", choices=PEERS, help="measure in this process, with so many --threads")
    command_line.add_argument("--threads", type=int, default=1)
    if "--peer" in sys.argv:
        args = command_line.parse_args()
        limit_threads(args.threads)
        measure(args.peer, args.threads, args.seconds, CASES[:9:4] if args.quick else CASES)
        return
    args = parsed(command_line)
    more = ["--seconds", str(args.seconds), *(["--quick"] if args.quick else [])]
    peers = {f"{peer}, {count}": ["env", f"AG_THREADS={count}", sys.executable, "products.py", "--peer", peer,
                                  "--threads", str(count), *more]
             for count in ((1,) if args.quick else (1, THREADS)) for peer in PEERS}
    rows = in_turn(peers, args.rounds, args.keep)
    results = []
    for case, threads in dict.fromkeys((row["case"], row["threads"]) for row in rows):
        same = [row for row in rows if (row["case"], row["threads"]) == (case, threads)]
        us = {peer: [row["us"] for row in same if row["library"] == peer] for peer in PEERS}
        least = {peer: min(us[peer]) for peer in PEERS}
        results.append({"case": case, "threads": threads, "ag_us": least["ag"], "blas_us": least["BLAS"],
                        "x_blas": least["BLAS"] / least["ag"], "rounds": us})
    table(["product", "threads", "ag us", "BLAS us", "speed against BLAS"],
          [[r["case"], r["threads"], r["ag_us"], r["blas_us"], r["x_blas"]] for r in results])
    write("products", args, results=results)


def measure(peer: str, threads: int, seconds: float, cases: list[Case]) -> None:
    """Print the least time of each product."""
    import numpy as np

    rng = np.random.default_rng(0)
    for rule, batch, rows, cols, inner, ta, tb in cases:
        a = rng.standard_normal((batch, inner, rows) if ta else (batch, rows, inner), np.float32)
        b = rng.standard_normal((batch, cols, inner) if tb else (batch, inner, cols), np.float32)
        if batch == 1:
            a, b = a[0], b[0]
        work = (by_ag if peer == "ag" else by_blas)(a, b, ta, tb)
        name = f"{rule}: {f'{batch} of ' if batch > 1 else ''}{rows} x {inner} by {inner} x {cols}"
        emit(case=name, library=peer, us=1e6 * min(repeated(work, seconds)), threads=threads)


def by_ag(a: Any, b: Any, ta: bool, tb: bool) -> Any:
    """The product by the CPU device, which must have its kernels in C."""
    from ag.engine.device import backend_of
    from ag.engine.dtype import F32
    from ag.engine.kernels.matmul import batched_matmul, matmul

    backend = backend_of("cpu")
    if "kernels" not in backend.info.driver:
        raise SystemExit("products.py: the CPU device has no kernels in C here; run `make setup`.")
    operands = [backend.alloc(x.shape, F32) for x in (a, b)]
    for operand, x in zip(operands, (a, b), strict=True):
        backend.upload(x, operand)
    inner = a.shape[-2 if ta else -1]
    params: dict[str, Any] = {"ta": ta, "tb": tb}
    if a.ndim == 3:
        return lambda: backend.launch(batched_matmul, *operands, **params, chunk=inner)
    return lambda: backend.launch(matmul, *operands, **params)


def by_blas(a: Any, b: Any, ta: bool, tb: bool) -> Any:
    """The product by numpy, into memory that is there."""
    import numpy as np

    x, y = a.swapaxes(-1, -2) if ta else a, b.swapaxes(-1, -2) if tb else b
    out = np.empty((*x.shape[:-1], y.shape[-1]), np.float32)
    return lambda: np.matmul(x, y, out=out)


if __name__ == "__main__":
    main()
