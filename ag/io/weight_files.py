"""Find and read the safetensors files of another program's weights: one file, a folder, or shards with their index.

    model.safetensors.index.json    {"weight_map": {"h.0.ln_1.weight": "model-00001-of-00002.safetensors", ...}}
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from ag.engine.primitive import Array
from ag.errors import CheckpointError
from ag.io.safetensors_file import read_regular, read_tensors

_INDEX = ".index.json"
_USUAL = ("model.safetensors.index.json", "model.safetensors")  # what a folder of Hugging Face has
_WRITE = "safetensors.torch.save_file"


def read_weights(path: str | os.PathLike[str], function: str) -> tuple[dict[str, str], dict[str, Array]]:
    """Return header and arrays of a file, of the one in a folder, or of all shards of an index."""
    name = os.fsdecode(path)
    if os.path.isdir(name):
        name = _in_folder(name, function)
    return ({}, _shards(name, function)) if name.endswith(_INDEX) else _read(name, function)


def _read(name: str, function: str) -> tuple[dict[str, str], dict[str, Array]]:
    """Return header and arrays of one file."""
    try:
        return read_tensors(name, function)
    except CheckpointError as error:
        if (known := _known(name)) is None:
            raise
        raise CheckpointError(f"{function}: {name} cannot be read ({known[0]}); a safetensors file is required. "
                              f"{known[1]}") from error


def _known(name: str) -> tuple[str, str] | None:
    """Name what a file is that is no safetensors file, and what to do; None if that is not known."""
    if not os.path.lexists(name):
        model = name if os.path.splitext(name)[1] == "" else "MODEL"
        return "there is no such file", (
            f"Names of a hub are not looked up: download the file, as by `hf download {model} model.safetensors`, and "
            f"give its path. PyTorch writes one by {_WRITE}(model.state_dict(), path).")
    head = b""
    with suppress(OSError):
        head = read_regular(name, 0, 4)
    if head == b"PK\3\4" or head[:1] == b"\x80":
        return "it is a pickle, which runs code when it is read", (
            f"Convert it once where PyTorch is: {_WRITE}(torch.load({os.path.basename(name)!r}, weights_only=True), "
            f"\"model.safetensors\").")
    return ("it is a GGUF file", "Give the safetensors file that it was made of.") if head == b"GGUF" else None


def _in_folder(folder: str, function: str) -> str:
    """Return the path of the weights in a folder: their index, or the only file."""
    files = sorted(os.listdir(folder))
    found = [x for x in _USUAL if x in files][:1] or [x for x in files if x.endswith(".safetensors")]
    if len(found) != 1:
        pickles = [x for x in files if x.endswith((".bin", ".pt", ".pth"))]
        there = f"{len(found)} of them" if found else f"{pickles[0]}, which is a pickle" if pickles else "none"
        raise CheckpointError(f"{function}: {folder} cannot be read (it is a folder with {there}); a folder with one "
                              f"safetensors file, or with {_USUAL[0]}, is required. Give the path of a file; PyTorch "
                              f"writes one by {_WRITE}(model.state_dict(), path).")
    return os.path.join(folder, found[0])


def _shards(index: str, function: str) -> dict[str, Array]:
    """Return the arrays of all shards."""
    try:
        files = dict(json.loads(read_regular(index))["weight_map"])
        if not files or not all(isinstance(x, str) and x == os.path.basename(x) != "" for x in files.values()):
            raise ValueError("its weight_map does not name files beside it")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{function}: {index} cannot be read ({str(error).rstrip('.')}); an index with a "
                              f"weight_map from names to files is required.") from error
    folder = os.path.dirname(index)
    shards = sorted(set(files.values()))
    gone = [x for x in shards if not os.path.exists(os.path.join(folder, x))]
    if gone:
        raise CheckpointError(f"{function}: {index} names {len(shards)} shards, and {', '.join(gone[:3])} "
                              f"{f'and {len(gone) - 3} more ' * (len(gone) > 3)}are not there; all are required. "
                              f"Put them beside the index.")
    arrays: dict[str, Array] = {}
    for shard in shards:
        found = _read(os.path.join(folder, shard), function)[1]
        lost = [name for name, x in files.items() if x == shard and name not in found]
        twice = sorted(arrays.keys() & found.keys())
        if lost or twice:
            what = f"does not have {lost[0]}, which the index promises" if lost else f"has {twice[0]}, as another has"
            raise CheckpointError(f"{function}: the shard {shard} {what}; the shards of one model are required. "
                                  f"Download them again.")
        arrays |= found
    return arrays
