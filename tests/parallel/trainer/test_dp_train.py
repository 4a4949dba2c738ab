"""dp_train: replicas on like devices train to the bit as loops written by hand do, on mixed devices in step.

Equal bits of all placements are in test_placements, what it accepts in test_input, what it refuses in test_refused.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from helpers.dp_classifier import DATA, assert_equal, make_model, places, train

import ag
from ag.engine.device import backend_of
from ag.parallel.trainer import samples
from ag.parallel.trainer.replica import Replica
from ag.parallel.trainer.samples import stacked

# ---------------------------------------------------------------------------------------------- like devices


def test_accumulating_equals_larger_micro_batches() -> None:
    assert_equal(train(places("cpu", 2), micro_batch=3, accumulate=4), train(places("cpu", 2), micro_batch=12))


def test_each_sample_draws_numbers_of_its_own() -> None:
    """Two samples of a step that are alike, and two steps, are dropped out differently."""
    seen: list[Any] = []

    def loss(model: Any, sample: Any) -> ag.Tensor:
        dropped = model[0](ag.ag_tensor(sample))
        seen.append(dropped.numpy().tobytes())
        return ag.ag_sum(model[1](dropped))

    ag.dp_train(lambda: ag.ag_sequential(ag.ag_dropout(0.5), ag.ag_linear(32, 1)), [np.ones((32, 1), np.float32)] * 4,
                forward_fn=loss, devices=["cpu"], micro_batch=2, n_iter=2, seed=1, capture=False, verbose=False)
    assert len({*seen[-4:]}) == 4


def test_max_norm_clips() -> None:
    free, clipped = train(["cpu"]), train(["cpu"], max_norm=0.05)
    assert free.loss_history[0] == clipped.loss_history[0]
    assert not np.array_equal(free.loss_history[1:], clipped.loss_history[1:])


def test_the_seed_decides() -> None:
    assert not np.array_equal(train(["cpu"]).loss_history, train(["cpu"], seed=5).loss_history)


def test_one_replica_is_the_hand_written_loop(device: str) -> None:
    """The same seed, one sample per step: the same operations in the same order."""
    result = train([device], micro_batch=1, n_iter=20)
    ag.ag_seed(4)
    model = ag.ag_train(make_model())
    optimizer = ag.optimizer_adam({n: ag.ag_param(p.numpy(), device="cpu") for n, p in model.parameters().items()},
                                  lr=0.05)  # dp_train steps on the host, so that unlike devices stay equal
    losses = []
    for k in range(20):
        x, labels = DATA[k]
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(x)), labels)
        grads = ag.backward(loss)
        optimizer.step({n: ag.ag_tensor(grads[n].numpy(), device="cpu") for n in optimizer.params})
        for n, p in model.parameters().items():
            p.data = optimizer.params[n].numpy()
        losses.append(loss.item())
    assert np.array_equal(result.loss_history, np.float32(losses))
    for name, p in optimizer.params.items():
        assert np.array_equal(result.params[name].numpy(), p.numpy()), name
    for name, value in optimizer.state_dict().items():
        assert np.array_equal(result.optimizer_state[name], value), name


# ---------------------------------------------------------------------------------------------- unlike devices


@pytest.mark.vulkan
@pytest.mark.parametrize("late", [0, 1])
def test_no_device_waits_until_another_was_given_its_work(late: int, lavapipe: str, swiftshader: str,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """One is given its work only when the other has finished."""
    run, finish = Replica.run, Replica.finish
    finished = threading.Event()

    def run_late(self: Replica, shard: Any, first: int, draws: int | None) -> None:
        if self.index == late and draws is not None:  # the first sample is tried before, alone
            assert finished.wait(30), "the other device waits"
            finished.clear()
        run(self, shard, first, draws)

    def noted(self: Replica) -> None:
        finish(self)
        if self.index != late:
            finished.set()

    monkeypatch.setattr(Replica, "run", run_late)
    monkeypatch.setattr(Replica, "finish", noted)
    assert np.isfinite(train([lavapipe, swiftshader], n_iter=3).loss_history).all()


def test_every_pass_is_a_call_in_the_thread_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that compiled code replays, whose bits are those of a step that is not captured."""
    ran: list[str] = []

    def run(self: Replica, *stacks: Any, run: Any = Replica.run) -> None:
        ran.append(threading.current_thread().name)
        run(self, *stacks)

    monkeypatch.setattr(Replica, "run", run)
    results = [train(["cpu", "cpu:1"], n_iter=6, capture=capture, micro_batch=1) for capture in (False, True)]
    assert_equal(*results)
    assert set(ran) == {"ag_replica"} and len(ran) == 2 * 2 * 6


@pytest.mark.parametrize("capture", [False, True])
def test_samples_are_stacked_once(capture: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the calling thread could not replay them."""
    counts = []
    for n in (10, 16):
        made: list[Any] = []

        def counted(samples: Any, made: list[Any] = made) -> Any:
            if isinstance(samples[0], tuple):  # and not the parts of these
                made.append(samples)
            return stacked(samples)

        monkeypatch.setattr(samples, "stacked", counted)
        train(["cpu", "cpu:1"], n_iter=n, capture=capture, stack=12)
        counts.append(len(made))
    assert counts[1] - counts[0] == 6 * 2


def test_one_transfer_each_way_per_replica_and_step(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not counting what fills the slots of the samples and the random streams.

    The optimizer leaves weights in the memory of CPU devices itself.
    """
    moved: list[tuple[str, str]] = []
    names = [f"cpu:{i}" for i in (1, 2, 3)] if device == "cpu" else [device] * 3  # apart from the optimizer's cpu
    words = sum(-(-p.size // 4) * 4 for p in make_model().parameters().values())
    for backend in {backend_of(name) for name in names}:
        read = "look" if device == "cpu" else "download"  # what replicas read their rows with
        download, upload = getattr(backend, read), backend.upload

        def counted_download(buffer: Any, download: Any = download) -> Any:
            moved.append(("down", buffer.backend.name))
            return download(buffer)

        def counted_upload(array: Any, into: Any, upload: Any = upload) -> None:
            if np.size(array) >= words:
                moved.append(("up", into.backend.name))
            upload(array, into)

        monkeypatch.setattr(backend, read, counted_download)
        monkeypatch.setattr(backend, "upload", counted_upload)
    per_step = []

    def note(step: ag.DPStep) -> None:
        per_step.append(sorted(moved))
        moved.clear()

    train(names, micro_batch=3, n_iter=4, callback=note)
    ways = ("down",) if device == "cpu" else ("down", "up")
    assert per_step[1:] == [sorted((way, name) for name in names for way in ways)] * 3
