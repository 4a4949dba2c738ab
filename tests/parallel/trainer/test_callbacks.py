"""dp_train between two steps: what a callback sets, how it ends a job, Ctrl-C, and SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dp_classifier import assert_equal, places
from helpers.errors import expect_error
from helpers.ranks import outcomes

import ag
from ag.parallel.trainer.trainer import Endings

RNG = np.random.default_rng(29)
DATA = [{"x": RNG.standard_normal((4, 1)).astype(np.float32), "label": np.array([i % 3])} for i in range(12)]


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Ctrl-C raises, also where the tests run in the background of a shell."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


class Net(ag.Layer):
    def __init__(self) -> None:
        self.first, self.drop, self.last = ag.ag_linear(4, 6, activation="tanh"), ag.ag_dropout(0.4), ag.ag_linear(6, 3)
        self.norm = ag.ag_batch_norm(3)
        self.temperature = 1.0

    def forward(self, x: Any) -> Any:
        return self.norm(self.last(self.drop(self.first(x)))) * self.temperature


def train(devices: list[str], callback: Callable[[ag.DPStep], Any] | None = None, **options: Any) -> ag.DPResult:
    settings = {"forward_fn": lambda m, s: m(s["x"]), "target_fn": lambda s: s["label"], "n_iter": 8, "lr": 0.05,
                "seed": 4, "batch": 8, "stack": 4, "verbose": False}
    return ag.dp_train(Net, DATA, options.pop("loss_fn", ag.ag_softmax_cross_entropy_loss), devices=devices,
                       callback=callback, **{**settings, **options})


@cache
def plain_losses() -> np.ndarray:
    return train(["cpu"]).loss_history


def at(step: int, do: Callable[[list[Any]], Any], of: slice = slice(None)) -> Callable[[ag.DPStep], None]:
    """A callback that does something with some of the models after one step."""
    def callback(found: ag.DPStep) -> None:
        if found.step == step:
            do(found.models[of])

    return callback


# ---------------------------------------------------------------------------------------------- weights


def clip(models: list[Any]) -> None:
    for model in models:
        for p in model.parameters().values():
            p.data = np.clip(p.numpy(), -0.05, 0.05)


def load(models: list[Any]) -> None:
    for model in models:
        model.load_state_dict({name: np.full(x.shape, 0.25) for name, x in model.state_dict().items()})


def step_of_its_own(models: list[Any]) -> None:
    for model in models:
        optimizer = ag.optimizer_sgd(model, lr=1.0)
        optimizer.step({name: np.ones(p.shape, np.float32) for name, p in model.parameters().items()})


@pytest.mark.parametrize("change", [clip, load, step_of_its_own])
def test_weights_that_a_callback_sets_are_kept(device: str, change: Any) -> None:
    plain, one = train(places(device, 1)), train(places(device, 1), at(3, change))
    assert np.array_equal(plain.loss_history[:4], one.loss_history[:4])
    assert not np.array_equal(plain.loss_history[4:], one.loss_history[4:])
    assert_equal(train(places(device, 2), at(3, change)), one)
    if change is not load:  # which sets buffers
        assert_equal(train(places(device, 2), at(3, change, slice(1))), one)
        assert_equal(train(places(device, 2), at(3, change, slice(1, 2))), one)


def test_they_are_the_final_weights(device: str) -> None:
    found: list[Any] = []
    result = train(places(device, 2), at(7, lambda models: (clip(models), found.append(models[0].state_dict()))))
    for name, p in result.params.items():
        assert np.array_equal(p.numpy(), found[0][name]) and np.abs(p.numpy()).max() <= 0.05


def swap(step: ag.DPStep) -> None:
    """Set an average of weights, as for validation, and what was there again."""
    for model in step.models:
        kept = model.state_dict()
        model.load_state_dict({name: np.zeros_like(x) for name, x in kept.items()})
        model.load_state_dict(kept)


def validate(step: ag.DPStep) -> None:
    model = ag.ag_eval(step.models[0])
    model(DATA[0]["x"])
    ag.ag_train(model)


def number(step: ag.DPStep) -> None:
    for i, model in enumerate(step.models):
        model.number = i


@pytest.mark.parametrize("callback", [swap, validate, number])
def test_callbacks_that_change_nothing(callback: Callable[[ag.DPStep], None]) -> None:
    assert_equal(train(["cpu", "cpu:1"], callback), train(["cpu"]))


def test_all_kinds_of_optimizers_go_on_with_them(tmp_path: Path) -> None:
    def two(params: dict[str, ag.Tensor]) -> list[Any]:
        return [ag.optimizer_sgd({n: p for n, p in params.items() if n.startswith("first")}, lr=0.1),
                ag.optimizer_adam({n: p for n, p in params.items() if n.startswith("norm")}, lr=0.1)]

    one = train(["cpu"], at(3, clip), optimizer=two)  # `last` is frozen
    assert np.abs(one.params["last_W"].numpy()).max() <= 0.05
    assert_equal(train(["cpu", "cpu:1"], at(3, clip), optimizer=two), one)
    path = tmp_path / "job"
    train(["cpu"], at(3, clip), optimizer=two, n_iter=4, checkpoint=path)
    assert_equal(train(["cpu", "cpu:1"], optimizer=two, checkpoint=path, resume=True), one)


def test_16_bits(f16: None) -> None:
    one = train(["cpu"], at(3, clip), n_iter=5)
    assert_equal(train(["cpu", "cpu:1"], at(3, clip, slice(1)), n_iter=5), one)
    assert np.abs(train(["cpu"], at(4, clip), n_iter=5).params["first_W"].numpy()).max() <= 0.0501


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_all_models_are_alike_after_a_step(replicas: int, dtype: str) -> None:
    """In every bit of what they compute with, also where the optimizer has other digits; no two share memory."""
    def alike(step: ag.DPStep) -> None:
        models = [m.parameters() for m in step.models]
        memory.append({(p.device, p.buffer.block.address) for m in models for p in m.values()})
        for name, p in models[0].items():
            assert all(np.array_equal(p.numpy(), m[name].numpy()) for m in models)
            values[name].append(p.numpy())

    def forward(m: Any, s: Any) -> Any:
        return m(ag.ag_tensor(s["x"], dtype=dtype))

    def make() -> ag.Layer:
        with ag.ag_dtype(dtype):
            return ag.ag_sequential(ag.ag_linear(4, 5), ag.ag_linear(5, 3))

    memory: list[set[tuple[str, int]]] = []
    values: dict[str, list[Any]] = {name: [] for name in make().parameters()}
    ag.dp_train(make, DATA, ag.ag_softmax_cross_entropy_loss, forward, lambda s: s["label"], callback=alike, n_iter=4,
                devices=["cpu", "cpu:1"][:replicas], lr=0.05, verbose=False)
    assert len(memory[0]) == replicas and all(there == memory[0] for there in memory)
    assert all(any(not np.array_equal(a, b) for a, b in pairwise(steps)) for steps in values.values())


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_loss_of_weights_that_have_changed_has_no_gradients(replicas: int) -> None:
    """Of the last model, computed in the callback of the step before."""
    devices, kept, refused = ["cpu", "cpu:1"][:replicas], list[ag.Tensor](), list[int]()

    def look(step: ag.DPStep) -> None:
        if kept:
            with expect_error("backward through weights of the step before", ag.TapeError, "was changed after"):
                ag.backward(kept.pop())
            refused.append(step.step)
        with ag.ag_device(devices[-1]), ag.with_grad_tape():
            last = step.models[-1]
            kept.append(ag.ag_sum(last.last(last.first(DATA[0]["x"]))))

    train(devices, look, n_iter=4)
    assert refused == [1, 2, 3]


@pytest.mark.parametrize("replicas", [1, 2])
def test_weights_that_a_function_sets_are_gone_after_the_step(replicas: int) -> None:
    """In place or by other memory: here gradients do not depend on weights, and the steps are those without it."""
    def as_they_are(w: ag.Tensor) -> None:
        pass

    def halved(w: ag.Tensor) -> None:
        w.data = w.numpy() / 2

    def moved(w: ag.Tensor) -> None:
        w.rebind(ag.ag_tensor(w.numpy() / 2, device=w.device).buffer)

    class Line(ag.Layer):
        def __init__(self) -> None:
            self.w = ag.ag_param(np.ones((1, 4), np.float32))

        def forward(self, x: Any) -> Any:
            change(self.w)
            return ag.ag_sum(self.w @ ag.ag_tensor(x))

    found = []
    for change in (as_they_are, halved, moved):  # noqa: B007 - the model calls it
        found.append(ag.dp_train(Line, [s["x"] for s in DATA], devices=["cpu", "cpu:1"][:replicas], n_iter=3, seed=1,
                                 capture=False, verbose=False,
                                 optimizer=lambda p: ag.optimizer_sgd(p, lr=0.1)).params["w"].numpy())
    assert all(np.array_equal(w, found[0]) for w in found) and (found[0] != 1).all()


@pytest.mark.parametrize(("replicas", "several", "captured"), [
    pytest.param(1, False, False, id="1-one-eager"), pytest.param(2, True, True, id="2-several-captured")])
def test_the_host_and_a_model_may_be_set_at_once(replicas: int, several: bool, captured: bool) -> None:
    """Whatever weight is set, and wherever, holds; all others stay as the step has left them."""
    made: list[Any] = []
    set_to: list[Any] = []
    devices = places("cpu", replicas)

    def make(params: dict[str, ag.Tensor]) -> Any:
        halves = [dict([*params.items()][:2]), dict([*params.items()][2:])] if several else [params]
        made[:] = [ag.optimizer_sgd(half, lr=0.1) for half in halves]
        return made if several else made[0]

    def change(models: list[Any]) -> None:
        def of_the_host(gradient: ag.Tensor) -> ag.Tensor:
            made[0].step({"first_W": gradient})
            return gradient

        step = ag.ag_capture(of_the_host) if captured else of_the_host
        host = made[0].params["first_W"]
        for _ in range(3):
            step(ag.ag_tensor(np.ones(host.shape)))
        set_to.append(host.numpy())
        models[-1].last.W.data = np.full(models[-1].last.W.shape, 0.25)

    plain, found = train(devices, optimizer=make), train(devices, at(7, change), optimizer=make)
    for name, p in found.params.items():
        expected = {"first_W": set_to[0], "last_W": np.full(p.shape, 0.25)}
        assert np.array_equal(p.numpy(), expected.get(name, plain.params[name].numpy())), name


def test_its_rate_and_settings_take_effect() -> None:
    def run(**changes: float) -> ag.DPResult:
        made: list[Any] = []

        def make(params: dict[str, ag.Tensor]) -> Any:
            made.append(ag.optimizer_sgd(params, lr=0.1, momentum=0.5))
            return made[-1]

        return train(["cpu"], at(3, lambda _: [setattr(made[-1], n, v) for n, v in changes.items()]), optimizer=make)

    losses = [tuple(run(**changes).loss_history[5:]) for changes in ({}, {"lr": 0.0}, {"momentum": 0.0})]
    assert len(set(losses)) == 3


# ---------------------------------------------------------------------------------------------- modes and settings


@pytest.mark.parametrize("of", [slice(None), slice(1), slice(1, 2)], ids=["all", "first", "second"])
def test_modes_that_a_callback_sets_hold_for_all(of: slice) -> None:
    one = train(["cpu"], at(3, lambda models: [ag.ag_eval(m) for m in models]))
    found = train(["cpu", "cpu:1"], at(3, lambda models: [ag.ag_eval(m) for m in models], of))
    assert_equal(found, one)
    assert not found.model.training and not np.array_equal(one.loss_history[4:], plain_losses()[4:])


def freeze(models: list[Any]) -> None:
    for model in models:
        model.first.W.requires_grad = False


def drop_more(models: list[Any]) -> None:
    for model in models:
        model.drop.rate, model.norm.momentum, model.temperature = 0.9, 0.5, 3.0


def another_activation(models: list[Any]) -> None:
    for model in models:
        model.activation = ag.ag_relu


class Doubles(ag.Layer):
    """Holds nothing but its mode, which is its class's at first."""

    def forward(self, x: Any) -> Any:
        return x * 2.0 if self.training else x


