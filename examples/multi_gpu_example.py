"""Use devices by hand: list them, open each, place work, move values and time all of it.

The low-level use that ends ggmlR's vignette (inst/examples/multi_gpu_example.R); `dp_train` does all this by itself.
"""

import argparse
import sys
from time import perf_counter

import numpy as np

import ag

ROUNDS = 5


def seconds(work, devices: list[str]) -> float:
    """The shortest of a few runs; launches on a card return at once, so the clock stops when the devices are done."""
    times = []
    for _ in range(ROUNDS + 1):  # the first one warms up
        begin = perf_counter()
        work()
        for device in devices:
            ag.ag_synchronize(device)
        times.append(perf_counter() - begin)
    return min(times[1:])


if __name__ == "__main__":
    cards = ag.ag_vulkan_devices()
    parser = argparse.ArgumentParser(description="Use several devices by hand.")
    parser.add_argument("--devices", default=",".join([*(card.name for card in cards), "cpu"]),
                        help="names, with commas between (default: %(default)s)")
    parser.add_argument("--size", type=int, default=512, help="rows of the matrices (default: %(default)s)")
    options = parser.parse_args()
    devices, n = options.devices.split(","), options.size

    print("1. Devices")
    for card in cards:
        print(f"{card.name}: {card.description}, {card.kind}, {card.memory_bytes / 2**30:.1f} GiB")
    print(f"used here: {', '.join(devices)}")

    print("\n2. The whole product on each device")
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(n, n)).astype("f"), rng.normal(size=(n, n)).astype("f")
    placed = {device: (ag.ag_tensor(A, device=device), ag.ag_tensor(B, device=device)) for device in devices}
    alone = {device: seconds(lambda d=device: placed[d][0] @ placed[d][1], [device]) for device in devices}
    for device in devices:
        print(f"{device}: {alone[device] * 1e3:.2f} ms, {2 * n**3 / alone[device] / 1e9:.1f} GFLOP/s")

    print("\n3. The rows shared out by speed, all devices at work")
    speeds = np.array([1 / alone[device] for device in devices])
    ends = np.round(n * np.cumsum(speeds) / speeds.sum()).astype(int)
    shares = zip(devices, np.split(A, ends[:-1]), strict=True)
    parts = {device: ag.ag_tensor(rows, device=device) for device, rows in shares if len(rows)}
    together = seconds(lambda: [rows @ placed[d][1] for d, rows in parts.items()], list(parts))
    print(f"{', '.join(f'{d} {len(rows)} rows' for d, rows in parts.items())}: {together * 1e3:.2f} ms")

    print("\n4. The parts moved to one device and joined")
    moved = [ag.ag_to_device(rows @ placed[d][1], devices[0]) for d, rows in parts.items()]
    largest = np.abs(ag.ops.concat(moved, dim=0).numpy() - A @ B).max()
    copy = seconds(lambda: ag.ag_to_device(placed[devices[-1]][0], devices[0]), devices)
    print(f"{devices[-1]} to {devices[0]}: {A.nbytes / copy / 1e9:.2f} GB/s; largest error: {largest:.1e}")
    if largest > 1e-6 * n:
        sys.exit("FAILED: the parts must be the product")
