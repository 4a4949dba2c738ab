"""Words go the quickest way, where the host sees all of a device's memory, a window of it, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from limits.conftest import Limited

GIB = 1 << 30
INTEGRATED, DISCRETE, VIRTUAL = 1, 2, 3
# VkMemoryPropertyFlags: the device's own; that the host sees, without flushing; cached by it; that it must flush
LOCAL, SEEN, CACHED, FLUSHED = 1, 7, 15, 3
STAGING = f"{16 * GIB}:6:14"  # of the host, and cached

WAYS = """
from ag.engine.backends.vulkan.stream import Copy
from ag.engine.device import backend_of
device, staged = backend_of(DEVICE), []
record = device.recorder.record

def counting(command):
    staged.extend([command.region[2]] if isinstance(command, Copy) else [])
    record(command)

device.recorder.record = counting

def way(nbytes):
    values = np.arange(nbytes // 4, dtype=np.float32)
    device.synchronize()
    x = ag.ag_tensor(values, DEVICE)
    up = sum(staged)
    staged.clear()
    assert np.array_equal(x.numpy().ravel(), values)
    down = sum(staged)
    staged.clear()
    assert up in (0, nbytes) and down in (0, nbytes), (up, down, nbytes)
    assert np.array_equal((x + x).numpy().ravel(), values + values)
    staged.clear()
    return ["straight" if not n else "staged" for n in (up, down)]

said["small"], said["large"] = way(64 << 10), way(20 << 20)
"""


class Card(NamedTuple):
    """Its kind and memory, the types of segments and of staging memory, and how words go up, few and many, and down."""

    kind: int
    memory: str
    types: str
    few: str
    many: str
    down: str


WINDOW = f"{8 * GIB}:{LOCAL},{STAGING},{GIB // 4}:{SEEN}"
CARDS = {
    "a window of 256 MiB": Card(DISCRETE, WINDOW, "02", *["staged"] * 3),
    "a window of an integrated chip": Card(INTEGRATED, WINDOW, "02", *["staged"] * 3),
    "resizable BAR": Card(DISCRETE, f"{80 * GIB}:{LOCAL}:{SEEN},{STAGING}", "13", "straight", "staged", "staged"),
    "of a virtual machine": Card(VIRTUAL, f"{8 * GIB}:{LOCAL}:{SEEN},{STAGING}", "13", "straight", "staged", "staged"),
    "write-combined": Card(INTEGRATED, f"{8 * GIB}:{SEEN}:{CACHED}", "01", "straight", "straight", "staged"),
    "shared and cached": Card(INTEGRATED, f"{8 * GIB}:{LOCAL}:{CACHED}", "1", *["straight"] * 3),
    "to be flushed": Card(INTEGRATED, f"{8 * GIB}:{LOCAL}:{FLUSHED},{STAGING}", "03", *["staged"] * 3),
    "of its own only": Card(DISCRETE, f"{8 * GIB}:{LOCAL},{STAGING}", "02", *["staged"] * 3),
}


@pytest.mark.parametrize("name", CARDS)
def test_words_go_the_quickest_way(limited: Limited, tmp_path: Path, name: str) -> None:
    card = CARDS[name]
    said = limited(WAYS, TYPE=card.kind, MEMORY=card.memory, TYPES=tmp_path / "types")
    assert said["small"] == [card.few, card.down] and said["large"] == [card.many, card.down]
    assert "".join(sorted(set((tmp_path / "types").read_text("utf-8")))) == card.types


@pytest.mark.parametrize("name", ["resizable BAR", "shared and cached"])
def test_segments_with_addresses(limited: Limited, name: str) -> None:
    card = CARDS[name]
    said = limited(WAYS + 'said["addressed"] = bool(device._manager.address(device.arena.segments[-1][1]))',
                   TYPE=card.kind, MEMORY=card.memory, RANGE=1 << 20)
    assert said["addressed"] and said["small"] == [card.few, card.down] and said["large"] == [card.many, card.down]


def test_memory_that_the_host_sees_is_used_up(limited: Limited, tmp_path: Path) -> None:
    card = CARDS["resizable BAR"]
    said = limited(WAYS, TYPE=card.kind, MEMORY=card.memory, TYPES=tmp_path / "types", FULL=1)
    assert said["small"] == said["large"] == ["staged", "staged"]
    assert set((tmp_path / "types").read_text("utf-8")) == {"0", "3"}
