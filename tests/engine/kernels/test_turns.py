"""Several elements per invocation, as on cards: the same bits as one, at every kernel that takes turns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine.kernels.test_kernel_reference import launches
from helpers.guarded import Launch, guarded, run

from ag.engine.backends.vulkan.pipelines import _manifest
from ag.engine.backends.vulkan.tiles import Tiles
from ag.engine.primitive import PRIMITIVES

pytestmark = pytest.mark.vulkan
TAKES_TURNS = sorted(name for name, entry in _manifest()["kernels"].items() if name in PRIMITIVES
                     and any(constant["name"] == "turns" for constant in entry["spec"]))


class Turns(Tiles):
    """A rule by which every invocation takes four elements, however few there are."""

    def turns(self, n: int) -> int:
        return 4


def same(backend: Any, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    want = run(backend, launch)
    usual = backend._kernels.tiles
    with monkeypatch.context() as patch:
        patch.setattr(backend._kernels, "tiles", Turns(usual.units, usual.rates, usual.forced, usual.fixed,
                                                       usual.direct_rows))
        for got, wanted in zip(run(backend, launch), want, strict=True):
            np.testing.assert_array_equal(got, wanted, str(launch))


@pytest.mark.parametrize("name", TAKES_TURNS)
def test_the_same_bits(name: str, vulkan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for launch in launches():
        if launch.primitive.name == name:
            same(guarded(vulkan), launch, monkeypatch)


@pytest.mark.parametrize("n", [1, 127, 128, 129, 511, 512, 513, 100_000])
def test_any_number_of_elements(n: int, vulkan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    for launch in (Launch(PRIMITIVES["copy"], [x[0]], {}), Launch(PRIMITIVES["add"], [x, x[:, :1]], {})):
        same(guarded(vulkan), launch, monkeypatch)


def test_a_card_takes_turns_where_there_are_many_elements() -> None:
    card = Tiles(132, ())
    assert [card.turns(n) for n in (1, 100_000, 200_000, 300_000, 1 << 20, 1 << 26)] == [1, 1, 2, 4, 8, 16]
    assert Tiles(1, ()).turns(1 << 26) == 1
