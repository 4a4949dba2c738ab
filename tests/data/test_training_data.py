"""Loaders and image folders as data of dp_train and start: equal bits on any replicas and ranks, made ahead, named."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.probe import patience
from helpers.ranks import dealt, outcomes
from PIL import Image

import ag
from ag.data.samples import Prefetcher
from ag.parallel.comm.comm import Comm

RNG = np.random.default_rng(11)


def test_things_come_in_order_and_each_is_made_once() -> None:
    made: list[int] = []
    told = Prefetcher(lambda k: made.append(k) or 10 * k, threads=1)
    assert told.take([3, 1], coming=[2, 7]) == [30, 10]
    assert told.take([7, 2], coming=[5]) == [70, 20]
    assert told.take([5]) == [50]
    told.close()
    assert made == [3, 1, 2, 7, 5]  # in the order of being told, by one thread


def test_what_does_not_come_any_more_is_not_made() -> None:
    made: list[int] = []
    go = threading.Event()

    def make(k: int) -> int:
        assert k == 0 or go.wait(60)
        made.append(k)
        return k

    told = Prefetcher(make, threads=1)
    told.take([0], coming=[1, 2, 3, 4])
    threading.Timer(0.05, go.set).start()
    assert told.take([4, 8], coming=[1]) == [4, 8]
    assert told.take([1]) == [1]
    told.close()
    assert set(made) == {0, 1, 4, 8}


def test_an_error_comes_with_its_thing_and_only_then() -> None:
    def make(k: int) -> float:
        return 1 / k

    told = Prefetcher(make, threads=2)
    assert told.take([1], coming=[0, 2]) == [1]
    assert told.take([2], coming=[0]) == [0.5]
    with pytest.raises(ZeroDivisionError):
        told.take([0])
    assert told.take([4]) == [0.25]
    told.close()


def makers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ag_samples"]


def test_threads_end() -> None:
    told = Prefetcher(lambda k: k, threads=3)
    told.take([1, 2, 3])
    mine = makers()
    assert len(mine) >= 3
    told.close()
    for thread in mine:
        thread.join(60)
    assert not any(thread.is_alive() for thread in mine)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    for kind in ("ant", "bee", "cat"):
        (root / kind).mkdir(parents=True)
        for k in range(7):
            pixels = RNG.integers(0, 256, (14 + k, 16, 3), np.uint8)
            Image.fromarray(pixels).save(root / kind / f"{k}.png")
    return root


def make_model() -> ag.Layer:
    return ag.ag_sequential(ag.ag_conv2d_layer(3, 4, 3, padding=1, activation="relu"), ag.ag_batch_norm(4),
                            ag.ag_global_pool(), ag.ag_linear(4, 3))


def train(folder: Path, devices: list[str], world: Comm | None = None, prefetch: int = 2,
          **options: Any) -> ag.DPResult:
    """Twelve images a step, so that passes begin in the middle of steps, in stacks of three."""
    data = ag.ag_image_folder(folder, 8, shorter_side=10, random_crop=True, random_flip=True, prefetch=prefetch, seed=1)
    return ag.dp_train(make_model, data, ag.ag_softmax_cross_entropy_loss, devices=devices, world=world,
                       **{"n_iter": 6, "batch": 12, "stack": 3, "lr": 0.02, "seed": 4, "verbose": False, **options})


def bits(result: ag.DPResult) -> list[bytes]:
    return [result.loss_history.tobytes(), *(x.tobytes() for x in result.model.state_dict().values())]


def test_crops_and_flips_are_the_same_on_any_replicas_and_ranks(folder: Path) -> None:
    alone = bits(train(folder, ["cpu"], prefetch=0))
    places = dealt(2, 2)
    for result in outcomes(2, lambda comm: train(folder, places[comm.rank], comm)):
        assert bits(result) == alone
    assert bits(train(folder, ["cpu"], seed=5)) != alone


def test_a_pass_sees_other_crops_than_the_one_before(folder: Path) -> None:
    seen: list[bytes] = []
    train(folder, ["cpu"], batch=21, stack=1, n_iter=2, shuffle=False, capture=False,
          forward_fn=lambda m, s: seen.append(s.x.tobytes()) or m(s.x))
    first, second = seen[-42:-21], seen[-21:]
    assert sum(a != b for a, b in zip(first, second, strict=True)) > 15


def test_a_resumed_job_sees_the_same_crops(folder: Path, tmp_path: Path) -> None:
    whole = bits(train(folder, ["cpu", "cpu:1"]))
    path = tmp_path / "job"
    train(folder, ["cpu"], n_iter=3, checkpoint=path)
    assert bits(train(folder, ["cpu"], checkpoint=path, resume=True)) == whole


def test_images_are_decoded_in_several_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time, at least, where there are two cores: each waits for another to begin."""
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    both = threading.Barrier(2)
    threads = set()
    resize = Image.Image.resize

    def together(*args: Any, **options: Any) -> Any:
        threads.add(threading.current_thread())
        both.wait(60)
        return resize(*args, **options)

    monkeypatch.setattr(Image.Image, "resize", together)
    train(folder, ["cpu"], n_iter=2)
    assert 2 <= len(threads) <= 3 and threading.main_thread() not in threads


