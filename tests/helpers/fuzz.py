"""Damaged variants of any file or message, for the tests of parsers that read what others wrote.

The same seed gives the same variants.  This module must not import `ag`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from random import Random
from typing import Any

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_EDGES = (0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1,
          2**64 - 1)
_NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"4.5", b"1e-300", b"-0", b"9" * 30, b"9" * 5000, b"true", b"null",
            b'"x"', b"[]")
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 0.5, 1e308, 2**31, 2**53, 2**63, 2**64, 10**40, float("nan"), float("inf"), "", "x",
    "\x00", "\ud800", "../../etc/passwd", "/dev/zero", [], [[]], [0, -1], {}, {"a": 1})
_TOKENS = (b"\x00", b"\xff" * 8, b"\x7f" * 4, b"\r\n", b"{", b"]", b'"', b"\\u0000", b"[" * 3000, b'{"a":' * 1500,
           b"%!PS", b"../", b"\xef\xbb\xbf", b"\xed\xa0\x80")
_RAW = (  # texts in place of a value
    "NaN", "Infinity", "1e999", "-0", "4.0", "9" * 5000, "nul", "[" * 5000, "[" * 1200 + "]" * 1200,
    '{"a":' * 1200 + "1" + "}" * 1200, '{"layer": "Sequential", "layers": [' * 200 + "]}" * 200)
_MARK = re.compile(r'\\*"@raw(\d+)@\\*"')
LONGEST = 1 << 16  # bytes that one change adds at most


def mutations(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yield `count` damaged variants of these bytes.  A few are unchanged.

    Of a JSON document, or a safetensors file, which begins with one, two thirds are well-formed with other contents.
    """
    rng = Random(seed)
    size = int.from_bytes(data[:8], "little")
    is_container = data[8:9] == b"{" and size <= len(data) - 8
    tree, rest = (_tree(data[8 : 8 + size]), data[8 + size :]) if is_container else (_tree(data), b"")
    for _ in range(count):
        changed = data
        if tree is not None and rng.random() < 2 / 3:
            changed_tree = tree
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                changed_tree = _changed(changed_tree, tree, rng)
            changed = _written(changed_tree)
            if is_container:
                changed = len(changed).to_bytes(8, "little") + changed + rest
        else:
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                changed = rng.choice(_CHANGES)(changed, rng)
        yield changed


def _tree(data: bytes) -> Any:
    """Return the value of a JSON document; None for other bytes."""
    try:
        return json.loads(data) if data[:1] in (b"{", b"[") else None
    except (ValueError, RecursionError):
        return None


def _written(tree: Any) -> bytes:
    """Return JSON with the marks of raw texts replaced by these, escaped where the mark stands in a string."""
    def raw(mark: re.Match[str]) -> str:
        text = _RAW[int(mark[1])]
        return json.dumps(text)[1:-1] if mark[0].startswith("\\") else text

    return _MARK.sub(raw, json.dumps(tree)).encode()


def _value(tree: Any, rng: Random) -> Any:
    """Draw a value: an odd one, a raw text, or a part of the document."""
    match rng.randrange(3):
        case 0:
            return rng.choice(_VALUES)
        case 1:
            return f"@raw{rng.randrange(len(_RAW))}@"
        case _:
            while isinstance(tree, (dict, list)) and tree and rng.random() < 0.8:
                tree = rng.choice([*tree.values()] if isinstance(tree, dict) else tree)
                if isinstance(tree, str) and tree[:1] in ("{", "[") and rng.random() < 0.8:
                    tree = _tree(tree.encode()) or tree
            return tree


def _changed(tree: Any, whole: Any, rng: Random) -> Any:
    """Return a copy of a JSON value with one change, also in JSON inside its strings."""
    if isinstance(tree, str) and tree[:1] in ("{", "[") and rng.random() < 0.9 and (inner := _tree(tree.encode())):
        return json.dumps(_changed(inner, inner, rng))
    if not isinstance(tree, (dict, list)) or not tree or rng.random() < 0.03:
        return _value(whole, rng)
    pairs = list(enumerate(tree)) if isinstance(tree, list) else list(tree.items())
    at = rng.randrange(len(pairs))
    if "__metadata__" in tree and rng.random() < 0.7:
        at = [*tree].index("__metadata__")
    key, value = pairs[at]
    match rng.choice(("delete", "copy", "replace", "into", "into", "into", "into", "into", "into", "into")):
        case "delete":
            del pairs[at]
        case "copy":
            pairs.insert(rng.randrange(len(pairs)), (rng.choice(("", "x", "__class__", key)), rng.choice(pairs)[1]))
        case "replace":
            pairs[at] = (key, rng.choice(pairs)[1])
        case _:
            pairs[at] = (key, _changed(value, whole, rng))
    return [value for _, value in pairs] if isinstance(tree, list) else {str(key): value for key, value in pairs}


def _place(data: bytes, rng: Random) -> int:
    """A place in the data; half of them in its first 256 bytes, where most formats keep lengths and types."""
    return rng.randrange((min(len(data), 256) if rng.random() < 0.5 else len(data)) + 1)


def _flip(data: bytes, rng: Random) -> bytes:
    """Flip 1 to 8 bits."""
    flipped = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
        flipped[min(_place(data, rng), len(data) - 1)] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _truncate(data: bytes, rng: Random) -> bytes:
    return data[: _place(data, rng)]


def _insert(data: bytes, rng: Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + (rng.choice(_TOKENS) if rng.random() < 0.5 else rng.randbytes(rng.randrange(1, 9))) + data[at:]


def _delete(data: bytes, rng: Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + rng.choice((1, 2, 4, 8, 64)) :]


def _length(data: bytes, rng: Random) -> bytes:
    """Overwrite 1 to 8 bytes by a number at the edge of a range: a length, a count, an offset."""
    at, size, order = _place(data, rng), rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    number = rng.choice(_EDGES) % 256**size
    return data[:at] + number.to_bytes(size, order) + data[at + size :]  # type: ignore[arg-type]  # a literal


def _repeat(data: bytes, rng: Random) -> bytes:
    """Repeat a block, up to 64 KiB."""
    at, size = _place(data, rng), rng.choice((1, 4, 16, 256))
    block = data[at : at + size]
    times = rng.choice((1, 2, 64, 4096))
    return data[:at] + block * min(times, LONGEST // max(len(block), 1)) + data[at:]


def _swap(data: bytes, rng: Random) -> bytes:
    """Exchange two blocks."""
    first, second = sorted((_place(data, rng), _place(data, rng)))
    size = min(rng.choice((1, 4, 16, 64)), second - first)
    a, b = data[first : first + size], data[second : second + size]
    return data[:first] + b + data[first + size : second] + a + data[second + size :]


def _number(data: bytes, rng: Random) -> bytes:
    """Replace a number that is written in digits; flip bits where there is none."""
    start = _place(data, rng)
    found = _NUMBER.search(data, start, start + 4096) or _NUMBER.search(data, 0, 4096)
    if found is None:
        return _flip(data, rng)
    new = rng.choice(_NUMBERS) if rng.random() < 0.5 else str(rng.choice(_EDGES)).encode()
    return data[: found.start()] + new + data[found.end() :]


_CHANGES = (_flip, _flip, _truncate, _insert, _delete, _length, _repeat, _swap, _number)
