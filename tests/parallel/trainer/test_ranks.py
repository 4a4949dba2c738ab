"""dp_train(world=...): what ranks begin with, share and exchange.

Ranks are threads here.  What goes wrong between them is in test_ranks_faults, their equal bits in test_placements.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dp_buffers import assert_same
from helpers.dp_classifier import assert_equal
from helpers.errors import expect_error
from helpers.ranks import DATA, dealt, on_ranks, outcomes, train
from hypothesis import given, settings
from hypothesis import strategies as st

import ag
from ag.engine.random import current_seed
from ag.parallel.comm.comm import Comm, SoloComm
from ag.parallel.comm.tree_reduction import TreeSum, add_up, tree_sum
from ag.parallel.trainer.replicas import Ranks


def test_ranks_may_have_different_numbers_of_devices() -> None:
    places = [["cpu"], ["cpu:1", "cpu:2"]]
    one = train([device for of_rank in places for device in of_rank])
    for rank, found in enumerate(on_ranks(places)):
        assert_equal(found, one)
        assert found.devices == places[rank] and {r["rank"] for r in found.report} == {rank}


def test_shares_go_by_weight_on_all_ranks() -> None:
    weights = {0: [3.0, 0.0], 1: [1.0, 2.0]}
    found = outcomes(2, lambda comm: train(dealt(2, 2)[comm.rank], comm, balance=weights[comm.rank], micro_batch=3))
    for result in found:
        assert_equal(result, train(dealt(1, 4)[0], micro_batch=3))
    assert [[r["shard"] for r in result.report] for result in found] == [[6, 0], [2, 4]]


def test_the_first_rank_may_be_one_without_samples() -> None:
    """Let the rank that has the first sample find out how many random numbers the sample draws."""
    found = outcomes(2, lambda comm: train([f"cpu:{comm.rank}"], comm, balance=[[1e-9], [1.0]][comm.rank]))
    for result in found:
        assert_equal(result, train(["cpu"], micro_batch=4))
    assert found[0].report[0]["samples"] == 0


# ---------------------------------------------------------------------------------------------- what begins alike


def test_weights_buffers_and_seed_are_those_of_rank_0() -> None:
    """Without a seed, too: every rank would draw other weights then, and other dropout."""
    models: list[Any] = []

    def make() -> ag.Layer:
        norm = ag.ag_batch_norm(6)
        norm.running_mean.data = np.random.default_rng(current_seed()).standard_normal((6, 1)).astype(np.float32)
        return ag.ag_sequential(ag.ag_linear(4, 6), norm, ag.ag_dropout(0.25), ag.ag_linear(6, 3))

    def work(comm: Comm) -> tuple[ag.DPResult, int]:
        ag.ag_seed(40 + comm.rank)
        return train([f"cpu:{comm.rank}"], comm, make_model=make, data=data, seed=None,
                     callback=lambda step: models.append(step.models[0])), current_seed()

    data = [(np.repeat(x, 2, axis=1), np.repeat(y, 2)) for x, y in DATA]
    one, after = train(["cpu", "cpu:1"], make_model=make, data=data, seed=40), current_seed()
    for found, seed in outcomes(2, work):
        assert_same(found, one)
        assert seed == after
    assert len(models) == 8, "every rank has its callback called"


class Partly(ag.Layer):
    """A model with parameters that some samples use."""

    def __init__(self) -> None:
        self.W, self.rare, self.idle = (ag.ag_param(np.ones((3, n), np.float32)) for n in (4, 1, 1))

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        y = self.W @ x
        return y + self.rare if x.shape[1] == 3 else y


def test_what_one_rank_uses_all_update(caplog: pytest.LogCaptureFixture) -> None:
    data = [DATA[i] for i in (0, 3, 6, 5)]  # one column each, but for the last: of rank 1
    found = on_ranks(dealt(2, 1), make_model=Partly, data=data)
    (record,) = caplog.records
    assert "idle" in record.getMessage() and "rare" not in record.getMessage()
    for result in found:
        assert_equal(result, train(["cpu", "cpu:1"], make_model=Partly, data=data))
    assert not np.array_equal(found[0].params["rare"].numpy(), np.ones((3, 1)))


# ---------------------------------------------------------------------------------------------- who does what


def test_rank_0_alone_prints_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"{rank}.safetensors" for rank in range(2)]
    outcomes(2, lambda comm: train([f"cpu:{comm.rank}"], comm, verbose=2, checkpoint=paths[comm.rank]))
    said = [line for line in capsys.readouterr().out.splitlines() if "dp_train: step" in line]
    assert len(said) == 2 and [path.exists() for path in paths] == [True, False]


def test_the_next_rank_0_saves_to_the_path_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 is lost after the job has changed its directory."""
    for name in ("at the start", "later"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "at the start")

    def lose(step: ag.DPStep, comm: Any) -> None:
        if step.step == 1 and comm.rank == 0:
            os.chdir(tmp_path / "later")
            comm.abort = lambda reason: None  # of a rank that is gone the others hear nothing
            comm.lose()

    lost, *others = outcomes(3, lambda comm: train([f"cpu:{comm.rank}"], comm, n_iter=3, checkpoint="job",
                                                   callback=lambda step: lose(step, comm)))
    assert isinstance(lost, ag.CommError) and all(len(result.loss_history) == 3 for result in others)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*")] == ["at the start/job"]


