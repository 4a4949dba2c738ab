"""Run a peer beside processes that keep a core busy each, as on a machine that others use: COUNT COMMAND...

bench_loaded.py calls it.
"""

from __future__ import annotations

import subprocess
import sys


def main() -> int:
    count, *command = sys.argv[1:]
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(int(count))]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    sys.exit(main())
