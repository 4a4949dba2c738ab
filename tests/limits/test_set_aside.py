"""Chips that share the machine's memory, of which a driver sets a small part aside as theirs: they go on beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.devices import expect_reported
from limits.conftest import Limited

import ag

MIB, GIB = 1 << 20, 1 << 30
INTEGRATED, DISCRETE = 1, 2
APU = f"{64 * MIB}:1,{8 * GIB}:6:14"  # VkMemoryPropertyFlags: the device's own; what the host sees, and has cached
WINDOW = f"{64 * MIB}:1,{8 * GIB}:6:14,{32 * MIB}:7"  # of the device's own, which the host sees, too
ONE = f"{8 * GIB}:1:7:15"  # for both, with several types

BEGUN = """
from ag.engine.device import backend_of
device = backend_of(DEVICE)
"""
TRAINED = """
def trained(name):
    ag.ag_seed(1)
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((64, 8)).astype(np.float32), rng.integers(0, 4, 8)
    with ag.ag_device(name):
        model = ag.ag_sequential(ag.ag_linear(64, 2048, activation="relu"), ag.ag_linear(2048, 6144),
                                 ag.ag_linear(6144, 4))
        optimizer = ag.optimizer_adam(model, lr=0.001)  # 13 million numbers, four times
        losses = []
        for _ in range(2):
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(model(x), y)
            optimizer.step(ag.backward(loss))
            losses.append(loss.item())
    return losses

said["error"] = error_of(lambda: said.update(losses=trained(DEVICE)))
said["usual"] = trained("cpu")
"""
FILLED = """
kept = []
def fill():
    while len(kept) < 30:  # 240 MiB
        kept.append(ag.ag_tensor(np.full(1 << 21, len(kept), np.float32), DEVICE))
said["error"] = error_of(fill)
said["right"] = all(bool((t.numpy() == k).all()) for k, t in enumerate(kept))
"""
FOUND = """
said["reserved"] = device.arena.stats().reserved
said["sizes"] = [nbytes for nbytes, _ in device.arena.segments]
said["sees"] = [device._manager.host_access(memory)[0] for _, memory in device.arena.segments]
said["memory"] = {x.subject: x.found for x in device.examine()}["memory"]
said["bytes"] = device.info.memory_bytes
"""


def test_an_integrated_chip_trains_beside_what_is_set_aside(limited: Limited, tmp_path: Path) -> None:
    said = limited(BEGUN + TRAINED + FOUND, TYPE=INTEGRATED, MEMORY=APU, TYPES=tmp_path / "types")
    assert said["error"] is None and said["losses"] == pytest.approx(said["usual"], rel=1e-4)
    assert said["reserved"] > 200 * MIB and sum(said["sizes"][:2]) <= 64 * MIB
    assert said["sees"][:2] == [False, False] and set(said["sees"][2:]) == {True}
    assert said["bytes"] == 8 * GIB + 64 * MIB
    assert said["memory"].startswith("64 MiB of its own and 8.0 GiB of the host's")
    assert set((tmp_path / "types").read_text("utf-8")) == {"0", "1", "2"}  # its own, the host's, and to stage in


def test_a_card_never_goes_into_the_memory_of_the_host(limited: Limited, tmp_path: Path) -> None:
    said = limited(BEGUN + TRAINED + FOUND, TYPE=DISCRETE, MEMORY=APU, TYPES=tmp_path / "types")
    expect_reported("a model larger than the memory of a card", said["error"], ag.ArenaError, "the device may give",
                    "are reserved", "in use", "smaller batches")
    assert said["reserved"] <= 60 * MIB and said["bytes"] == 64 * MIB
    assert said["memory"].startswith("64 MiB of its own, ")
    assert set((tmp_path / "types").read_text("utf-8")) == {"0", "2"}  # the last to stage in


def test_a_budget_that_is_used_up_is_no_end_of_an_integrated_chip(limited: Limited) -> None:
    """The driver would give more of its own, but others' would have to move out."""
    said = limited(BEGUN + FILLED + FOUND, TYPE=INTEGRATED, MEMORY=f"{GIB}:1,{8 * GIB}:6:14", BUDGET=64 * MIB)
    assert said["error"] is None and said["right"]
    assert said["sees"][:2] == [False, False] and set(said["sees"][2:]) == {True}
    assert said["memory"].startswith("1.0 GiB of its own and 8.0 GiB of the host's, 7.")


@pytest.mark.parametrize(("memory", "nbytes", "own"), [
    (WINDOW, 8 * GIB + 96 * MIB, "96 MiB of its own and 8.0 GiB of the host's, "),
    (ONE, 8 * GIB, "8.0 GiB of its own, ")])
def test_all_heaps_are_used_and_none_counts_twice(limited: Limited, memory: str, nbytes: int, own: str) -> None:
    said = limited(BEGUN + FILLED + FOUND, TYPE=INTEGRATED, MEMORY=memory)
    assert said["error"] is None and said["right"]
    assert said["bytes"] == nbytes and said["memory"].startswith(own)


def test_all_of_it_is_full(limited: Limited) -> None:
    said = limited(BEGUN + FILLED + FOUND, TYPE=INTEGRATED, MEMORY=f"{64 * MIB}:1,{128 * MIB}:6:14")
    expect_reported("more than an integrated chip has", said["error"], ag.ArenaError, "8388608 bytes", "are reserved",
                    "in use", "smaller batches")
    assert said["reserved"] > 100 * MIB and said["right"]
