"""All golden entries by name, and what each device's hashes are kept under.

An entry is a function of a device's name that returns numbers and hashes.  Uses only the public API of `ag`, so that
files inside it can move.  record.py writes what the entries give to golden.json, and test_golden.py compares.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from golden import operations, parallel, trainings
from golden.hashing import Found, hash_of

import ag
from ag.engine.backends.cpu.backend import device_info

FILE = Path(__file__).with_name("golden.json")
SKETCHES = FILE.with_name("sketches.json")


def loader_order(_device: str) -> Found:
    """Batches of a seeded loader over three epochs, with and without prefetching."""
    x, y = np.arange(26, dtype=np.float32).reshape(2, 13), np.arange(13)
    found = {}
    for prefetch in (0, 2):
        loader = ag.ag_dataloader(x, y, batch_size=4, seed=21, prefetch=prefetch)
        found |= {f"{prefetch} {epoch} {k}": np.concatenate([batch.x.numpy(), batch.y[None]])
                  for epoch in range(3) for k, batch in enumerate(loader)}
    ag.ag_seed(3)
    found |= {f"global seed {k}": batch.y for k, batch in enumerate(ag.ag_dataloader(x, y, batch_size=4))}
    return {"batches": hash_of(found)}


def file_hash(path: Path) -> str:
    """Hash of a file of safetensors, whose library writes the names in the header in an order of chance."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:start]), sort_keys=True)
    return sha256(header.encode() + content[start:]).hexdigest()


def saved_files(_device: str) -> Found:
    """Contents of the files of a model, and of a training in progress."""
    ag.ag_seed(2)
    model = ag.ag_sequential(ag.ag_linear(3, 4, activation="relu"), ag.ag_batch_norm(4), ag.ag_linear(4, 2))
    optimizer = ag.optimizer_adam(model)
    with tempfile.TemporaryDirectory() as folder:
        ag.ag_save_model(model, Path(folder, "model"))
        ag.ag_save_checkpoint(Path(folder, "training"), model, optimizer)
        return {path.name: file_hash(path) for path in sorted(Path(folder).iterdir())}


ENTRIES: dict[str, Callable[[str], Found]] = {
    **trainings.entries(), **parallel.entries(), **operations.entries(), "loader order": loader_order,
    "saved files": saved_files,
}


def measured(name: str, device: str) -> Found:
    """Return what an entry gives on a device now; default device and default type are afterwards as before."""
    gc.collect()  # optimizers of a device share the scale of losses, also those that nobody uses any more
    with ag.ag_device(device), np.errstate(all="ignore"):
        return ENTRIES[name](device)


# ---------------------------------------------------------------------------------------------- whose bits


def kind(name: str) -> str:
    """Return what devices of one kind have in common: their fingerprints begin with the same word."""
    return name.split()[0]


@cache
def machine_of(device: str) -> str:
    """Describe a device: numpy and what its products and functions give, and for Vulkan the driver, too."""
    host = device_info("cpu").driver  # numpy, and kernels in C if there are any
    if device == "cpu":
        return f"{host}, {_short(_numpy_bits(1, 7, 64, 300, 1031))}"
    info = next(info for info in ag.ag_vulkan_devices() if info.name == device)
    # A software driver compiles for its processor; the host's part, such as norms of `dp_train`, is small vectors.
    place = _processor() if info.kind == "cpu" else info.vendor
    return (f"{info.description}, driver {info.driver}, on {place}, {host}, "
            f"{_short(_numpy_bits(1, 7, 64))}")


def fingerprint(device: str) -> str:
    """The name under which golden.json keeps a device's bits: the machine, and for Vulkan what a few ops give."""
    words = machine_of(device)
    return words if device == "cpu" else f"{words}; {_short(_op_bits(device))}"


def _short(arrays: dict[str, np.ndarray]) -> str:
    return hash_of(arrays)[:12]


def _numpy_bits(*sizes: int) -> dict[str, np.ndarray]:
    """Bits that depend on the processor, on numpy's build and on the number of its threads."""
    rng, found = np.random.default_rng(1), {}
    for n in sizes:
        a, b = rng.standard_normal((2, n, n)).astype(np.float32)
        found[f"product {n}"], found[f"transposed {n}"], found[f"by vector {n}"] = a @ b, a.T @ b, a @ b[0]
        found[f"narrow {n}"], found[f"dot {n}"] = a[: n // 2 + 1] @ b[:, :3], a.ravel().dot(b.ravel())
        found[f"double {n}"] = a.astype(np.float64) @ b
        found |= {f"{f.__name__} {n}": f(a) for f in (np.exp, np.tanh, np.sum, np.sin, np.exp2)}
        found[f"log {n}"], found[f"sum {n}"] = np.log(np.abs(a) + 1), a.sum(0)
    return found


def _op_bits(device: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    with ag.ag_device(device), ag.no_grad():
        a, b = (ag.ag_tensor(rng.standard_normal((65, 65)).astype(np.float32)) for _ in range(2))
        return {"matmul": (a @ b).numpy(), "exp": ag.ag_exp(a).numpy(), "softmax": ag.ag_softmax(a).numpy(),
                "sum": ag.ag_sum(a, 1).numpy()}


def _processor() -> str:
    """The processor's instruction sets, hashed: a software driver compiles for them."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line.split(":")[1] for line in lines if line.startswith(("flags", "Features"))), "an unknown one")
    return f"{os.uname().machine} {sha256(' '.join(sorted(flags.split())).encode()).hexdigest()[:8]}"
