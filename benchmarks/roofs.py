"""What a device can do at most, measured on the device itself: FFMA peak, copy bandwidth, time of an empty launch.

On a Vulkan device ffma.comp keeps independent chains of FMAs in registers; on a CPU device the peak is that of a large
matrix product.  `python benchmarks/roofs.py` compiles the kernel, for a machine without glslangValidator.
"""

from __future__ import annotations

import statistics
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

from common import HERE, THREADS, repeated

_SHADER = HERE / "ffma.comp"
_SPIRV = HERE / "spv" / "ffma"
_FLOPS_PER_LOOP = 8 * 4 * 2  # as in the shader: 8 chains of 4 numbers, an FMA each
_GROUP = 256
_LONGEST_LOOP = 65_000  # one driver ends loops soon after


def spirv() -> bytes:
    """The FFMA kernel, compiled if there is none of this source: its file carries the source's hash in its name."""
    found = _SPIRV.with_suffix(f".{sha256(_SHADER.read_bytes()).hexdigest()[:16]}.spv")
    if not found.is_file():
        _SPIRV.parent.mkdir(exist_ok=True)
        try:
            subprocess.run(["glslangValidator", "-V", str(_SHADER), "-o", str(found)], check=True, capture_output=True)
        except FileNotFoundError:
            raise SystemExit(f"roofs: {found.name} is missing and so is glslangValidator; install glslang-tools, or "
                             f"run `python benchmarks/roofs.py` where it is and bring benchmarks/spv/.") from None
    return found.read_bytes()


def ffma_on_vulkan(backend: Any, quick: bool) -> float:
    """FLOP/s of the kernel, by device timestamps: the best of five, with a launch of about 20 ms."""
    import numpy as np

    from ag.engine.backends.vulkan.devices import DRIVERS

    device = DRIVERS.manager(int(backend.name.partition(":")[2]))
    period = device.get_device_properties()["timestamp_period"] * 1e-9
    memory = device.arena(1024)
    algorithm = device.algorithm([memory], spirv(), (1, 1, 1), np.empty(0, np.uint32), np.zeros(2, np.uint32))

    def seconds(groups: int, loops: int) -> float:
        sequence = device.sequence(0, 1)
        sequence.dispatch(algorithm, struct.pack("If", loops, 0.5), groups, 1, 1, True)
        begin, end = sequence.eval().get_timestamps()
        return float((end - begin) * period)

    groups, loops = 8, 64
    seconds(groups, loops)
    while seconds(groups, loops) < (1e-3 if quick else 2e-2) and groups < 32_768:
        groups, loops = (groups, 4 * loops) if 4 * loops < _LONGEST_LOOP else (2 * groups, loops)
    best = min(seconds(groups, loops) for _ in range(5))
    return groups * _GROUP * loops * _FLOPS_PER_LOOP / best


def gemm_on_host(quick: bool) -> float:
    """FLOP/s of the best of several large products of numpy's."""
    import numpy as np

    n = 256 if quick else 2048
    a, out = np.ones((n, n), np.float32), np.empty((n, n), np.float32)
    return 2 * n**3 / min(repeated(lambda: np.matmul(a, a, out), 0.1, 5))


def copy_on_host(quick: bool) -> float:
    """Bytes per second read and written by copying in as many threads as the benchmarks use."""
    import numpy as np

    size = 1 << (18 if quick else 25)
    source, target = np.ones(size, np.float32), np.empty(size, np.float32)
    parts = [slice(i * size // THREADS, (i + 1) * size // THREADS) for i in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        def copy() -> None:
            list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))

        return 8 * size / min(repeated(copy, 0.1, 5))


def copy_on_vulkan(backend: Any, quick: bool) -> float:
    """Bytes per second read and written by the best of a copy command and the copy kernel, at 1 GiB on a card."""
    import ag
    from ag.engine.dtype import F32
    from ag.engine.kernels.elementwise import copy

    size = 1 << (16 if quick else 27 if backend.info.kind != "cpu" else 22)
    source, target = backend.alloc((size,), F32), backend.alloc((size,), F32)
    with ag.profile() as seen:
        for _ in range(6):
            backend.assign(target, source)
            backend.launch(copy, source, into=target)
    return 8e9 * size / min(e.end - e.begin for e in seen.events[2:])


def empty_launch(backend: Any) -> float:
    """Seconds of a launch of one element between others like it, which it waits for."""
    import ag
    from ag.engine.dtype import F32
    from ag.engine.kernels.elementwise import copy

    source, target = backend.alloc((1,), F32), backend.alloc((1,), F32)
    with ag.profile() as seen:
        for _ in range(100):
            backend.launch(copy, source, into=target)
            backend.launch(copy, target, into=source)
    return statistics.median(e.end - e.begin for e in seen.events[20:]) / 1e9


def measure(backend: Any, quick: bool) -> dict[str, float]:
    """FLOP/s, bytes/s and seconds of an empty launch."""
    on_host = not backend.asynchronous
    flops = gemm_on_host(quick) if on_host else ffma_on_vulkan(backend, quick)
    copied = copy_on_host(quick) if on_host else copy_on_vulkan(backend, quick)
    return {"flops": flops, "bytes": copied, "empty": empty_launch(backend)}


if __name__ == "__main__":
    print(f"{len(spirv())} bytes in {_SPIRV.parent.relative_to(HERE.parent)}")
