"""Read the safetensors files of another program's weights: one file, the one in a folder, or shards with their index.

    model.safetensors.index.json    {"weight_map": {"h.0.ln_1.weight": "model-00001-of-00002.safetensors", ...}}
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import NoReturn

from ag.engine.primitive import Array
from ag.errors import CheckpointError
from ag.io.safetensors_file import read_regular, read_tensors

_INDEX = ".index.json"
_USUAL = ("model.safetensors", "model.safetensors.index.json")  # what a folder of Hugging Face has, the first first
_WRITE = "PyTorch writes one by safetensors.torch.save_file(model.state_dict(), path)."


def read_weights(path: str | os.PathLike[str], function: str) -> tuple[dict[str, str], dict[str, Array]]:
    """Return header and arrays of a file, of the one in a folder, or of all shards of an index."""
    name = os.fsdecode(path)
    if os.path.isdir(name):
        files = sorted(os.listdir(name))
        found = [x for x in _USUAL if x in files][:1] or [x for x in files if x.endswith(".safetensors")]
        if len(found) != 1:
            pickles = [f"{x}, which is a pickle" for x in files if x.endswith((".bin", ".pt", ".pth"))]
            there = f"{len(found)} of them" if found else [*pickles, "none"][0]
            _refuse(function, name, f"it is a folder with {there}",
                    f"a folder with one safetensors file, or with {_USUAL[1]}, is required. {_WRITE}")
        name = os.path.join(name, found[0])
    return ({}, _shards(name, function)) if name.endswith(_INDEX) else _read(name, function)


def _refuse(function: str, name: str, what: str, instead: str, error: Exception | None = None) -> NoReturn:
    raise CheckpointError(f"{function}: {name} cannot be read ({what}); {instead}") from error


def _read(name: str, function: str) -> tuple[dict[str, str], dict[str, Array]]:
    """Return header and arrays of one file; say of well-known other ones what they are."""
    try:
        return read_tensors(name, function)
    except CheckpointError as error:
        head, required = b"", "a safetensors file is required."
        with suppress(OSError):
            head = read_regular(name, 0, 4)
        if not os.path.lexists(name):
            model = "MODEL" if os.path.splitext(name)[1] else name
            _refuse(function, name, "there is no such file", f"{required} Names of a hub are not looked up: download "
                    f"the file, as by `hf download {model} model.safetensors`, and give its path. {_WRITE}", error)
        if head == b"PK\3\4" or head[:1] == b"\x80":
            _refuse(function, name, "it is a pickle, which runs code when it is read", f"{required} Convert it once "
                    f"where PyTorch is: safetensors.torch.save_file(torch.load({os.path.basename(name)!r}, "
                    f"weights_only=True), \"model.safetensors\").", error)
        if head == b"GGUF":
            _refuse(function, name, "it is a GGUF file", f"{required} Give the one that it was made of.", error)
        raise


def _shards(index: str, function: str) -> dict[str, Array]:
    """Return the arrays of all shards."""
    try:
        files = dict(json.loads(read_regular(index))["weight_map"])
        if not files or not all(isinstance(x, str) and x == os.path.basename(x) != "" for x in files.values()):
            raise ValueError("its weight_map does not name files beside it")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        _refuse(function, index, str(error).rstrip("."), "an index with a weight_map from names to files is required.",
                error)
    folder, shards = os.path.dirname(index), sorted(set(files.values()))
    gone = [x for x in shards if not os.path.exists(os.path.join(folder, x))]
    if gone:
        _refuse(function, index, f"{len(gone)} of its {len(shards)} shards are missing, such as {gone[0]}",
                "all are required. Put them beside the index.")
    arrays: dict[str, Array] = {}
    for shard in shards:
        found = _read(os.path.join(folder, shard), function)[1]
        lost = [name for name, x in files.items() if x == shard and name not in found]
        twice = sorted(arrays.keys() & found.keys())
        if lost or twice:
            what = f"{shard} lacks {lost[0]}" if lost else f"{twice[0]} is in {shard} and another shard"
            _refuse(function, index, what, "the shards of one model are required. Download them again.")
        arrays |= found
    return arrays