class Nested(Net):
    """With settings in a list of dicts, and an activation of its class."""

    activation = staticmethod(ag.ag_tanh)

    def __init__(self) -> None:
        super().__init__()
        self.scales, self.doubles = [{"in": 1.0}, {"out": 2.0}], Doubles()

    def forward(self, x: Any) -> Any:
        return self.activation(self.doubles(super().forward(x))) * (self.scales[0]["in"] * self.scales[1]["out"])


def scale_in(models: list[Any]) -> None:
    for model in models:
        model.scales[0]["in"] = 0.5


def no_more_doubles(models: list[Any]) -> None:
    for model in models:
        ag.ag_eval(model.doubles)


def test_settings_that_a_callback_sets_hold_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Net", Nested)
    losses = {tuple(train(["cpu"]).loss_history[5:])}
    for change, of in ((freeze, slice(1)), (drop_more, slice(1, 2)), (another_activation, slice(None)),
                       (scale_in, slice(1)), (no_more_doubles, slice(1, 2))):
        one = train(["cpu"], at(3, change))
        assert_equal(train(["cpu", "cpu:1"], at(3, change, of)), one)
        losses.add(tuple(one.loss_history[5:]))
    assert len(losses) == 6


def unlike_weights(models: list[Any]) -> None:
    for i, model in enumerate(models):
        model.first.W.data = np.full(model.first.W.shape, i + 2.0)


