"""Files of arrays: safetensors with a text header, written atomically.

What is written goes to a temporary file, is flushed to the disk and renamed: readers see the old file or the new one.
What killed savers left is removed. Knows nothing of what the header says; its callers `ag.io.model_file`,
`ag.io.checkpoint` and `ag.parallel.trainer.checkpoint` decide that.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, deserialize, safe_open

from ag.autograd.tensor import Tensor
from ag.engine.dtype import BF16, DType, as_dtype
from ag.engine.kernels.convert import BFLOAT16, stored
from ag.engine.primitive import Array
from ag.errors import CheckpointError

__all__ = ["element_type", "elements_of", "read_file", "to_json", "write_file"]

_ABANDONED = 600.0  # seconds after which a temporary file that did not grow is not being written any more


def write_file(path: str | os.PathLike[str], arrays: dict[str, Array], header: dict[str, str]) -> None:
    """Write a safetensors file next to the target, flush it to disk, then rename: readers see the old or the new."""
    target = Path(path)
    content = _bytes(arrays, header)
    temporary = target.with_name(f".{target.name}.{token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # mkstemp's would be private
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _remove_abandoned(target)


def to_json(value: object, what: str, function: str) -> str:
    """Text for a header.

    Raises
    ------
    TypeError
        If JSON cannot hold it; `what` and `function` begin the message.
    """
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{function}: {what} cannot be written as JSON ({error}); use numbers, strings, lists "
                        f"and dicts.") from error


def _remove_abandoned(target: Path) -> None:
    """Remove what saves of this target left behind that were killed, but nothing that another process is writing."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}")
    with suppress(OSError), os.scandir(target.parent) as entries:  # the file is saved, whatever becomes of these
        for entry in entries:
            with suppress(OSError):  # gone meanwhile, or someone else's
                if (ours.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
                        and entry.stat(follow_symlinks=False).st_mtime < time.time() - _ABANDONED):
                    os.unlink(entry.path)


def read_file(path: str | os.PathLike[str], form: str, function: str) -> tuple[dict[str, str], dict[str, Array]]:
    """Header and arrays of a safetensors file of the given format.

    Raises
    ------
    CheckpointError
        If it is missing, truncated, foreign, or of another format.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            header: dict[str, str] = file.metadata() or {}
            known = header.get("format") == form
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()} if known else {}  # noqa: SIM118
            for kind in types.values():
                as_dtype(kind.lower(), function)  # the format has types that numpy and we have not
            arrays = {} if "BF16" in types.values() else {name: file.get_tensor(name) for name in types}
        if "BF16" in types.values():
            header, arrays = _with_bfloat16(Path(path).read_bytes())
            known = header.get("format") == form  # the file may be another one now
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{function}: {os.fspath(path)} cannot be read ({str(error).rstrip('.')}); a complete "
                              f"file of format {form!r} is required.") from error
    if not known:
        raise CheckpointError(f"{function}: {os.fspath(path)} has format {header.get('format')!r:.60}; "
                              f"{form!r} is required.")
    return header, arrays


# ---------------------------------------------------------------------------------------------- bfloat16

# numpy has no such type, and safetensors reads and writes what numpy has.


def elements_of(x: Tensor) -> Array:
    """A tensor's elements for a file, those of bfloat16 as `BFLOAT16`."""
    array = x.numpy()
    return stored(array, BF16).view(BFLOAT16) if x.buffer.dtype is BF16 else array


def element_type(array: Array) -> DType:
    """The type of an array from a file."""
    return BF16 if array.dtype == BFLOAT16 else as_dtype(array.dtype, "read_file")


def _bytes(arrays: dict[str, Array], header: dict[str, str]) -> bytes:
    """A safetensors file: bfloat16 is written as whole numbers of its size, then named in the file's header."""
    bfloat = [name for name, array in arrays.items() if array.dtype == BFLOAT16]
    whole = {name: arrays[name].view(np.uint16) for name in bfloat}
    content = safetensors.numpy.save(arrays | whole, header)
    if not bfloat:
        return content
    size = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + size])
    for name in bfloat:
        entries[name]["dtype"] = "BF16"
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # what follows stays aligned
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _with_bfloat16(content: bytes) -> tuple[dict[str, str], dict[str, Array]]:
    """Header and arrays of a safetensors file."""
    arrays = {}
    for name, entry in deserialize(content):  # type: ignore[no-untyped-call]
        kind = as_dtype(entry["dtype"].lower(), "read_file")
        numpy_type = BFLOAT16 if kind is BF16 else np.dtype(kind.numpy_name)
        arrays[name] = np.frombuffer(entry["data"], numpy_type).reshape(entry["shape"])
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]).get("__metadata__") or {}, arrays
