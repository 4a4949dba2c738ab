"""Products of packed weights against float32's, in turn in one process with one thread.

Matrices of a small Llama and a square one by 128 and 512 columns, as they lie and transposed, as gradients need them;
and 8192 x 8192 by one column, where memory decides.  Figures are the least times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from common import limit_threads, parsed, parser, seconds_of, table, write

limit_threads(1)

import numpy as np  # noqa: E402 - after the thread pools are limited

import ag  # noqa: E402
from ag.engine.kernels.matmul import matmul  # noqa: E402
from ag.engine.kernels.packed import packed_matmul  # noqa: E402

TYPES = "bf16", "f16", "q8_0", "q4_0", "q4_1"
MANY = [((rows, inner), columns) for rows, inner in ((576, 576), (1536, 576), (576, 1536), (2048, 2048))
        for columns in (128, 512)]
ONE = [((8192, 8192), 1)]
QUICK = [((64, 64), 8)], [((256, 256), 1)]


def measured(shape: tuple[int, int], columns: int, turned: bool, rounds: int) -> list[dict[str, Any]]:
    """The least time of the product in every type."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(shape, np.float32)
    rows, inner = shape[::-1] if turned else shape
    x, w = (ag.ag_tensor(y, "cpu").buffer for y in (rng.standard_normal((inner, columns), np.float32), values))
    launch = x.backend.launch
    products: dict[str, Callable[[], Any]] = {"f32": partial(launch, matmul, w, x, ta=turned, tb=False)}
    products |= {name: partial(launch, packed_matmul, x, ag.ag_frozen(values, name, device="cpu").memory.home,
                               packing=name, rows=rows, inner=inner, ta=turned) for name in TYPES}
    times: dict[str, list[float]] = {name: [] for name in products}
    for count in range(rounds + 1):
        for name, product in products.items():
            taken = seconds_of(product)
            if count:
                times[name].append(1e6 * taken)
    least = {name: min(found) for name, found in times.items()}
    return [{"shape": shape, "columns": columns, "turned": turned, "type": name, "us": us,
             "x_f32": least["f32"] / us} for name, us in least.items()]


def main() -> None:
    args = parsed(parser(__doc__, rounds=15))
    many, one = QUICK if args.quick else (MANY, ONE)
    results = [row for shape, columns in many for turned in (False, True)
               for row in measured(shape, columns, turned, args.rounds)]
    results += [row for shape, columns in one for row in measured(shape, columns, False, args.rounds)]
    table(["rows x inner", "columns", "transposed", "type", "us", "speed against float32's"],
          [[f"{r['shape'][0]} x {r['shape'][1]}", r["columns"], r["turned"], r["type"], r["us"], r["x_f32"]]
           for r in results])
    ratios = [r["x_f32"] for r in results if r["columns"] > 1 and r["type"] != "f32"]
    print(f"\nmany columns: median {statistics.median(ratios):.3f} (0.95 wanted), least {min(ratios):.3f} (0.8 wanted)")
    print("one column: " + ", ".join(f"{r['type']} {r['x_f32']:.2f}" for r in results if r["columns"] == 1) +
          " (1.6 wanted of bf16, 2.2 of q8_0 and q4)")
    write("packed", args, results=results)


if __name__ == "__main__":
    main()