def unlike_rates(models: list[Any]) -> None:
    models[0].drop.rate, models[1].drop.rate = 0.5, 0.6


def another_layer(models: list[Any]) -> None:
    models[0].last = ag.ag_linear(6, 3)


@pytest.mark.parametrize(("change", "words"), [
    (unlike_weights, ["callback", "first_W", "replica 1"]), (unlike_rates, ["drop.rate", "replica 1 (cpu:1)"]),
    (another_layer, ["last", "set it on all models"])])
def test_what_cannot_hold_for_all_is_refused(change: Any, words: list[str]) -> None:
    with expect_error("a callback that sets models in several ways", ag.CommError, *words):
        train(["cpu", "cpu:1", "cpu:2"], at(1, change), batch=12)


TEMPERATURE = {"is": 1.0}
SCALE = 1.0


def loss_with_settings(output: ag.Tensor, label: Any) -> ag.Tensor:
    return ag.ag_softmax_cross_entropy_loss(output, label) * (TEMPERATURE["is"] * SCALE)


def an_attribute(models: list[Any]) -> None:
    for model in models:
        model.temperature = 3.0


def a_dict(models: list[Any]) -> None:
    TEMPERATURE["is"] = 3.0


def a_global(models: list[Any]) -> None:
    global SCALE
    SCALE = 3.0


