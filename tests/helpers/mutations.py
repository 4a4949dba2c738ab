"""Broken and forged safetensors files, as many as wanted: for the tests of model files and checkpoints.

A third of them are broken as bytes: bits flipped, parts cut out, put in or taken from another file.  In the others the
header is forged, mostly the JSON inside its strings, so that they get past the checks of the file format to the code of
this library.  The same ones every time.  This module must not import `ag`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any


class Pairs(list[tuple[str, Any]]):
    """A JSON object as the list of its pairs, in which a key may occur twice."""


class Text(str):
    """Goes into JSON as it is, valid or not."""


NAMES = [
    "", "\x00", "W", "layer1_W", "args", "layers", "body", "shortcut", "shape", "dtype", "data_offsets", "self",
    "__metadata__", "__class__", "__init__", "__dict__", "__proto__", "os.system", "__import__('os').abort()",
    "Layer", "Sequential", "Residual", "Linear", "Dropout", "Flatten", "BatchNorm", "LayerNorm", "RMSNorm",
    "MaxPool", "GlobalPool", "Conv2d", "Embedding", "MultiheadAttention", "relu", "softmax", "cpu", "vulkan:0",
    "F64", "F32", "F16", "BF16", "F8_E4M3", "F4", "C64", "I64", "U32", "I8", "BOOL"]
VALUES = [
    None, True, False, 0, 1, -1, 2, 3, 4, 0.5, -0.5, 1e-300, 10**5, 10**9, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1,
    2**64, 10**400, [], [[]], [0], [1, 1], [2**32, 2**32], [-1, -1], [2**62, 4], Pairs(), Pairs([("a", 1)])]
TEXTS = [Text(text) for text in (
    "NaN", "Infinity", "-Infinity", "1e999", "-0", "4.0", "9" * 5000, "\\", "nul", "\x00", '"\\ud800"', "[" * 5000,
    "[" * 1200 + "]" * 1200, '{"a":' * 1200 + "1" + "}" * 1200,
    '{"layer": "Sequential", "layers": [' * 200 + "]}" * 200)]


def mutations(files: Sequence[bytes], count: int) -> Iterator[bytes]:
    """`count` broken files, made of these."""
    rng, files = Random(0), [ordered(content) for content in files]
    for _ in range(count):
        change = broken if rng.random() < 1 / 3 else forged
        yield change(rng.choice(files), rng.choice(files), rng)


# ---------------------------------------------------------------------------------------------- bytes


def split(content: bytes) -> tuple[bytes, bytes]:
    """The header and the tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    return content[8:end], content[end:]


def joined(header: bytes, tensors: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + tensors


def ordered(content: bytes) -> bytes:
    """The same file with its header in one order, whichever the writer chose."""
    header, tensors = split(content)
    said = json.loads(header)
    metadata = {"__metadata__": dict(sorted(said.pop("__metadata__").items()))}
    return joined(json.dumps({**metadata, **dict(sorted(said.items()))}).encode(), tensors)


def place(content: bytes, rng: Random) -> int:
    """Somewhere in the file, or in the header, where most of the trouble is."""
    return rng.randrange(len(content) if rng.random() < 0.5 else len(content) - len(split(content)[1]))


def broken(content: bytes, other: bytes, rng: Random) -> bytes:
    at = place(content, rng)
    match rng.choice(["flip", "flip", "truncate", "insert", "cut", "splice", "swap"]):
        case "flip":
            flipped = bytearray(content)
            for _ in range(rng.choice([1, 1, 2, 8])):
                flipped[place(content, rng)] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case "truncate":
            return content[:at]
        case "insert":
            return content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at:]
        case "cut":
            return content[:at] + content[at + rng.randrange(1, 9) :]
        case "splice":
            return content[:at] + other[place(other, rng) :]
        case _:
            return joined(split(content)[0], split(other)[1])


# ---------------------------------------------------------------------------------------------- header


def parsed(text: str | bytes) -> Any:
    return json.loads(text, object_pairs_hook=Pairs)


def written(x: Any) -> str:
    match x:
        case Text():
            return str(x)
        case Pairs():
            return "{" + ", ".join(f"{written(key)}: {written(value)}" for key, value in x) + "}"
        case list():
            return "[" + ", ".join(map(written, x)) + "]"
        case _:
            return json.dumps(x)


def forged(content: bytes, other: bytes, rng: Random) -> bytes:
    header, tensors = split(content)
    tree, stranger = parsed(header), parsed(split(other)[0])
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        tree = changed(tree, stranger, rng)
    return joined(written(tree).encode(), tensors)


def changed(x: Any, stranger: Any, rng: Random, inside: bool = False) -> Any:
    """The tree with one change, at a place that is drawn on the way down; `inside` a string, any text will do."""
    if isinstance(x, str) and x[:1] in ("{", "[") and rng.random() < 0.9:
        try:
            return written(changed(parsed(x), stranger, rng, inside=True))
        except (ValueError, RecursionError):  # what an earlier change left there
            return x
    if isinstance(x, str) and not inside and rng.random() < 0.9:
        value = value_from(stranger, rng, inside=True)
        return value if isinstance(value, str) else written(value)  # only strings pass the checks of the format here
    if not isinstance(x, list) or not x:
        return value_from(stranger, rng, inside)
    x = type(x)(x)
    i, j = rng.randrange(len(x)), rng.randrange(len(x))
    if isinstance(x, Pairs) and x[0][0] == "__metadata__" and rng.random() < 0.8:
        i = 0
    if rng.random() < 0.9:
        return with_value(x, i, changed(value_at(x, i), stranger, rng, inside))
    match rng.choice(["replace", "copy", "rename", "repeat", "delete"]):
        case "replace":
            return with_value(x, i, value_from(stranger, rng, inside))
        case "copy":
            return with_value(x, i, value_at(x, j))
        case "rename" if isinstance(x, Pairs):
            x[i] = (rng.choice(NAMES), x[i][1])
        case "repeat":
            x.insert(j, x[i])
        case _:
            del x[i]
    return x


def value_at(x: Any, i: int) -> Any:
    return x[i][1] if isinstance(x, Pairs) else x[i]


def with_value(x: Any, i: int, value: Any) -> Any:
    x[i] = (x[i][0], value) if isinstance(x, Pairs) else value
    return x


def value_from(stranger: Any, rng: Random, inside: bool) -> Any:
    """A value nobody expects, a name, or a part of another file's header."""
    match rng.choice(["value", "text", "name", "part"]):
        case "text" if inside:
            return rng.choice(TEXTS)
        case "name":
            return rng.choice(NAMES)
        case "part":
            while isinstance(stranger, list) and stranger and rng.random() < 0.8:
                stranger = value_at(stranger, rng.randrange(len(stranger)))
            return stranger
        case _:
            return rng.choice(VALUES)
