"""Read and write safetensors files with a text header, atomically."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, deserialize, safe_open

from ag.autograd.tensor import Tensor
from ag.engine.dtype import BF16, DType, as_dtype
from ag.engine.kernels.convert import BFLOAT16, stored
from ag.engine.primitive import Array
from ag.errors import CheckpointError

_LONGEST_NAME = 255 - len(".") - len(".0123abcd")  # bytes of a file's name with which a temporary file's begins
_ABANDONED = 600.0  # seconds after which a temporary file that did not grow is not being written any more


def write_file(path: str | os.PathLike[str], arrays: dict[str, Array], header: dict[str, str], function: str) -> None:
    """Write a safetensors file atomically; a ValueError names an array whose name the format cannot hold."""
    for name in arrays:
        if not isinstance(name, str) or name == "__metadata__" or name.encode(errors="ignore").decode() != name:
            raise ValueError(f"{_shown(path)} cannot be written: an array is called {name!r:.60}; a text other than "
                             f"'__metadata__' is required. Rename it.")
    replace_file(path, lambda: _bytes(arrays, header), function)


def replace_file(path: str | os.PathLike[str], content: Callable[[], bytes], function: str) -> None:
    """Replace a file; `content` is called once the path is known to be possible.

    A file that is there keeps its permissions, and stays as it was after an OSError; a symbolic link stays.
    """
    try:
        target = _target(path)
        _replace(target, content())
    except OSError as error:
        if error.errno:
            raise OSError(error.errno, f"{function}: {error.strerror}", error.filename) from error
        raise
    _remove_abandoned(target)


def absolute(path: Any) -> Any:
    """Return a path from the root, so that a later ``os.chdir`` does not move it; anything else as it is."""
    if not isinstance(path, (str, bytes, os.PathLike)) or not os.fspath(path):
        return path
    try:
        return os.path.join(os.getcwd(), os.fsdecode(path))
    except FileNotFoundError:  # the folder is gone, which the first use of the path will tell
        return path


def read_regular(path: str | os.PathLike[str], start: int = 0, size: int | None = None) -> bytes:
    """Return the content of a regular file, or `size` bytes from `start`; a pipe is an OSError, and not waited for."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("it is no regular file")
        rest = max(0, os.fstat(handle).st_size - start)
        if size is not None and size > rest:
            raise OSError(f"{_shown(path)} ends before {size} bytes from {start}")
        file.seek(min(start, os.fstat(handle).st_size))
        return file.read(size)


def check_writable(path: str | os.PathLike[str], function: str) -> None:
    """Refuse a path to which `write_file` could not write, by a CheckpointError; leaves nothing behind."""
    try:
        target = _target(path)
        other = _beside(target)
        try:
            _replace(other, bytes(4096), like=target)
        finally:
            other.unlink(missing_ok=True)
    except (OSError, TypeError, ValueError) as error:  # the last two if it is no path
        raise CheckpointError(f"{function}: {_shown(path)} cannot be written ({getattr(error, 'strerror', error)}); "
                              f"name a file in a folder that is there, is writable and has room.") from error


def _shown(path: object) -> str:
    """Return a path as messages name it."""
    name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    return name if name and name.isprintable() else repr(path)


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the file to which a path leads through symbolic links; an OSError if it can be none of ours."""
    try:
        name = os.fsdecode(path)
        target = Path(os.path.realpath(name))
        os.fsencode(target)
    except ValueError as error:  # a NUL or half a character
        raise OSError(errno.EINVAL, f"Not the name of a file: {error}", repr(path)) from error
    for number, is_so in ((errno.ENOENT, not name), (errno.EISDIR, target.is_dir() or name.endswith(os.sep)),
                          (errno.ELOOP, target.is_symlink()), (errno.EINVAL, target.exists() and not target.is_file()),
                          # renaming would get around what the file's owner has said
                          (errno.EACCES, target.exists() and not os.access(target, os.W_OK))):
        if is_so:
            raise OSError(number, "Not a regular file" if number == errno.EINVAL else os.strerror(number), name)
    return target


def _stem(target: Path) -> str:
    """Return the beginning of the names of a file's temporary files, short enough for a name."""
    return os.fsencode(target.name)[:_LONGEST_NAME].decode(errors="ignore")


def _beside(target: Path) -> Path:
    """Return the path of a new temporary file."""
    return target.with_name(f".{_stem(target)}.{token_hex(4)}")


def _replace(target: Path, content: bytes, like: Path | None = None) -> None:
    """Replace a file, completely or not at all, with the permissions of `like`, or else its own."""
    temporary = _beside(like or target)
    try:
        old = (like or target).stat()
    except FileNotFoundError:
        old = None
    try:
        # private until it has the old one's permissions; a new file has what the umask leaves
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if old is None else 0o600)
        with os.fdopen(handle, "wb") as file:
            if old is not None and hasattr(os, "fchown"):
                _keep_permissions(handle, old, like or target)
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno:  # the user knows the target, and not the temporary file
            raise OSError(error.errno, error.strerror, os.fspath(target)) from error
        raise


