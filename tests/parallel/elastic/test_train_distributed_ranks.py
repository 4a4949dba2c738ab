"""`train_distributed` over ranks: the training of one process, whatever the ranks, and after some of them are lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.ranks import outcomes
from parallel.elastic.killed import Killed, counted, doomed
from parallel.elastic.trained import EPOCHS, MODELS, STEPS, Trained, X, Y, batches, layers

import ag
from ag.parallel.comm.comm import Comm
from ag.parallel.comm.threads import ThreadComm

Fail = Callable[[str, int], None]


def dealt(ranks: int, replicas: int = 1) -> list[list[str]]:
    """CPU devices for so many replicas on each of so many ranks, but not the default one."""
    return [[f"cpu:{1 + r * replicas + i}" for i in range(replicas)] for r in range(ranks)]


def run(ranks: int, killed: dict[int, int] | None = None, replicas: int = 1, **options: Any) -> list[Any]:
    """Run ranks, some killed in a meeting; return what each has in the end or raises."""
    def work(comm: Comm) -> Trained:
        place = doomed(comm, killed[comm.rank]) if comm.rank in (killed or {}) else comm
        return Trained(dealt(ranks, replicas)[comm.rank], comm=place, **options)

    return outcomes(ranks, work)


def finished(found: list[Any]) -> list[Trained]:
    for result in found:
        if not isinstance(result, Trained):
            raise result
    return found


@cache
def alone(kind: str = "data parallel", replicas: int = 2) -> Trained:
    return Trained([f"cpu:{1 + i}" for i in range(replicas)], kind)


def assert_close(found: Trained, wanted: Trained, most: float = 1e-6) -> None:
    assert len(found.losses) == len(wanted.losses)
    for a, b in zip(found.numbers(), wanted.numbers(), strict=True):
        np.testing.assert_allclose(a, b, atol=most, rtol=most)


def assert_equal(one: Trained, other: Trained) -> None:
    assert [x.tobytes() for x in one.numbers()] == [x.tobytes() for x in other.numbers()]


# ---------------------------------------------------------------------------------------------- as one process


@pytest.mark.parametrize("kind", ["data parallel", "batch norm", "compressed", "pipeline"])
def test_two_ranks_train_as_one_process_does(kind: str) -> None:
    first, second = finished(run(2, kind=kind))
    assert_equal(first, second)
    assert_close(first, alone(kind), 2e-6 if kind == "compressed" else 1e-6)
    assert first.data.state_dict() == second.data.state_dict() == alone(kind).data.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a layer", "dropout", "everything sent", "model parallel"])
def test_two_ranks_train_other_models_as_one_process_does(kind: str) -> None:
    test_two_ranks_train_as_one_process_does(kind)


@pytest.mark.parametrize(("ranks", "replicas"), [
    (3, 1), *(pytest.param(*rest, marks=pytest.mark.slow) for rest in [(2, 2), (4, 1), (5, 1)])])
def test_any_ranks_and_replicas(ranks: int, replicas: int) -> None:
    found = finished(run(ranks, replicas=replicas))
    for result in found:
        assert_equal(result, found[0])
    assert_close(found[0], alone())


def test_batches_in_a_list_are_cut() -> None:
    for result in finished(run(3, data=batches)):
        assert_close(result, Trained(["cpu:1"], data=batches))


def test_fewer_samples_than_ranks() -> None:
    """The last batch of an epoch has 2 samples for 4 ranks, of which two have none."""
    def data() -> Any:
        return ag.ag_dataloader(X[:, :14], Y[:, :14], batch_size=6, seed=1)

    for kind in ("data parallel", "compressed"):
        found = finished(run(4, data=data, kind=kind))
        for result in found:
            assert_equal(result, found[0])
        if kind == "data parallel":
            assert_close(found[0], Trained(["cpu:1"], data=data))


def test_a_loader_that_is_a_share_already() -> None:
    def work(comm: Comm) -> Trained:
        loader = ag.ag_dataloader(X, Y, batch_size=12, seed=1).share(comm.rank, 2)
        return Trained(dealt(2)[comm.rank], comm=comm, data=lambda: loader)

    for result in finished(outcomes(2, work)):
        assert_close(result, alone())


def test_rank_0_gives_weights_seed_and_place_to_all() -> None:
    """Models, loaders and optimizers of others begin elsewhere."""
    def work(comm: Comm) -> Trained:
        def data() -> ag.ag_dataloader:
            loader = ag.ag_dataloader(X, Y, batch_size=12, seed=1 if comm.rank == 0 else None)
            for _ in range(comm.rank):
                loader.next_batch()
            return loader

        kept = MODELS["data parallel"]
        try:
            if comm.rank == 1:
                MODELS["other"] = lambda devices: _moved(kept(devices))
            return Trained(dealt(2)[comm.rank], "data parallel" if comm.rank == 0 else "other", comm, data)
        finally:
            MODELS.pop("other", None)

    for result in finished(outcomes(2, work)):
        assert_close(result, alone())


def _moved(model: Any) -> Any:
    for p in model.parameters().values():
        p.data = p.numpy() + 1
    return model


def test_losses_of_a_model_that_returns_them() -> None:
    class Regression(ag.Layer):
        def __init__(self) -> None:
            self.body = ag.ag_sequential(layers())

        def forward(self, x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
            return ag.ag_mse_loss(self.body(x), y)

    def train(comm: Comm | None) -> tuple[list[float], np.ndarray]:
        devices = [f"cpu:{1 + (comm.rank if comm else 0)}"]
        with ag.ag_device(devices[0]):
            model = ag.DataParallel(Regression(), devices)
            losses = ag.train_distributed(model, batches(), ag.DistributedWorld(devices, comm), epochs=2)
            return losses, model.module.body.state_dict()["layer1_W"]

    wanted = train(None)
    for losses, weights in outcomes(3, train):
        np.testing.assert_allclose(losses, wanted[0], atol=1e-6)
        np.testing.assert_allclose(weights, wanted[1], atol=1e-6)


def test_parameters_that_some_ranks_do_not_use() -> None:
    class Gated(ag.Layer):
        def __init__(self) -> None:
            self.a, self.b, self.c = (ag.ag_linear(4, 2, bias=False) for _ in range(3))

        def forward(self, x: ag.Tensor) -> ag.Tensor:
            return self.a(x) + self.b(x) if x.numpy()[0, 0] == 1 else self.a(x)

    ones = X.copy()
    ones[0] = np.arange(44) < 6  # on rank 0 alone, and in the first batch alone

    def train(comm: Comm) -> dict[str, np.ndarray]:
        with ag.ag_device(f"cpu:{1 + comm.rank}"):
            ag.ag_seed(1)
            model = Gated()
            before = model.state_dict()
            ag.train_distributed(model, [(ag.ag_tensor(ones[:, :12]), ag.ag_tensor(Y[:, :12]))],
                                 ag.DistributedWorld([f"cpu:{1 + comm.rank}"], comm), ag.ag_mse_loss)
            assert np.array_equal(before["c_W"], model.c.W.numpy()) and model.c.W.grad is None
            assert not np.array_equal(before["b_W"], model.b.W.numpy())
            return model.state_dict()

    one, other = outcomes(2, train)
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("dtype", "optimizer"), [
    ("bf16", ag.optimizer_adam), *(pytest.param(*rest, marks=pytest.mark.slow) for rest in [
        ("f64", ag.optimizer_adam), ("f16", ag.optimizer_sgd)])])
def test_other_types(dtype: str, optimizer: Any) -> None:
    def train(comm: Comm | None) -> np.ndarray:
        devices = [f"cpu:{1 + comm.rank}"] if comm else ["cpu:1", "cpu:2"]
        with ag.ag_device(devices[0]):
            ag.ag_seed(5)
            ag.ag_dtype(dtype)
            try:
                model = ag.ag_sequential(ag.ag_linear(4, 8, activation="tanh"), ag.ag_batch_norm(8), ag.ag_linear(8, 2))
                data = batches()
                losses = ag.train_distributed(ag.DataParallel(model, devices), data, ag.DistributedWorld(devices, comm),
                                              ag.ag_mse_loss, optimizer(model.parameters(), lr=0.02), 2)
            finally:
                ag.ag_dtype("f32")
            assert {p.dtype for p in model.parameters().values()} == {dtype}
            return np.array([*losses, *(float(np.sum(x.astype(np.float64))) for x in model.state_dict().values())])

    wanted = train(None)
    found = outcomes(2, train)
    assert np.array_equal(found[0], found[1])
    if dtype == "f16":  # gradients of shares overflow at other scales, so other steps are skipped in the beginning
        assert np.isfinite(found[0]).all()
    else:
        np.testing.assert_allclose(found[0], wanted, atol=0.02 if dtype == "bf16" else 1e-12)


def test_messages_are_what_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    """And 16 bytes for each of the four parameters, and the state before the first step; no whole gradient."""
    moved: list[tuple[str, int]] = []
    move = ThreadComm._move

    def watched(self: ThreadComm, operation: str, out: Any, into: Any) -> None:
        if self.rank == 0:
            moved.append((operation, sum(x.nbytes for parts in out.values() for x in parts)))
        move(self, operation, out, into)

    monkeypatch.setattr(ThreadComm, "_move", watched)
    first, _ = finished(run(2, kind="compressed"))
    assert [operation for operation, _ in moved] == ["broadcast", *["all_gather"] * STEPS]
    assert sum(size for _, size in moved[1:]) == first.model.bytes_sent + STEPS * 4 * 16


# ---------------------------------------------------------------------------------------------- ranks that are lost


@cache
def meetings(ranks: int) -> tuple[int, int]:
    """Count the meetings of a rank before the first step, and altogether."""
    begun: list[int] = []

    def work(comm: Any) -> int:
        counted(comm)
        Trained(dealt(ranks)[comm.rank], comm=comm, happens={(0, 0): lambda: begun.append(comm.meetings)})
        return comm.meetings

    most, *_ = outcomes(ranks, work)
    return begun[0], most


def lost(ranks: int, killed: dict[int, int], path: Path, **options: Any) -> list[Trained]:
    """Those who are left, who have trained as one process does."""
    found = run(ranks, killed, checkpoint=path / "job", **{"checkpoint_every": 3, **options})
    assert all(isinstance(found[rank], Killed) for rank in killed), found
    left = finished([result for rank, result in enumerate(found) if rank not in killed])
    for i, result in enumerate(left):
        assert_equal(result, left[0])
        assert (result.world.rank, result.world.size) == (i, len(left))
    assert_close(left[0], alone(options.get("kind", "data parallel")))
    return left


@pytest.mark.parametrize(("killed", "part"), [(0, 0), (2, 1), (0, 2)])
def test_one_rank_of_three(killed: int, part: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, last = meetings(3)
    lost(3, {killed: first + 3 + part * (last - first) // 3}, tmp_path)
    (said,) = [message for message in caplog.messages if "going on from" in message]
    assert re.fullmatch(rf"train_distributed: rank {killed} \(.*\) was lost in step \d+; going on from step "
                        r"(0|3|6|9|12) on 2 ranks\.", said), said


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1, 2])
def test_one_rank_of_three_at_any_moment(killed: int, tmp_path: Path) -> None:
    first, last = meetings(3)
    for moment in range(first + 1, last - 1, 5):
        lost(3, {killed: moment}, tmp_path)


@pytest.mark.slow
def test_two_ranks_of_five(tmp_path: Path) -> None:
    first, _ = meetings(5)
    lost(5, {0: first + 20, 3: first + 60}, tmp_path)


def test_the_last_one_of_two_goes_on_alone(tmp_path: Path) -> None:
    (left,) = lost(2, {1: meetings(2)[0] + 25}, tmp_path)
    assert left.world.comm.size == 1
    alone_again = Trained(["cpu:4"], checkpoint=tmp_path / "job", resume=True, epochs=EPOCHS + 1)
    assert len(alone_again.losses) == STEPS + 4 and alone_again.losses[:STEPS] == left.losses


def test_what_lost_replicas_had_not_sent_is_sent_by_others(tmp_path: Path) -> None:
    first, _ = meetings(3)
    found = run(3, {1: first + 60}, kind="compressed", checkpoint=tmp_path / "job", checkpoint_every=1)
    left = [found[0], found[2]]
    for result in finished(left):
        assert_equal(result, left[0])
    np.testing.assert_allclose(left[0].losses, alone("compressed", 3).losses, rtol=0.3, atol=0.02)
    names = {key.partition(".")[0] for key in left[0].model.compressor_state()}
    assert names == {"steps", "residual0", "residual1"}


@pytest.mark.slow
def test_a_compressed_job_goes_on_with_other_replicas(tmp_path: Path) -> None:
    """To the bit with as many; fewer send what the others had not sent: nothing of it is lost."""
    path = tmp_path / "job"
    finished(run(2, kind="compressed", checkpoint=path, epochs=2))
    saved = ag.CompressedDataParallel(ag.ag_sequential(layers()), ["cpu:1", "cpu:2"], 0.2, momentum=0.5)
    ag.ag_load_checkpoint(path, saved)
    fewer = ag.CompressedDataParallel(ag.ag_sequential(layers()), ["cpu:1"], 0.2, momentum=0.5)
    fewer.load_compressor_state(saved.compressor_state())
    for name, residual in fewer.compressor_state().items():
        if name != "steps":
            parts = [saved.compressor_state()[name.replace("residual0", f"residual{i}")] for i in (0, 1)]
            assert np.abs(residual).max() > 0 and np.array_equal(residual, parts[0] + parts[1])
    for ranks in (2, 3, 1):
        (tmp_path / f"{ranks}").write_bytes(path.read_bytes())
        for result in finished(run(ranks, kind="compressed", checkpoint=tmp_path / f"{ranks}", resume=True)):
            if ranks == 2:
                assert_equal(result, finished(run(2, kind="compressed"))[0])
            np.testing.assert_allclose(result.losses[-1], alone("compressed").losses[-1], rtol=0.5)


def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    waits = Event()

    def work(comm: Comm) -> Trained:
        return Trained(dealt(2)[comm.rank], comm=comm, happens={(1, 4): lambda: waits.wait(60) and None},
                       checkpoint=tmp_path / "job")

    def freed(comm: Comm) -> Any:
        try:
            return work(comm)
        finally:
            waits.set()  # by rank 0, which has given up

    for error in outcomes(2, freed, timeout=2):
        with expect_error("train_distributed with a rank that hangs", ag.CommError, "cannot go on in step 4",
                          "rank 1 did not come within 2 s", "resume=True"):
            raise error


def test_fewer_ranks_than_asked_for(tmp_path: Path) -> None:
    def work(comm: Comm) -> Any:
        place = doomed(comm, meetings(3)[0] + 40) if comm.rank == 2 else comm
        with ag.ag_device(f"cpu:{1 + comm.rank}"):
            return ag.train_distributed(MODELS["a layer"]([]), ag.ag_dataloader(X, Y, batch_size=12, seed=1),
                                        ag.DistributedWorld([f"cpu:{1 + comm.rank}"], place, min_ranks=3),
                                        ag.ag_mse_loss, epochs=3, checkpoint=tmp_path / "job")

    for error in outcomes(3, work)[:2]:
        with expect_error("train_distributed with fewer than min_ranks", ag.CommError, "min_ranks is 3"):
            raise error


def test_a_rank_lost_before_the_first_step_or_without_a_checkpoint(tmp_path: Path) -> None:
    for moment, options, error, words in (
            (4, {"checkpoint": tmp_path / "job"}, ag.RankLostError, "was lost before step 0"),
            (meetings(3)[0] + 25, {}, ag.CommError, "give checkpoint")):
        found = run(3, {1: moment}, **options)
        for rank in (0, 2):
            with expect_error(f"train_distributed on rank {rank}", error, "rank 1 (", "was lost", words):
                raise found[rank]


@pytest.mark.slow
def test_one_loss_too_many(tmp_path: Path) -> None:
    path = tmp_path / "job"
    found = run(5, {1: meetings(5)[0] + 20, 3: meetings(5)[0] + 60}, checkpoint=path, checkpoint_every=1,
                max_restarts=1)
    for rank in (0, 2, 4):
        with expect_error(f"train_distributed on rank {rank}", ag.DeviceError, "max_restarts are used up",
                          "resume=True"):
            raise found[rank]
    for result in finished(run(2, checkpoint=path, resume=True)):
        assert_close(result, alone())


def test_a_file_of_another_job_is_not_taken(tmp_path: Path) -> None:
    """Rank 0 is lost, and on the host of the next one the same name is that of an old file."""
    path = tmp_path / "job"
    Trained(["cpu:1"], checkpoint=tmp_path / "old", lr=0.5)

    def swap() -> None:
        path.unlink()
        path.write_bytes((tmp_path / "old").read_bytes())

    found = run(3, {0: meetings(3)[0] + 60}, checkpoint=path, checkpoint_every=100, happens={(0, 2): swap})
    for rank in (1, 2):
        with expect_error(f"train_distributed with another file, on rank {rank}", ag.CheckpointError,
                          "is of another job", "all hosts share"):
            raise found[rank]


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "job"
    found = run(3, {0: meetings(3)[0] + 40}, checkpoint=path, checkpoint_every=100, happens={(1, 3): path.unlink})
    for rank in (1, 2):
        with expect_error(f"train_distributed on rank {rank}", ag.CheckpointError, "rank 0 (", "has no checkpoint"):
            raise found[rank]


# ---------------------------------------------------------------------------------------------- devices and errors


def test_a_device_of_a_rank_fails(fail: Fail, tmp_path: Path) -> None:
    """The rank's other device takes over, and all ranks go back to the checkpoint: to the bit, as shares are equal."""
    wanted = finished(run(2, replicas=2))[0]
    found = finished(run(2, replicas=2, checkpoint=tmp_path / "job", checkpoint_every=2,
                         happens={(1, 5): lambda: fail("cpu:4", 3)}))
    for result in found:
        assert_equal(result, wanted)
    assert found[1].world.devices == ("cpu:3", "cpu:3") and found[0].world.devices == ("cpu:1", "cpu:2")