def test_a_broken_image_is_named_on_all_ranks(folder: Path) -> None:
    broken = folder / "bee" / "3.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with expect_error("dp_train with a broken image", ValueError, "ag_image_folder", str(broken)):
        train(folder, ["cpu"])
    found = outcomes(3, lambda comm: train(folder, dealt(3, 1)[comm.rank], comm))
    (mine,) = [i for i, error in enumerate(found) if type(error) is ValueError]
    assert str(broken) in str(found[mine])
    if sys.version_info >= (3, 11):
        assert any(f"rank {mine}" in note and "step" in note for note in found[mine].__notes__)
    for error in found[:mine] + found[mine + 1 :]:
        assert type(error) is ag.CommError and f"rank {mine} failed" in str(error) and str(broken) in str(error)


class Asleep:
    """Samples that take a while to make, in which nothing is computed."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.threads, self.made = seconds, set[threading.Thread](), 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        self.threads.add(threading.current_thread())
        sleep(self.seconds)
        self.made += 1
        return np.full(3, i / 12, np.float32), np.ones(1, np.float32)


def job(samples: Asleep, prefetch: int, steps: int, callback: Callable[[ag.DPStep], object]) -> dict[str, Any]:
    """The report of a job of four samples a step."""
    loader = ag.ag_dataloader(samples, batch_size=4, prefetch=prefetch)
    (row,) = ag.dp_train(lambda: ag.ag_linear(3, 1), loader, ag.ag_mse_loss, devices=["cpu"], n_iter=steps, seed=1,
                         stack=4, verbose=False, callback=callback).report
    return row


def test_samples_are_made_while_devices_work() -> None:
    """A step is not over before all samples of the two after it are made: the job ends only if others make them."""
    samples, made = Asleep(0.0), []

    def until_made(step: ag.DPStep) -> None:
        end = perf_counter() + patience(20)
        while samples.made < 4 + 4 * min(step.step + 3, 5):  # four for the trial of stacks
            assert perf_counter() < end, f"{samples.made} samples are made after step {step.step}"
            sleep(0.001)
        made.append(samples.made)

    job(samples, 2, 5, until_made)
    assert made == [16, 20, 24, 24, 24]
    assert len(samples.threads) == 1 and threading.main_thread() not in samples.threads  # one at a time, as in loops


def test_waiting_for_samples_is_reported() -> None:
    samples = Asleep(0.003)
    row = job(samples, 0, 4, lambda step: sleep(0.01))
    assert samples.threads == {threading.main_thread()}
    assert row["data_wait_ms"] >= 4 * 4 * 3
    assert 0 < row["data_wait_share"] < 1


def test_made_ahead_samples_are_those_of_the_calling_thread() -> None:
    def losses(prefetch: int) -> np.ndarray:
        rng = np.random.default_rng(0)

        class Noisy(Asleep):
            def __getitem__(self, i: int) -> Any:
                return rng.normal(size=3), np.ones(1)

        loader = ag.ag_dataloader(Noisy(0), batch_size=4, prefetch=prefetch)
        return ag.dp_train(lambda: ag.ag_linear(3, 1), loader, ag.ag_mse_loss, devices=["cpu"], n_iter=9, seed=1,
                           verbose=False).loss_history

    assert np.array_equal(losses(3), losses(0))


def test_what_samples_draw_follows_from_pass_and_sample() -> None:
    def samples(replicas: int, prefetch: int) -> set[bytes]:
        class Masked(Asleep):
            def __getitem__(self, i: int) -> Any:
                return ag.ag_dropout(0.5)(ag.ag_tensor(np.full((3, 1), i + 1.0))), np.ones(1)

        seen, places = set(), [f"cpu:{i}" for i in range(replicas)]
        loader = ag.ag_dataloader(Masked(0), prefetch=prefetch)
        ag.dp_train(lambda: ag.ag_linear(3, 1), loader, ag.ag_mse_loss,
                    lambda m, s: seen.add(np.asarray(s.x).tobytes()) or m(s.x), devices=places, n_iter=2, batch=12,
                    stack=1, seed=1, verbose=False, capture=False)
        return seen

    assert samples(1, 0) == samples(2, 2)


def test_an_array_in_memory_needs_no_thread() -> None:
    loader = ag.ag_dataloader(np.ones((3, 12)), np.ones((1, 12)), batch_size=4, prefetch=2)
    before, seen = set(makers()), set[threading.Thread]()
    ag.dp_train(lambda: ag.ag_linear(3, 1), loader, ag.ag_mse_loss, devices=["cpu"], n_iter=2, verbose=False,
                callback=lambda step: seen.update(makers()))
    assert seen <= before


def on_ranks(ranks: int, replicas: int, **options: Any) -> list[Any]:
    data = [(np.full((2, 1), i / 48), np.ones((1, 1))) for i in range(48)]

    def run(comm: Comm | None) -> ag.DPResult:
        devices = dealt(ranks, replicas)[comm.rank if comm else 0]
        return ag.start(ag.ag_mse_loss, data, lambda: ag.ag_linear(2, 1), devices=devices, seed=1, lr=0.01, world=comm,
                        **{"batchsize": 4, "cycles": 2, **options})

    return outcomes(ranks, run) if ranks > 1 else [run(None)]


def test_a_cycle_of_start_is_a_pass_whatever_the_ranks() -> None:
    (one,) = on_ranks(1, 4)
    assert len(one.loss_history) == 2 * 48 // 16
    for result in on_ranks(2, 2):
        assert np.array_equal(result.loss_history, one.loss_history)


def test_start_counts_steps_of_other_sizes() -> None:
    assert len(on_ranks(1, 2, batch=12)[0].loss_history) == 8
    assert len(on_ranks(1, 2, accumulate=3)[0].loss_history) == 4
    assert len(on_ranks(2, 1, nsamples=10)[0].loss_history) == 6


def test_a_world_of_devices_is_what_start_uses() -> None:
    world = ag.DistributedWorld.init(devices=["cpu", "cpu:1"])
    data = [(np.ones((2, 1)), np.ones((1, 1)))] * 8
    done = ag.start(ag.ag_mse_loss, data, lambda: ag.ag_linear(2, 1), batchsize=2, world=world, seed=1)
    assert done.devices == ["cpu", "cpu:1"] and len(done.loss_history) == 2


def test_an_image_folder_is_data_of_start(folder: Path) -> None:
    data = ag.ag_image_folder(folder, 8, batch_size=2)
    done = ag.start(ag.ag_softmax_cross_entropy_loss, data, make_model, cycles=2, batchsize=6, devices=["cpu", "cpu:1"],
                    seed=1)
    assert len(done.loss_history) == 2 * 2  # 21 images, 12 a step
    assert sum(row["samples"] for row in done.report) == 4 * 12