def test_all_ranks_go_on_from_the_file_that_rank_0_sees(tmp_path: Path) -> None:
    def some(places: list[list[str]], steps: int) -> list[Any]:
        return outcomes(len(places), lambda comm: train(places[comm.rank], comm, n_iter=steps, resume=True,
                                                        checkpoint=tmp_path / f"{comm.rank}.safetensors"))

    one = train(dealt(1, 4)[0], n_iter=6)
    some(dealt(2, 2), 2)
    for found in some(dealt(4, 1), 6):
        assert_equal(found, one)
    assert os.listdir(tmp_path) == ["0.safetensors"]


def test_weights_are_compared_every_100_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    compare = Ranks.compare

    def seen(self: Ranks, named: Any, advice: str) -> None:
        compared.extend(f"{self.where}" for what, _ in named if "SHA-256 of the weights" in what)
        compare(self, named, advice)

    monkeypatch.setattr(Ranks, "compare", seen)
    on_ranks(dealt(2, 1), n_iter=101, micro_batch=1)
    assert sorted(compared) == ["after step 100"] * 2 + ["after step 99"] * 2


# ---------------------------------------------------------------------------------------------- one rank


class Silent(SoloComm):
    """A group of one in which nothing may be exchanged."""

    def all_gather(self, part: Any) -> Any:
        raise AssertionError("a world of one rank exchanges something")

    all_reduce = reduce_scatter = broadcast = send = recv = barrier = all_gather


def test_a_world_of_one_exchanges_nothing(tmp_path: Path) -> None:
    path = tmp_path / "job.safetensors"
    for steps in (2, 4):
        found = train(["cpu", "cpu:1"], Silent(), n_iter=steps, checkpoint=path, resume=True)
    assert_equal(found, train(["cpu", "cpu:1"]))
    assert [r["wire_bytes_per_step"] for r in found.report] == [0, 0]


def test_what_has_a_communicator_is_a_world() -> None:
    assert_equal(train(["cpu"], ag.DistributedWorld.init(devices=["cpu"])), train(["cpu"]))  # type: ignore[arg-type]


def test_what_is_no_world() -> None:
    with expect_error("dp_train(world=2)", TypeError, "world is 2", "communicator"):
        train(["cpu"], 2)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- the exchange


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any), st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_total_is_that_of_one_tree(sizes: list[int], length: int, seed: int) -> None:
    """However many rows each rank has, on every rank, and the bytes sent are those computed."""
    rows = np.random.default_rng(seed).standard_normal((sum(sizes), length)).astype(np.float32)
    starts = np.cumsum([0, *sizes])

    def work(comm: Comm) -> Any:
        ranks, tree = Ranks(comm), TreeSum(np.add)
        mine = [(k, 1, rows[k]) for k in range(starts[comm.rank], starts[comm.rank + 1])]
        for node in mine:
            tree.push(*node)
        total = np.empty_like(rows[0])
        add_up(ranks.nodes(mine, [{f"of rank {comm.rank}"}]), total)
        own = len(range(length)[comm.shares_of(length)[comm.rank]])
        sent = 4 * (len(tree.nodes) * (length - own) + own * (comm.size - 1)) if comm.size > 1 else 0
        assert ranks.report()["wire_bytes_per_step"] == sent
        assert ranks.used == ({f"of rank {i}" for i in range(comm.size)} if comm.size > 1 else set())
        return total

    for total in outcomes(len(sizes), work):
        assert np.array_equal(total, tree_sum(rows, np.add))
