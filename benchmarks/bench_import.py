"""What `import ag` takes on top of numpy's own import, of the main thread's time, and a first training step after it.

Every measurement is an interpreter of its own that imports numpy, then ag, and then makes one step of a small model.
The best of all rounds counts: other work on the machine adds to a time and never takes from it.  Two copies of ag are
imported, one compiled to bytecode, as pip does when it installs, and one not, whose files are compiled in every round,
as those of a clone are the first time, or always where PYTHONDONTWRITEBYTECODE is set.
"""

from __future__ import annotations

import sys
from compileall import compile_dir
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory

from common import HERE, in_turn, parsed, parser, table, write

WITH, WITHOUT = "with bytecode", "without"
PEER = """
import json, os, sys
sys.path.insert(0, {copy!r})
sys.dont_write_bytecode = True
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.pop(name, None) if {free} else os.environ.update({{name: "1"}})
from time import thread_time as now
begin = now()
import numpy
after_numpy, before = now(), len(sys.modules)
import ag
after_ag, modules = now(), len(sys.modules) - before
model = ag.nn.Linear(2, 1)
optimizer = ag.optim.Adam(model.parameters())
with ag.with_grad_tape():
    loss = ag.ops.mean(model(ag.ag_tensor([[1.0], [2.0]])) ** 2)
optimizer.step(ag.backward(loss))
loss.item()
print(json.dumps(dict(numpy_ms=1e3 * (after_numpy - begin), ag_ms=1e3 * (after_ag - after_numpy), modules=modules,
                      step_ms=1e3 * (now() - after_ag))))
"""


def main() -> None:
    args = parsed(parser(__doc__, rounds=5))
    with TemporaryDirectory() as folder:
        peers = {}
        for compiled in (WITH, WITHOUT):
            copy = f"{folder}/{compiled}"
            copytree(HERE.parent / "ag", f"{copy}/ag", ignore=ignore_patterns("__pycache__"))
            if compiled == WITH:
                compile_dir(copy, quiet=1)
            for threads in ("as they are", "1"):
                code = PEER.format(copy=copy, free=threads != "1")
                peers[f"{compiled}, BLAS threads {threads}"] = [sys.executable, "-c", code]
        rows = in_turn(peers, args.rounds, args.keep)
    results = []
    for peer in peers:
        rounds = [{name: value for name, value in row.items() if name not in ("peer", "round")}
                  for row in rows if row["peer"] == peer]
        best = {name: min(row[name] for row in rounds) for name in rounds[0]}
        results.append({"peer": peer, **best, "ratio": best["ag_ms"] / best["numpy_ms"], "rounds": rounds})
    table(["import", "numpy ms", "ag ms", "ratio", "modules", "first step ms"],
          [[r["peer"], r["numpy_ms"], r["ag_ms"], r["ratio"], r["modules"], r["step_ms"]] for r in results])
    write("import", args, results=results)


if __name__ == "__main__":
    main()
