"""Submissions cost at most what the budget allows, and their parts are the launch."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from curves.models import numbers, training
from curves.workloads import BATCH
from helpers.errors import expect_error

import ag
from ag.capture.call import RecordedCall
from ag.engine.backends.shader.plans import Plan, planned, seconds_of
from ag.engine.backends.shader.tiles import Tiles
from ag.engine.backends.vulkan.stream import Budget, Command, Copy, groups_of
from ag.engine.device import backend_of
from ag.engine.kernels.attention import attention, attention_grad
from ag.engine.kernels.indexing import scatter_add
from ag.engine.kernels.matmul import matmul
from ag.engine.kernels.optimizer import adam_update
from ag.engine.primitive import PRIMITIVES, Params, Primitive
from ag.engine.shape import Shape, Window, places

CARD = Tiles(132, (), "L")
MOST = Budget("integrated").seconds
NOTHING: Any = None


def command(cost: float, grid: tuple[int, int, int], whole: bool = False) -> Command:
    return Command("k", NOTHING, b"", grid, [], [], cost, whole)


def of_plan(plan: Plan, shapes: tuple[Shape, ...]) -> Command:
    return command(seconds_of(plan.work, 4 * sum(int(np.prod(s)) for s in shapes)), plan.grid)


def numbers_of(part: Command) -> Iterator[int]:
    (x_0, y_0), (wide, high, deep) = part.first, part.grid
    assert deep == 1 or part.first == (0, 0)
    for y in range(high * deep):
        yield from range((y_0 + y) * wide + x_0, (y_0 + y) * wide + x_0 + wide)


@pytest.mark.parametrize(("grid", "most"), [
    ((7, 1, 1), 0.6), ((7, 1, 1), 1e-9), ((3, 5, 2), 0.2), ((65535, 1, 1), 1 / 31), ((65535, 3, 1), 0.2),
    ((40, 40, 100), 1 / 31), ((1000, 1, 70), 1e-4), ((1000, 1, 70), 1e-9)])
def test_the_parts_of_a_launch_are_the_launch(grid: tuple[int, int, int], most: float) -> None:
    whole, groups = command(1.0, grid), int(np.prod(grid))
    parts = whole.parts(most)
    found = [number for part in parts for number in numbers_of(part)]
    assert found == list(range(len(found))) and groups <= len(found) < groups + 65535
    least = 1 / groups if groups <= 65535 else -(-groups // 65535) / groups  # a workgroup, or a row of them
    assert all(part.cost <= max(most, least) * 1.000001 for part in parts)
    assert all(n <= 65535 for part in parts for n in part.grid)
    assert 1 - 1e-9 < sum(part.cost for part in parts) < len(found) / groups + 1e-9
    assert len(parts) <= 4 / most + 1


def test_what_cannot_be_cut_is_not() -> None:
    for launch in (command(5.0, (9, 9, 9), whole=True), command(5.0, (1, 1, 1)), command(0.1, (9, 9, 9))):
        assert launch.parts(0.2) == [launch]


def test_copies_are_cut_at_pages() -> None:
    copy = Copy(NOTHING, NOTHING, (512, 1024, 1_000_003), [], [])
    parts = copy.parts(copy.cost / 7)
    assert len(parts) == 8 and all(part.cost <= copy.cost / 7 for part in parts)
    source, target = 512, 1024
    for part in parts:
        assert part.region[:2] == (source, target)
        source, target = source + part.region[2], target + part.region[2]
    assert source == 512 + 1_000_003


Launches = list[tuple[Primitive, tuple[Shape, ...], Params]]


def _adam(n: int) -> tuple[tuple[Shape, ...], Params]:
    names = dict.fromkeys(("p", "m", "v", "g", "stored"), (n,))
    shapes = tuple(names.get(operand, (8,)) for operand in adam_update.operands)
    return shapes, dict.fromkeys(adam_update.params, 0)


def _plans(launches: Launches) -> Iterator[tuple[Plan, tuple[Shape, ...]]]:
    for primitive, shapes, params in launches:
        yield planned(primitive, shapes, tuple(params.items()), CARD, True), shapes


def recorded(name: str) -> Launches:
    backend, seen = backend_of("cpu"), []
    weights, batches = numbers(name, BATCH[name])
    step = ag.ag_capture(training(name, weights))
    with pytest.MonkeyPatch.context() as patch:
        make = backend.program
        patch.setattr(backend, "program", lambda launches: (seen.extend(launches), make(launches))[1])
        step(*batches[0])
    return [(x.primitive, tuple(b.shape for b in x.buffers), x.params) for x in seen]


def gpt2() -> Launches:
    """The large launches of a GPT-2 with 124 M parameters, on 8 sequences of 1024 tokens."""
    d, heads, layers, vocabulary, times, batch = 768, 12, 12, 50257, 1024, 8
    tokens, found = times * batch, []

    def product(out: int, inner: int) -> None:
        for shape, a, b, ta, tb in (((out, tokens), (out, inner), (inner, tokens), False, False),
                                    ((inner, tokens), (out, inner), (out, tokens), True, False),
                                    ((out, inner), (out, tokens), (inner, tokens), False, True)):
            found.append((matmul, (shape, a, b), {"ta": ta, "tb": tb}))

    for _ in range(layers):
        for out, inner in ((3 * d, d), (d, d), (4 * d, d), (d, 4 * d)):
            product(out, inner)
        x, lse = (d, times, batch), (heads, times, batch)
        params = {"heads": heads, "factor": 0.125, "causal": True, "rate": 0.0}
        found.append((attention, (x, lse, x, x, x, (4,)), params))
        found.append((attention_grad, (x, x, x, x, x, x, x, lse, lse, (4,)), params))
    product(vocabulary, d)
    found.append((scatter_add, ((d, vocabulary, 1), (d, tokens, 1), (tokens,)),
                  {"length": vocabulary, "first": 0, "last": tokens, "wraps": False}))
    return found


@pytest.mark.parametrize(("name", "most"), [("gpt", MOST / 5), ("resnet8", MOST), ("gpt2", MOST), ("gpt2", MOST / 5)])
def test_no_submission_of_a_step_costs_more(name: str, most: float) -> None:
    commands = [of_plan(*plan) for plan in _plans(gpt2() if name == "gpt2" else recorded(name)) if plan[0].grid[0]]
    groups = groups_of(commands, most, 512)
    costs = [sum(part.cost for part in group) for group in groups]
    assert max(costs) <= most * 1.000001  # a workgroup of the longest product costs a sixth of MOST
    assert sum(costs) == pytest.approx(sum(c.cost for c in commands), rel=0.02)
    assert len(groups) <= 3 * sum(costs) / most + 2  # and none is needlessly short
    if name == "gpt2":
        assert sum(costs) > 50 * most / (MOST / most)  # a step takes such a device seconds


def test_every_product_says_what_it_costs() -> None:
    shapes = (512, 512), (512, 512), (512, 512)
    assert next(_plans([(matmul, shapes, {"ta": False, "tb": False})]))[0].work == 512 ** 3
    plans = {x[0].kernel: x[0] for x in _plans([*gpt2(), *recorded("resnet8")])}
    assert {"matmul", "attention", "attention_grad", "conv2d_weight_grad"} <= {k for k, p in plans.items() if p.work}
    assert "add" in PRIMITIVES and next(_plans([(PRIMITIVES["add"], ((4, 4),) * 3, {})]))[0].work == 0


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (31, 1), (64, 64)])
def test_windows_cost_what_they_look_at(mode: str, size: int, stride: int) -> None:
    """All their taps from each place; and from each pixel, the rows of windows that see it."""
    window, image, kernel = Window((size, size), (stride, stride)), (64, 64), f"{mode}_pool2d"
    below, above = (8, *image, 32), (8, *places(image, window), 32)
    outputs = (above,) if mode == "avg" else (above, above)
    (forward, shapes), (back, _) = _plans([
        (PRIMITIVES[kernel], (*outputs, below), {"window": window}),
        (PRIMITIVES[f"{kernel}_grad"], (below, *outputs), {"window": window, "image": image})])
    least, most = (1, 6) if mode == "avg" else (4, 8)
    assert forward.work == least * int(np.prod(above)) * size * size
    assert back.work == most * int(np.prod(below)) * -(-size // stride) * size
    if (size, stride) == (31, 1):  # by its operands alone, a launch that is cut into parts would be of a millisecond
        assert of_plan(forward, shapes).cost > 3 * seconds_of(0, 4 * sum(int(np.prod(s)) for s in shapes))
        assert len(of_plan(back, shapes).parts(MOST)) > 1


def test_a_slow_device_gets_less_and_a_busy_one_not_nothing() -> None:
    budget = Budget("integrated")
    first = budget.seconds
    budget.note(first / 10, 5.0)  # too small to tell
    budget.note(first, 0.15)
    assert budget.seconds == first
    budget.note(first, 0.5)
    assert budget.seconds == first / 2
    for _ in range(50):
        budget.note(first, 9.0)
    assert budget.seconds == first / 32
    assert Budget("discrete").seconds == 8 * first


def test_a_processor_is_not_measured() -> None:
    budget = Budget("cpu")
    budget.note(budget.seconds, 9.0)
    assert budget.seconds == Budget("cpu").seconds


def test_the_environment_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AG_SUBMIT_MS", "20")
    assert Budget("discrete").seconds == Budget("cpu").seconds == pytest.approx(0.02)
    for text in ("much", "-1", "nan"):
        monkeypatch.setenv("AG_SUBMIT_MS", text)
        with expect_error("AG_SUBMIT_MS that is no positive number", ag.DeviceError, repr(text), "milliseconds"):
            Budget("cpu")


def test_a_program_in_parts_has_the_bits_of_the_whole(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder: Any = getattr(backend_of(lavapipe), "recorder", None)
    with ag.ag_device(lavapipe):
        captured = ag.ag_capture(lambda x: (x + 1.0).T)
        x = ag.ag_tensor(np.random.default_rng(0).standard_normal((500, 300)))
        captured(x)
        whole = captured(x).numpy()
        (built,) = captured.program._built.values()
        monkeypatch.setattr(recorder.budget, "seconds", sum(r.cost for r in built[0][1]) / 20)
        before = recorder.submits
        assert captured(x).numpy().tobytes() == whole.tobytes()
        assert recorder.submits - before >= 15


def test_a_program_has_two_sequences_only_if_steps_overlap(lavapipe: str) -> None:
    with ag.ag_device(lavapipe):
        captured = ag.ag_capture(lambda x: (x + 1.0).T)
        x = ag.ag_tensor([[1.0, 2.0]])
        captured(x).numpy()

        def built() -> int:
            return sum(map(len, captured.program._built.values()))

        for _ in range(3):
            captured(x).numpy()  # waits
        assert built() == 1
        for _ in range(10):
            captured(x)
        assert built() == 2


def test_every_step_on_the_same_arguments_is_one_submission(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record, compared, submits = RecordedCall.record, list[int](), list[int]()

    def recorded(call: RecordedCall) -> Any:
        compared.append(1 + len(submits))
        return record(call)

    monkeypatch.setattr(RecordedCall, "record", recorded)
    with ag.ag_device(lavapipe):
        x, W, labels = ag.ag_tensor(np.ones((4, 4))), ag.ag_param(np.zeros((4, 4))), np.ones((4, 4), np.float32)
        optimizer = ag.optimizer_sgd({"W": W})
        captured = ag.ag_capture(lambda x, labels: optimizer.step({"W": x + ag.ag_tensor(labels)}))
        recorder: Any = getattr(backend_of(lavapipe), "recorder", None)
        for _ in range(40):
            before = recorder.submits
            captured(x, labels)
            submits.append(recorder.submits - before)
    assert submits[2:] == [1] * 38 and compared == [1, 2, 8, 32]


@pytest.mark.parametrize(("share", "submissions"), [(2.0, 1), (0.75, 2)])
def test_a_replay_is_submitted_with_its_uploads_as_far_as_the_budget_allows(
        lavapipe: str, monkeypatch: pytest.MonkeyPatch, share: float, submissions: int) -> None:
    with ag.ag_device(lavapipe):
        captured = ag.ag_capture(lambda x: ag.ag_tensor(x) + 1.0)
        x = np.ones(1000, np.float32)
        for k in range(3):  # recorded, compared with other values, played
            captured(x + k).numpy()
        recorder: Any = getattr(backend_of(lavapipe), "recorder", None)
        captured(x)
        upload, replay, *_ = recorder._batches  # and the copy of its result
        assert upload.started is replay.started and len(replay.started) == 1
        recorder.wait()
        cost = upload.recorded.cost + replay.recorded.cost
        monkeypatch.setattr(recorder, "budget", SimpleNamespace(seconds=share * cost, long=9.0))
        before = recorder.submits
        found = captured(2 * x)
        assert recorder.submits - before == submissions
        monkeypatch.undo()
        assert (found.numpy() == 3).all()


def test_a_device_of_vulkan_1_0_makes_launches_whole(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = backend_of(lavapipe)
    x = ag.ag_tensor(np.ones((64, 64)), lavapipe)
    operands = x.buffer, x.buffer, x.buffer
    assert not backend.command(matmul, operands, {"ta": False, "tb": False}).whole
    monkeypatch.setattr(backend._kernels, "_makes_parts", False)
    assert backend.command(matmul, operands, {"ta": False, "tb": False}).whole


@pytest.mark.parametrize(("kind", "after"), [("discrete", [8, 24, 56, 120, 248, 504, 760]), ("cpu", [256, 512, 768])])
def test_a_card_is_started_early(vulkan: str, monkeypatch: pytest.MonkeyPatch, kind: str, after: list[int]) -> None:
    recorder: Any = getattr(backend_of(vulkan), "recorder", None)
    monkeypatch.setattr(recorder, "budget", Budget(kind))
    x = ag.ag_tensor(np.ones(4), device=vulkan)
    for _ in range(2):
        x.numpy()
        y, started = x, []
        for k in range(1, 800):
            before = recorder.submits
            y = y + x
            if recorder.submits != before:
                started.append(k)
        assert started == after
        assert y.numpy()[0, 0] == 800
    monkeypatch.setattr(recorder, "_most", 256)
