"""The state machine: hypothesis looks for actions after which a captured step is not what the eager one is."""

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


@pytest.mark.slow_on("lavapipe")
def test_nothing_diverges(pair: Pair) -> None:
    assert explore(pair, 0, examples=1, length=20) == ""


@pytest.mark.slow
@pytest.mark.not_on("swiftshader")
def test_nothing_diverges_for_long(pair: Pair) -> None:
    assert explore(pair, 100, examples=6, length=30) == ""


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


# ---------------------------------------------------------------------------------------------- once known faults


@pytest.fixture
def plain() -> Iterator[Pair]:
    made = Pair("cpu")
    made.do("restart", kind="tied", dtype="f32", seed=0, optimizer="sgd")
    yield made
    made.close()


@pytest.mark.parametrize("hostile", ["shares a parameter", "asks what was passed twice", "catches an error"])
def test_a_hostile_step(plain: Pair, hostile: str) -> None:
    plain.do("new_step", spec=Spec(hostile=hostile))
    for k in range(6):
        plain.do("step", i=0, batch=k % 2, form="same")


@pytest.mark.parametrize("habit", ["counts in samples", "counts in a layer"])
def test_a_training_that_counts(plain: Pair, habit: str) -> None:
    plain.do("train", habit=habit, capture=True, replicas=2, micro_batch=2, accumulate=1)


# ---------------------------------------------------------------------------------------------- defects put back


def test_each_text_occurs_once_in_its_file() -> None:
    counts = {f"{e.file}: {e.old}": (ROOT / e.file).read_text("utf-8").count(e.old) for d in DEFECTS for e in d.edits}
    assert not {text: n for text, n in counts.items() if n != 1}
    assert len({d.name for d in DEFECTS}) == len(DEFECTS)