def test_a_rank_without_devices_leaves(fail: Fail, tmp_path: Path) -> None:
    wanted = alone()  # before the device fails, which it uses
    found = run(3, checkpoint=tmp_path / "job", checkpoint_every=2, happens={(1, 5): lambda: fail("cpu:2", 3)})
    with expect_error("train_distributed on a rank whose device fails", ag.DeviceError, "cpu:2 failed in step 5",
                      "no device is left"):
        raise found[1]
    for i, result in enumerate(finished([found[0], found[2]])):
        assert_close(result, wanted)
        assert (result.world.rank, result.world.size) == (i, 2)


def test_a_rank_that_fails_itself_stops_all(tmp_path: Path) -> None:
    def broken() -> None:
        raise MemoryError("own memory")

    for options in ({}, {"checkpoint": tmp_path / "job"}):
        found = run(3, happens={(1, 4): broken}, **options)
        assert isinstance(found[1], MemoryError)
        for rank in (0, 2):
            with expect_error(f"train_distributed on rank {rank}", ag.CommError, "rank 1", "failed in step 4",
                              "MemoryError: own memory"):
                raise found[rank]


def test_a_loss_that_is_not_finite_ends_all_alike() -> None:
    """Though the samples of one rank alone are to blame."""
    spoilt = np.where(np.arange(12) == 11, np.nan, X[:, :12])
    found = run(2, data=lambda: [(X[:, :12], Y[:, :12]), (spoilt, Y[:, :12])])
    assert [type(error) for error in found] == [FloatingPointError] * 2 and str(found[0]) == str(found[1])
    assert "the loss of step 1 is nan" in str(found[0])


