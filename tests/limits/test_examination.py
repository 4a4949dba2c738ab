"""Diagnose cards whose limits, memory and identity the layer gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from limits.conftest import Limited

INTEGRATED, DISCRETE, VIRTUAL = 1, 2, 3
GIB = 1 << 30
EXAMINED = """
from ag.engine.device import backend_of
said["found"] = {x.subject: [x.verdict, x.found, x.remedy] for x in backend_of(DEVICE).examine()}
"""
LOCAL, SEEN = 1, 7  # VkMemoryPropertyFlags: the device's own; that the host sees, too
STAGING = f"{16 * GIB}:6:14"  # of the host


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of cards on which all tiles are right."""
    return tmp_path_factory.mktemp("cache")


def found_by(limited: Limited, folder: Path, **limits: object) -> dict[str, list[str]]:
    found: dict[str, list[str]] = limited(EXAMINED, {"XDG_CACHE_HOME": str(folder)}, **limits)["found"]
    return found


def test_what_does_not_fit(limited: Limited, tmp_path: Path) -> None:
    found = found_by(limited, tmp_path, TYPE=DISCRETE, SIZES=1, SHARED=12288, BUDGET=1 << 20)
    verdict, kernels, remedy = found["kernels"]
    assert "attention needs " in kernels and "bytes of shared memory where the device has 12288" in kernels and remedy
    assert verdict == "note" and found["memory"][0] == "note"
    assert "free" in found["memory"][1] and "smaller batches" in found["memory"][2]
    verdict, tiles, remedy = found["tiles"]
    assert (verdict, tiles) == ("note", "S: products are right")
    assert remedy == "M came out wrong; L2, M1 do not fit: a newer driver may mend that"


def test_a_card_on_which_all_is_well(limited: Limited, cache: Path) -> None:
    found = found_by(limited, cache, TYPE=DISCRETE, SUBGROUP=32)
    found.pop("bus")  # of a busy machine it may be slow
    assert {verdict for verdict, _, _ in found.values()} == {"ok"}
    assert not any(remedy for _, _, remedy in found.values())
    assert found["kind"][1] == "discrete" and found["tiles"][1].endswith("L2, M1, M, S: products are right")
    assert found["watchdog"][1].endswith("submissions are kept below 200 ms")
    assert found["subgroups, clock"][1] == "8 invocations, 8 to 32 where a kernel asks; 64 bits"


def test_tiles_that_were_right_and_are_wrong_now(limited: Limited, tmp_path: Path) -> None:
    assert found_by(limited, tmp_path, TYPE=DISCRETE)["tiles"][0] == "ok"
    (kept,) = (tmp_path / "ag").glob("*.json")
    choices = json.loads(kept.read_text("utf-8"))["choices"]
    assert set(choices.values()) == {"right"}
    verdict, found, remedy = found_by(limited, tmp_path, TYPE=DISCRETE, SIZES=1)["tiles"]
    assert verdict == "problem" and "a product in L" in found and "comes out wrong" in found
    assert "empty the folder of the cache" in remedy


SIGHTS = {  # kind, memory: verdict, what is said
    "resizable BAR": (DISCRETE, f"{8 * GIB}:{LOCAL}:{SEEN},{STAGING}", "ok", "all 8.0 GiB of it (resizable BAR)"),
    "a window": (DISCRETE, f"{8 * GIB}:{LOCAL},{STAGING},{GIB // 4}:{SEEN}", "note", "a window of 256 MiB of it"),
    "nothing": (DISCRETE, f"{8 * GIB}:{LOCAL},{STAGING}", "note", "none of it"),
    "of a virtual machine": (VIRTUAL, f"{8 * GIB}:{LOCAL},{STAGING}", "ok", "none of it"),
    "shared": (INTEGRATED, f"{8 * GIB}:{SEEN}", "ok", "memory that both share"),
    "shared, with a window": (INTEGRATED, f"{GIB}:{LOCAL},{STAGING},{GIB // 4}:{SEEN}", "ok", "memory that both share"),
}


@pytest.mark.parametrize("sight", SIGHTS)
def test_what_the_host_sees(limited: Limited, cache: Path, sight: str) -> None:
    kind, memory, verdict, said = SIGHTS[sight]
    found = found_by(limited, cache, TYPE=kind, MEMORY=memory)["host sees"]
    assert found[:2] == [verdict, said]
    assert ("resizable BAR" in found[2] and "twice" in found[2]) == (verdict == "note")


def test_a_card_under_two_drivers(limited: Limited, swiftshader: str, cache: Path) -> None:
    found = found_by(limited, cache, TYPE=DISCRETE, UUID="the same card")["same card"]
    assert found[:2] == ["note", f"{swiftshader} is the same card under another driver"] and "use one" in found[2]
    assert "same card" not in found_by(limited, cache, UUID="the same card")  # software may share a UUID
    assert "same card" not in found_by(limited, cache, TYPE=DISCRETE)  # two cards


def test_a_card_with_little(limited: Limited, cache: Path) -> None:
    found = found_by(limited, cache, TYPE=DISCRETE, RANGE=128 << 20, ADDRESSES=0, QUEUES="6:0")
    assert found["largest tensor"][:2] == ["note", "128 MiB (Vulkan's maxStorageBufferRange)"]
    assert found["subgroups, clock"][0] == "note" and "no times" in found["subgroups, clock"][2]
    assert found["queue"][:2] == ["ok", "family 0, which only computes"]


def test_a_name_that_the_layer_gives_is_of_the_same_file(limited: Limited, cache: Path) -> None:
    found = found_by(limited, cache, TYPE=DISCRETE, NAME="Voodoo")["driver file"]
    assert found[0] == "ok" and found[1].endswith("lvp_icd.x86_64.json")
