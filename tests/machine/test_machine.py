"""The state machine: hypothesis looks for actions after which a captured step is not what the eager one is.

Short runs on every device, longer ones marked slow; ``python tests/machine/run.py`` runs as many steps as one likes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from machine.defects import DEFECTS, ROOT
from machine.pair import Divergence, Pair
from machine.rules import Machine
from machine.run import explore
from machine.steps import Spec


@pytest.fixture
def pair(device: str) -> Iterator[Pair]:
    made = Pair(device)
    yield made
    made.close()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_nothing_diverges(pair: Pair, seed: int) -> None:
    assert explore(pair, seed, examples=3, length=20) == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 102))
def test_nothing_diverges_for_long(pair: Pair, seed: int) -> None:
    assert explore(pair, seed, examples=5, length=30) == ""


def test_there_are_many_rules() -> None:
    assert sum(hasattr(x, "hypothesis_stateful_rule") for x in vars(Machine).values()) >= 30


def test_a_difference_is_seen() -> None:
    """The machine itself: something that only one world does is a divergence, and a refusal is none."""
    pair = Pair("cpu")
    pair.do("restart", kind="plain", dtype="f32", seed=0, optimizer="sgd")
    pair.do("new_step", spec=Spec())
    pair.do("step", i=0, batch=0)
    pair.subject.send("assign", {"k": 0, "value": 0.25}, False)
    assert pair.subject.receive().error == ""
    with pytest.raises(Divergence, match="layer1_W is f32 on cpu"):
        pair.do("step", i=0, batch=0)
    pair.close()


# ---------------------------------------------------------------------------------------------- defects put back


def test_each_text_occurs_once_in_its_file() -> None:
    counts = {f"{e.file}: {e.old}": (ROOT / e.file).read_text("utf-8").count(e.old) for d in DEFECTS for e in d.edits}
    assert not {text: n for text, n in counts.items() if n != 1}
    assert len({d.name for d in DEFECTS}) == len(DEFECTS)
