"""The host's part of a training step on a Vulkan device: W1 to W4 on a device that takes no time.

The layer of third_party/kp/fault, compiled here, submits nothing, so that what is left is Python, Kompute and the
driver's part on the host: what a card waits for if a step is short.  Needs a C compiler and the headers of Vulkan.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import HERE, in_turn, medians, parsed, parser, table, write

FAULT = HERE.parent / "third_party" / "kp" / "fault"
FIGURES = ["captured_us", "captured_read_us", "submits", "eager_us", "launches", "launch_us"]


def main() -> None:
    args = parsed(parser(__doc__, device="vulkan:0", seconds=0.5))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", Path(folder, "libkpfault.so"), FAULT / "fault.c"], check=True)
        Path(folder, "VkLayer_kpfault.json").write_text((FAULT / "VkLayer_kpfault.json").read_text("utf-8"), "utf-8")
        os.environ |= {"VK_LAYER_PATH": folder, "VK_INSTANCE_LAYERS": "VK_LAYER_KP_fault"}
        command = [sys.executable, "host_ag.py", "--device", args.device, "--seconds", str(args.seconds)]
        rows = in_turn({"ag": command}, args.rounds, args.keep)
    found = {figure: medians(rows, ["workload"], figure) for figure in FIGURES}
    results = [{"workload": name, **{figure: found[figure][name,] for figure in FIGURES}}
               for (name,) in found[FIGURES[0]]]
    table(["workload", *FIGURES], [list(r.values()) for r in results])
    for name in ("VK_LAYER_PATH", "VK_INSTANCE_LAYERS"):
        del os.environ[name]
    write("host", args, results=results)


if __name__ == "__main__":
    main()
