"""Conditions of a card on a software driver: its tiles, another order of launches, and memory that is not zero.

Each hides mistakes there: in large tiles, a missing barrier, an element that is never written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from ag.engine.backend import Backend, DeviceInfo
from ag.engine.backends.shader.tiles import tiles_of
from ag.engine.backends.vulkan import pipelines, stream
from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.backends.vulkan.stream import HazardTracker, Recorder
from ag.engine.buffer import Buffer
from ag.engine.dtype import DType
from ag.engine.shape import Shape
from ag.engine.target import Target

CARDS = {  # by the name that tests give them: vendor, product as the driver names it, GiB of memory, units as it tells
    "H100": ("NVIDIA", "NVIDIA H100 80GB HBM3", 80, 132),
    "RX 7900": ("AMD", "AMD Radeon RX 7900 XTX (RADV NAVI31)", 24, 96),
    "Vega": ("AMD", "AMD Radeon RX Vega (RADV VEGA10)", 8, 64),
    "Arc": ("Intel", "Intel(R) Arc(tm) A770 Graphics (DG2)", 16, 0),
}
ORDERS: dict[str, Callable[[random.Random, list[Any]], None]] = {
    "reversed": lambda _chance, group: group.reverse(),
    "random": lambda chance, group: chance.shuffle(group),
}
_POISON = b"\xff"  # of which four are NaN in float32, two in both 16-bit types, and 4294967295 as a number
Decide = Callable[..., Any]


def as_card(info: DeviceInfo, card: str) -> DeviceInfo:
    """Return the description of a device as if it were a card."""
    vendor, product, gib, units = CARDS[card]
    return info._replace(vendor=vendor, description=product, kind="discrete", memory_bytes=gib << 30, units=units)


@contextmanager
def chosen_for(card: str) -> Iterator[None]:
    """Devices that are opened meanwhile choose tiles as a card does."""
    decide: Decide = pipelines.tiles_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "tiles_of", lambda info, *more: decide(as_card(info, card), *more))
        yield


@contextmanager
def tiles_of_a_card(backend: Any, card: str) -> Iterator[None]:
    """A device that is open chooses tiles as a card does, for a while."""
    limits = backend._manager.get_device_properties()
    tiles = tiles_of(as_card(backend.info, card), shared=limits["max_shared_memory"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend._kernels, "tiles", tiles)
        patch.setattr(backend, "target", Target(units=tiles.units, rest=backend.target.rest))
        yield


def groups_of(commands: Sequence[Any]) -> list[list[Any]]:
    """The commands between one barrier and the next, as the recorder sets them: those that a card may run at once."""
    groups: list[list[Any]] = []
    tracker = HazardTracker()
    for command in commands:
        if tracker.launch(command.reads, command.writes) or not groups:
            groups.append([])
        groups[-1].append(command)
    return groups


class Barriers:
    """Stands for the hazard tracker: has barriers at the beginnings of groups that are known already."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._answers = iter([i == 0 for size in sizes for i in range(size)])

    def launch(self, reads: object, writes: object) -> bool:
        """Return whether the next command is the first of a group."""
        return next(self._answers)


@contextmanager
def order_between_barriers(order: str, seed: int = 1) -> Iterator[list[int]]:
    """Commands between two barriers run in another order; yields the sizes of the groups that there were."""
    build, chance, sizes = Recorder.build, random.Random(seed), list[int]()

    def rearranged(self: Recorder, commands: list[Any], *more: Any) -> Any:
        groups = groups_of(commands)
        for group in groups:
            ORDERS[order](chance, group)
            sizes.append(len(group))
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(stream, "HazardTracker", lambda: Barriers([len(group) for group in groups]))
            return build(self, [command for group in groups for command in group], *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "build", rearranged)
        yield sizes


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Memory that was just allocated is full of NaN, as if something else had left it there."""
    alloc = Backend.alloc

    def poisoned(self: VulkanBackend, shape: Shape, dtype: DType) -> Buffer:
        buffer = alloc(self, shape, dtype)
        self._write_bytes(buffer.block.address, _POISON * buffer.block.nbytes)
        if self.arena.guard:
            self._paint_guards(buffer)
        return buffer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VulkanBackend, "alloc", poisoned)
        patch.setattr(pipelines, "_code", None)  # which allocates by itself; of devices that are opened meanwhile
        yield


@contextmanager
def found_by_address() -> Iterator[None]:
    """In devices that are opened meanwhile, descriptors cover no memory: kernels find all of it by its address."""
    make = pipelines.Kernels.__init__

    def uncovered(self: pipelines.Kernels, *args: Any) -> None:
        make(self, *args)
        self.covered = 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines.Kernels, "__init__", uncovered)
        yield
