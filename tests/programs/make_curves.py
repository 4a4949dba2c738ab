"""Run programs in PyTorch and store their losses: ``python tests/programs/make_curves.py [NAME ...]``."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

if __name__ == "__main__":
    import torch
    from programs.drawn import Draw

    torch.set_num_threads(1)
    for name in sys.argv[1:] or sorted(path.stem for path in (HERE / "in_pytorch").glob("*.py")):
        step, batches = import_module(f"programs.in_pytorch.{name}").program(Draw())
        curve = [float(step(*batch)) for batch in batches]
        (HERE / "curves" / f"{name}.json").write_text(json.dumps(curve) + "\n", "utf-8")
        print(name, curve)