def a_rate(models: list[Any]) -> None:
    for model in models:
        model.drop.rate = 0.9


@pytest.mark.parametrize("change", [an_attribute, a_dict, a_global, a_rate])
def test_what_the_functions_read_may_change(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    for capture in (False, "auto"):
        monkeypatch.setitem(TEMPERATURE, "is", 1.0)
        monkeypatch.setitem(globals(), "SCALE", 1.0)
        losses.append(train(["cpu", "cpu:1"], at(3, change), loss_fn=loss_with_settings, capture=capture).loss_history)
    assert np.array_equal(*losses) and not np.array_equal(losses[0][4:], plain_losses()[4:])


def test_what_changes_every_time_runs_uncaptured(caplog: pytest.LogCaptureFixture,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []

    def anneal(step: ag.DPStep) -> None:
        TEMPERATURE["is"] *= 0.9

    for capture in (False, "auto"):
        monkeypatch.setitem(TEMPERATURE, "is", 1.0)
        losses.append(train(["cpu"], anneal, loss_fn=loss_with_settings, capture=capture).loss_history)
    assert np.array_equal(*losses)
    (record,) = caplog.records
    assert "uncaptured" in record.getMessage() and "callback" in record.getMessage()


# ---------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("answer", [False, np.False_])
def test_a_callback_that_returns_false_ends_the_job(device: str, answer: Any, tmp_path: Path) -> None:
    whole = train(places(device, 1))
    path = tmp_path / "job"
    ended = train(places(device, 2), lambda step: answer if step.step == 3 else None, checkpoint=path)
    assert np.array_equal(ended.loss_history, whole.loss_history[:4]) and ended.loss == ended.loss_history[-1]
    assert not ended.interrupted
    assert_equal(ended, train(places(device, 1), n_iter=4))
    assert_equal(train(places(device, 1), checkpoint=path, resume=True), whole)


def test_what_else_a_callback_returns_does_not() -> None:
    answers = [None, True, 0, "", [], None]
    assert len(train(["cpu"], lambda step: answers.pop(), n_iter=6).loss_history) == 6


def test_one_rank_ends_the_job_of_all() -> None:
    def run(comm: Any) -> ag.DPResult:
        callback = (lambda step: step.step != 2) if comm.rank else None
        return train([f"cpu:{comm.rank}"], callback, world=comm)

    for result in outcomes(2, run):
        assert_equal(result, train(["cpu"], n_iter=3))


# ---------------------------------------------------------------------------------------------- Ctrl-C


def interrupt_at(step: int) -> Callable[[ag.DPStep], None]:
    return at(step, lambda _: os.kill(os.getpid(), signal.SIGINT))


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_interrupt_returns_what_there_is(replicas: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole, path = train(["cpu"]), tmp_path / "job"
    found = train(places("cpu", replicas), interrupt_at(3), checkpoint=path)
    assert found.interrupted and "interrupted after 4 of 8 steps" in caplog.text
    assert_equal(found, train(["cpu"], n_iter=4))
    assert_equal(train(["cpu"], checkpoint=path, resume=True), whole)


@pytest.mark.parametrize(("replicas", "place"), [(2, "forward"), (2, "loss"), (1, "target")])
def test_an_interrupt_in_a_step_leaves_it_out(place: str, replicas: int, tmp_path: Path) -> None:
    step, path = [0], tmp_path / "job"

    def now_and_then(x: Any) -> Any:
        if step[0] == 4:
            raise KeyboardInterrupt
        return x

    def count(found: ag.DPStep) -> None:
        step[0] = found.step + 1

    functions = {"forward": {"forward_fn": lambda m, s: now_and_then(m(s["x"]))},
                 "loss": {"loss_fn": lambda o, t: now_and_then(ag.ag_softmax_cross_entropy_loss(o, t))},
                 "target": {"target_fn": lambda s: now_and_then(s["label"])}}[place]
    found = train(places("cpu", replicas), count, **functions, capture=False, checkpoint=path)
    assert found.interrupted
    assert_equal(found, train(["cpu"], n_iter=4))
    assert all(p.grad is None for p in found.params.values())
    assert_equal(train(["cpu"], checkpoint=path, resume=True), train(["cpu"]))


def test_a_job_that_was_interrupted_in_its_first_step_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "job"

    def interrupted(model: Any, sample: Any) -> Any:
        if model.training:
            raise KeyboardInterrupt
        return model(sample["x"])

    found = train(["cpu"], forward_fn=interrupted, checkpoint=path)
    assert found.interrupted and found.loss_history.shape == (0,) and np.isnan(found.loss)
    assert_equal(train(["cpu", "cpu:1"], checkpoint=path, resume=True), train(["cpu"]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a file being opened
@pytest.mark.parametrize("attempt", range(3))
def test_interrupts_at_any_time(attempt: int, tmp_path: Path) -> None:
    """40 in each part: every result is that of the steps it says, and every job goes on to the bit."""
    whole = {n: train(["cpu"], n_iter=n, lr=0.01) for n in range(41)}
    random = np.random.default_rng(attempt)
    for i in range(40):
        n = 1 + i % 2
        path = tmp_path / f"{i}"
        timer = threading.Timer(float(random.uniform(0.0, 0.15)), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            found = train(places("cpu", n), n_iter=40, lr=0.01, checkpoint=path)
        except KeyboardInterrupt:  # before the first step, or when all were done
            continue
        finally:
            timer.cancel()
            try:
                timer.join()
            except KeyboardInterrupt:
                timer.join()
        assert_equal(found, whole[len(found.loss_history)])
        assert_equal(train(["cpu"], n_iter=40, lr=0.01, checkpoint=path, resume=True), whole[40])


def test_before_the_first_step_an_interrupt_is_an_interrupt() -> None:
    def make() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ag.dp_train(make, DATA, devices=["cpu"], verbose=False)


def test_of_several_ranks_the_first_saves(tmp_path: Path) -> None:
    path = tmp_path / "job"

    def run(comm: Any) -> ag.DPResult:
        def callback(step: ag.DPStep) -> None:
            if comm.rank == 0 and step.step == 3:
                raise KeyboardInterrupt

        return train([f"cpu:{comm.rank}"], callback, world=comm, checkpoint=path)

    first, second = outcomes(2, run)
    assert isinstance(first, KeyboardInterrupt) and isinstance(second, ag.CommError)
    assert_equal(train(["cpu"], checkpoint=path, resume=True), train(["cpu"]))


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)


def test_an_interrupt_waits_for_the_end_of_a_step() -> None:
    order: list[str] = []

    def end() -> None:
        interrupt()
        order.append("inside")

    with pytest.raises(KeyboardInterrupt), Endings() as endings:
        endings.end_of_step(end)
        order.append("never")
    assert order == ["inside"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), Endings():
        interrupt()
        order.append("never")
    assert order == ["inside"]


def test_interrupts_are_handled_by_whom_a_callback_says() -> None:
    came: list[int] = []

    def callback(step: ag.DPStep) -> None:
        if step.step == 1:
            signal.signal(signal.SIGINT, lambda number, _: came.append(number))
        if step.step == 3:
            interrupt()

    assert len(train(["cpu"], callback).loss_history) == 8
    assert came == [signal.SIGINT]
    interrupt()  # the callback's handler stays
    assert len(came) == 2


def test_other_threads_handle_no_interrupts() -> None:
    done: list[Any] = []

    def work() -> None:
        with Endings() as endings:
            endings.end_of_step(lambda: done.append(signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.default_int_handler]


def test_what_functions_read_may_change_between_any_two_steps() -> None:
    """Not in a callback: here the data do it."""

    def trained(capture: Any) -> ag.DPResult:
        scale, asked = [1.0], [0]

        class Data:
            def __len__(self) -> int:
                return 8

            def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
                asked[0] += 1
                scale[0] = 1.0 + asked[0] // 30
                return np.full((2, 1), i / 8, np.float32), np.full((1, 1), i / 4, np.float32)

        return ag.dp_train(lambda: ag.ag_linear(2, 1), Data(), lambda out, y: ag.ag_mse_loss(out, y) * scale[0],
                           lambda model, s: model(s[0]), lambda s: s[1], devices=["cpu"], batch=4, n_iter=20, seed=2,
                           stack=1, capture=capture, verbose=False)

    assert_equal(trained("auto"), trained(False))


# ---------------------------------------------------------------------------------------------- SIGTERM


def terminate_at(step: int) -> Callable[[ag.DPStep], None]:
    return at(step, lambda _: os.kill(os.getpid(), signal.SIGTERM))


@pytest.mark.parametrize(("replicas", "at_step"), [(1, 3), (2, 7)])
def test_sigterm_saves_after_the_next_step_and_exits(replicas: int, at_step: int, tmp_path: Path) -> None:
    """Also in the last step."""
    path, steps = tmp_path / "job", list[int]()
    terminate = terminate_at(at_step)
    with pytest.raises(SystemExit) as end:
        train(places("cpu", replicas), lambda step: (steps.append(step.step), terminate(step)), checkpoint=path)
    assert end.value.code == 143 and steps == list(range(8))[: at_step + 2]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # it stays until the process is gone
    assert_equal(train(["cpu"], checkpoint=path, resume=True), train(["cpu"]))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_sigterm_is_the_programs_own_matter_otherwise(tmp_path: Path) -> None:
    """With a handler, or without a checkpoint."""
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        assert_equal(train(["cpu"], terminate_at(3), checkpoint=tmp_path / "job"), train(["cpu"]))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        handlers: list[object] = []
        train(["cpu"], at(3, lambda _: handlers.append(signal.getsignal(signal.SIGTERM))))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert came == [signal.SIGTERM] and handlers == [signal.SIG_DFL]


@pytest.mark.parametrize("asked", range(2))
def test_all_ranks_leave_after_the_same_step(asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask one of them to end, in step 2."""
    path, steps = tmp_path / "job", [list[int]() for _ in range(2)]
    endings: dict[int, Endings] = {}
    monkeypatch.setattr(Endings, "listen", lambda self: endings.setdefault(threading.get_ident(), self))

    def run(comm: Any) -> ag.DPResult:
        def callback(step: ag.DPStep) -> None:
            steps[comm.rank].append(step.step)
            if comm.rank == asked and step.step == 2:
                endings[threading.get_ident()].asked = True

        return train([f"cpu:{comm.rank}"], callback, world=comm, checkpoint=path)

    found = outcomes(2, run)
    assert [getattr(end, "code", end) for end in found] == [143] * 2 and steps == [[0, 1, 2, 3]] * 2
    assert_equal(train(["cpu"], checkpoint=path, resume=True), train(["cpu"]))


def test_a_scheduler_that_fails_comes_after_its_step() -> None:
    """The step is done on all replicas, and counted."""
    class Fails:
        def __init__(self, optimizer: Any) -> None:
            self.calls = 0

        def step(self) -> None:
            self.calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt

        def state_dict(self) -> dict[str, Any]:
            return {"calls": self.calls}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.calls = state["calls"]

    data = [np.full((3, 1), i / 8, np.float32) for i in range(8)]
    options: dict[str, Any] = {"devices": ["cpu"], "seed": 1, "verbose": False}
    model, loss = (lambda: ag.ag_linear(3, 3)), ag.ag_mse_loss
    interrupted = ag.dp_train(model, data, loss, n_iter=6, scheduler=Fails, **options)
    whole = ag.dp_train(model, data, loss, n_iter=3, **options)
    assert len(interrupted.loss_history) == 3
    for name, p in whole.params.items():
        np.testing.assert_array_equal(interrupted.params[name].numpy(), p.numpy())