def test_an_interrupt_ends_all() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    found = run(2, happens={(1, 4): interrupt})
    assert isinstance(found[1], KeyboardInterrupt)
    with expect_error("train_distributed whose other rank is interrupted", ag.CommError, "KeyboardInterrupt"):
        raise found[0]


def test_rank_0_cannot_save(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def gone() -> None:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    found = run(2, checkpoint=folder / "job", happens={(0, 10): gone})
    assert isinstance(found[0], OSError)
    with expect_error("train_distributed whose rank 0 cannot save", ag.CommError, "rank 0", "failed"):
        raise found[1]


def cut(start: int) -> Callable[[], Any]:
    """Batches of its own on a rank, as for PyTorch's DistributedDataParallel: half of them would not be used."""
    return lambda: [(ag.ag_tensor(X[:, k : k + 6]), ag.ag_tensor(Y[:, k : k + 6])) for k in range(start, 36, 12)]


@pytest.mark.parametrize(("alike", "changed", "words"), [
    ({}, {"epochs": 2}, ["epochs is 3 on rank 0 and 2 on rank 1"]),
    ({}, {"lr": 0.1}, ["the optimizer is", "lr=0.1"]),
    ({}, {"kind": "batch norm"}, ["the optimizer is Adam(4 parameters", "Adam(6 parameters"]),
    ({}, {"kind": "compressed"}, ["the model is DataParallel on rank 0 and CompressedDataParallel on rank 1"]),
    ({}, {"data": batches}, ["data is a DataLoader of 44 samples, batch_size=12", "and a list on rank 1"]),
    ({}, {"data": lambda: ag.ag_dataloader(X, Y, batch_size=4, seed=1)}, ["batch_size=12", "batch_size=4"]),
    ({"data": cut(0)}, {"data": cut(6)}, ["batch 0 of epoch 0", "checksum", "the same data"]),
    ({"data": batches}, {"data": lambda: batches()[:3]}, ["rank 0 is at batch 3 of epoch 0",
                                                          "rank 1 at batch 0 of epoch 1"]),
    ({}, {"devices": ["cpu:1"]}, ["both use cpu:1"]),
])
def test_what_differs_is_named(alike: dict[str, Any], changed: dict[str, Any], words: list[str]) -> None:
    found = outcomes(2, lambda comm: Trained(comm=comm, **{"devices": dealt(2)[comm.rank], **alike,
                                                           **(changed if comm.rank else {})}))
    for rank, error in enumerate(found):
        with expect_error(f"train_distributed with {changed} on rank 1, on rank {rank}", ag.CommError, *words):
            raise error


def test_what_knows_one_process_alone() -> None:
    world = ag.DistributedWorld(["cpu"])
    world.size = 2  # no other rank is asked for anything
    model = ag.DataParallel(ag.SyncBatchNorm.convert(ag.ag_sequential(layers(norm=True))), ["cpu"])
    with expect_error("train_distributed with SyncBatchNorm", ValueError, "SyncBatchNorm", "ag_batch_norm"):
        ag.train_distributed(model, batches(), world, ag.ag_mse_loss)
    zero = ag.ZeroOptimizer(ag.ag_linear(4, 2), devices=["cpu", "cpu:1"])
    optimizer: Any = zero
    with expect_error("train_distributed with ZeroOptimizer", ValueError, "ZeroOptimizer", "an ordinary optimizer"):
        ag.train_distributed(zero.model, batches(), world, ag.ag_mse_loss, optimizer)
