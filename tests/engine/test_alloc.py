"""`arena.c` hands out what died, and keeps the arena's books as `Arena.alloc` does; test_arena.py tries both."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pytest
from helpers.errors import expect_error

from ag.engine import arena as arena_module
from ag.engine.arena import Arena, Block, now
from ag.errors import ArenaError

CODE: Any = arena_module._code
pytestmark = pytest.mark.skipif(CODE is None, reason="there was no compiler")


def arena() -> tuple[Arena, list[int]]:
    """An arena, and the bytes that compiled code has asked Python for."""
    a, asked = Arena(lambda nbytes: nbytes, first_bytes=1 << 16, align=64), list[int]()

    def slowly(of: Arena, nbytes: int) -> Block:
        asked.append(nbytes)
        return Arena.alloc(of, nbytes)

    assert type(a.alloc) is CODE.Alloc
    a.alloc = CODE.Alloc(a, Block, slowly, (), now, a._dead, a._died, a._loans, a.align)  # type: ignore[method-assign]
    return a, asked


def test_what_died_is_handed_out() -> None:
    """Of the same size, rounded up; what has not died, or has another size, Python has to find."""
    a, asked = arena()
    first = [a.alloc(nbytes) for nbytes in (100, 0, 64, 65)]
    assert asked == [100, 0, 64, 65] and [b.nbytes for b in first] == [128, 64, 64, 128]
    places = [b.address for b in first]
    del first
    a.alloc(64)  # there were no bins yet
    asked.clear()
    second = [a.alloc(nbytes) for nbytes in (1, 128, 63, 127)]
    assert not asked and sorted(b.address for b in second) == sorted(places)
    assert a.stats().live == sum(b.nbytes for b in second) == 384
    a.alloc(64)
    assert asked == [64]


def test_a_block_is_as_python_makes_it() -> None:
    a, asked = arena()
    a.alloc(100)
    made = [a.alloc(100)]
    a.alloc(100)
    made.append(a.alloc(100))
    assert len(asked) == 3 and a.alloc(100) and len(asked) == 4
    del made[0]
    made.append(a.alloc(100))
    assert len(asked) == 4
    for b in made:
        assert (type(b), b.nbytes, b.sharers, b.changes, b.segment) == (Block, 128, (), None, 0)
    assert made[0].made < made[1].made < now()


def test_what_is_pinned_is_left() -> None:
    a, asked = arena()
    block, place = a.alloc(64), 0
    a.alloc(64)
    place, a.pinned, asked[:] = block.address, True, []
    del block
    others = [a.alloc(64) for _ in range(3)]
    assert place not in [b.address for b in others] and len(asked) == 3
    (revived,) = a.revive([place])
    a.pinned = False
    assert revived.address == place and a.alloc(64).address not in (place, *[b.address for b in others])


@pytest.mark.usefixtures("little_to_collect")
def test_bins_that_are_made_anew_meanwhile() -> None:
    """By what a garbage collection runs in the middle of an allocation: no memory is handed out twice."""
    a, asked = arena()

    class Anew:
        def __del__(self) -> None:
            a.stats()
            blocks.append(a.alloc(64))

    blocks: list[Block] = []
    old = gc.get_threshold()
    for _ in range(300):
        blocks[:] = [a.alloc(64)]
        blocks.clear()
        cycle: list[Any] = [Anew()]
        cycle.append(cycle)
        gc.set_threshold(1)
        try:
            del cycle
            blocks.append(a.alloc(64))
        finally:
            gc.set_threshold(*old)
        gc.collect()
        assert len({b.address for b in blocks}) == len(blocks) == 2
    assert len(asked) > 300


@pytest.mark.parametrize("given", [(), (1, 2), ("64",), (1.5,), (None,)])
def test_what_is_no_number_of_bytes(given: Any) -> None:
    a, _ = arena()
    a.alloc(64)
    with pytest.raises(TypeError):
        a.alloc(*given)
    with pytest.raises(TypeError):
        a.alloc(nbytes=64)


def test_more_bytes_than_there_can_be() -> None:
    a, _ = arena()
    a.alloc(64)
    with expect_error("a block of 2**70 bytes", ArenaError, f"{1 << 70} bytes"):
        a.alloc(1 << 70)


def test_an_arena_dies_with_its_last_reference() -> None:
    a, _ = arena()
    alloc, gone = a.alloc, ref(a)
    a.alloc(64)
    del a
    assert gone() is None
    with pytest.raises(ReferenceError, match="gone"):
        alloc(64)


def test_other_blocks_are_refused() -> None:
    class Unslotted:
        pass

    a, _ = arena()
    with pytest.raises((AttributeError, TypeError)):
        CODE.Alloc(a, Unslotted, Arena.alloc, (), now, a._dead, a._died, a._loans, 64)
    with pytest.raises(TypeError, match="address is no slot"):
        CODE.Alloc(a, type("Other", (Block,), {"address": 3}), Arena.alloc, (), now, a._dead, a._died, a._loans, 64)