def _keep_permissions(handle: int, old: os.stat_result, path: Path) -> None:
    """Give a new file the owner, group, mode, access lists and attributes of the old one, where this process may."""
    mode = stat.S_IMODE(old.st_mode)
    for owner, group in ((-1, old.st_gid), (old.st_uid, -1)):
        with suppress(OSError):
            os.fchown(handle, owner, group)
    if os.fstat(handle).st_gid != old.st_gid:
        mode = mode & ~0o070 | (mode & 0o007) << 3  # another group may do no more than everybody
    os.fchmod(handle, mode)
    with suppress(OSError, AttributeError):  # the file system has none, or the operating system
        for name in os.listxattr(path):
            with suppress(OSError):
                os.setxattr(handle, name, os.getxattr(path, name))


def to_json(value: object, what: str, function: str) -> str:
    """Return JSON for a header; a TypeError that begins with `function` and `what` if there is none."""
    try:
        text = json.dumps(value)
        for key in _keys(value):
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r:.60} is no text, and would come back as one")
        return text
    except (TypeError, ValueError) as error:
        raise TypeError(f"{function}: {what} cannot be written as JSON ({error}); use numbers, strings, lists "
                        f"and dicts with strings for keys.") from error


def _keys(value: object) -> Iterator[object]:
    """Yield the keys of all dicts in a value."""
    if isinstance(value, dict):
        yield from value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        yield from _keys(part)


def _remove_abandoned(target: Path) -> None:
    """Remove what killed savers of this target left, but nothing that another process writes now."""
    ours = re.compile(rf"\.{re.escape(_stem(target))}\.[0-9a-f]{{8}}")
    with suppress(OSError), os.scandir(target.parent) as entries:  # the file is saved, whatever becomes of these
        for entry in entries:
            with suppress(OSError):  # gone meanwhile, or someone else's
                if (ours.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
                        and entry.stat(follow_symlinks=False).st_mtime < time.time() - _ABANDONED):
                    os.unlink(entry.path)


_READERS = {"ag-model-1": "ag_load_model(path)", "ag-checkpoint-1": "ag_load_checkpoint(path, model, ...)",
            "ag-dp-train-1": "dp_train(..., checkpoint=path, resume=True)"}


def read_tensors(path: str | os.PathLike[str], function: str, required: str, forms: Sequence[str] = ()
                 ) -> tuple[dict[str, str], dict[str, Array]]:
    """Return header and arrays of a safetensors file, without arrays if it has none of some formats."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            raise OSError("it is no regular file")
        with safe_open(os.fsdecode(path), framework="numpy") as file:
            header: dict[str, str] = file.metadata() or {}
            if forms and header.get("format") not in forms:
                return header, {}
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            for kind in types.values() if forms else ():
                as_dtype(kind.lower(), function)  # the format has types that numpy and we have not
            if "BF16" not in types.values():
                return header, {name: file.get_tensor(name) for name in types}
        return _with_bfloat16(read_regular(path))
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"{function}: {_shown(path)} cannot be read ({str(error).rstrip('.')}); {required}"
                              ) from error


def read_file(path: str | os.PathLike[str], form: str, function: str, others: Sequence[str] = ()
              ) -> tuple[dict[str, str], dict[str, Array]]:
    """Return header and arrays of a safetensors file of the given format, or of one of some others."""
    forms = form, *others
    header, arrays = read_tensors(path, function, f"a complete file of format {form!r} is required.", forms)
    theirs = header.get("format")
    if theirs not in forms:
        reader = _READERS.get(theirs or "", "ag.load_weights(model, path), into a model that you build")
        raise CheckpointError(f"{function}: {os.fsdecode(path)} has format {theirs!r:.60}; {form!r} is required. Read "
                              f"it with {reader}.")
    return header, arrays


# numpy has no such type, and safetensors reads and writes what numpy has.
_NUMPY_TYPES = {"BF16": BFLOAT16, "BOOL": np.dtype(bool), **{
    f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}") for kind, sizes in (("F", (2, 4, 8)), ("I", (1, 2, 4, 8)),
                                                                               ("U", (1, 2, 4, 8))) for size in sizes}}


def elements_of(x: Tensor) -> Array:
    """Return a tensor's elements for a file, those of bfloat16 as `BFLOAT16`."""
    array = x.numpy()
    return stored(array, BF16).view(BFLOAT16) if x.buffer.dtype is BF16 else array


def element_type(array: Array) -> DType:
    return BF16 if array.dtype == BFLOAT16 else as_dtype(array.dtype, "read_file")


def _bytes(arrays: dict[str, Array], header: dict[str, str]) -> bytes:
    """Return a safetensors file: bfloat16 is written as uint16, then renamed in the file's header."""
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
    arrays = {}
    for name, entry in deserialize(content):  # type: ignore[no-untyped-call]
        arrays[name] = np.frombuffer(entry["data"], _NUMPY_TYPES[entry["dtype"]]).reshape(entry["shape"])
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]).get("__metadata__") or {}, arrays
