"""A backward pass uses the loss scales of the optimizers whose parameters it reaches."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import permutations
from typing import Any
from weakref import ref

import numpy as np
import pytest

import ag
from ag.autograd.half import LossScale, scales_of
from ag.engine.device import backend_of

Array = np.ndarray[Any, Any]
WRAPS: dict[str, Callable[..., Any]] = {"eager": lambda step: step, "captured": ag.ag_capture}
wrapped = pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)


def param(seed: int = 0, shape: tuple[int, int] = (3, 3)) -> ag.Tensor:
    return ag.ag_param(np.random.default_rng(seed).normal(size=shape))


def weakly(W: ag.Tensor, times: float = 1.0) -> ag.Tensor:
    """A loss whose f16 cotangents are `times`: 1 overflows at a scale of 65536, 2**-30 vanishes without one."""
    return ag.ag_sum(ag.ag_cast(ag.ag_mul(W, 1.0), "f32")) * times


def gradients(loss_of: Callable[[], ag.Tensor], *params: ag.Tensor) -> list[Array]:
    with ag.with_grad_tape():
        loss = loss_of()
    grads = ag.backward(loss)
    return [grads[p].numpy() for p in params]


def set_scale(optimizer: ag.Optimizer, scale: float) -> None:
    optimizer.load_state_dict(optimizer.state_dict() | {"loss_scale": np.array([scale, 1 / scale, 0, 0], np.float32)})


# ---------------------------------------------------------------------------------------------- others


def test_a_parameter_of_no_optimizer_is_not_scaled(device: str, f16: None) -> None:
    W, X = param(), param(1)
    optimizer = ag.optimizer_sgd([W])
    assert gradients(lambda: weakly(X), X)[0].tolist() == [[1.0] * 3] * 3
    assert not np.isfinite(gradients(lambda: weakly(W), W)[0]).any()  # as its optimizer will find
    W.requires_grad = False
    assert gradients(lambda: weakly(X * W, 2.0**-30), X)[0].tolist() == [[0.0] * 3] * 3  # and not reached
    W.requires_grad = True
    assert gradients(lambda: weakly(X * W, 2.0**-30), X)[0].tolist() != [[0.0] * 3] * 3
    assert optimizer.loss_scale == 65536.0


@pytest.mark.parametrize("make", [ag.optimizer_sgd, ag.optimizer_adam])
@wrapped
def test_two_optimizers_leave_each_other_alone(device: str, f16: None, wrap: Callable[..., Any],
                                               make: Callable[..., ag.Optimizer]) -> None:
    """Interleaved, one overflows often and one never: each is to the bit where it is alone."""

    def job(seed: int, size: float) -> tuple[Callable[[int], object], Callable[[], list[Array]]]:
        W = param(seed)
        optimizer = make({"W": W}, lr=0.01)

        def step(x: ag.Tensor) -> ag.Tensor:
            with ag.with_grad_tape():
                loss = ag.ag_sum(ag.ag_tanh(W @ x)) * size
            grads = ag.backward(loss)
            optimizer.step(grads)
            optimizer.zero_grad()
            return grads[W]

        run, found = wrap(step), []
        xs = [np.random.default_rng(10 + i).normal(size=(3, 5)) for i in range(6)]
        return (lambda i: found.append(run(ag.ag_tensor(xs[i])).numpy())), (
            lambda: [*found, W.numpy(), *optimizer.state_dict().values()])

    jobs = (1, 8.0), (2, 2.0**-30)
    alone = []
    for arguments in jobs:
        go, end = job(*arguments)
        for i in range(6):
            go(i)
        alone.append(end())
        del go, end
        gc.collect()
    together = [job(*arguments) for arguments in jobs]
    for i in range(6):
        for go, _ in together:
            go(i)
    for want, (_, end) in zip(alone, together, strict=True):
        for a, b in zip(want, end(), strict=True):
            assert a.tobytes() == b.tobytes()
    assert [end()[-1].tolist()[3] > 0 for _, end in together] == [True, False]  # skipped steps


# ---------------------------------------------------------------------------------------------- a pass of several


@wrapped
def test_a_pass_to_several_uses_the_smallest(device: str, f16: None, wrap: Callable[..., Any]) -> None:
    params = [param(i) for i in range(3)]
    optimizers = [ag.optimizer_sgd([p], lr=0.25) for p in params]
    for optimizer, scale in zip(optimizers, (2.0**16, 2.0**14, 2.0**15), strict=True):
        set_scale(optimizer, scale)

    def step(x: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            U, V, W = (p * x for p in params)
            loss = ag.ag_sum(U * 4.0 + V * 0.25 + W * 0.5)
        grads = ag.backward(loss)
        for optimizer in optimizers:
            optimizer.step(grads)
        return loss

    run = wrap(step)
    before = [p.numpy() for p in params]
    run(ag.ag_tensor(np.ones((3, 3))))
    assert [optimizer.skipped for optimizer in optimizers] == [1, 0, 0]  # 4 * 2**14 overflows, and only that
    assert [optimizer.loss_scale for optimizer in optimizers] == [2.0**15, 2.0**14, 2.0**15]
    np.testing.assert_array_equal(params[0].numpy(), before[0])
    for p, was, g in zip(params[1:], before[1:], (0.25, 0.5), strict=True):
        np.testing.assert_array_equal(p.numpy(), (was - 0.25 * g).astype(np.float16))


def test_two_losses_of_shared_parameters_make_progress(device: str, f16: None) -> None:
    """An overflow lowers the scale of the pass sooner or later, whichever optimizer stepped last."""
    W, U = param(), param(1)
    both, one = ag.optimizer_sgd({"W": W, "U": U}, lr=0.0), ag.optimizer_sgd([U], lr=0.0)
    for _ in range(3):
        for optimizer in (both, one):
            grads = gradients(lambda: weakly(W + U, 2.0), W, U)
            optimizer.step(dict(zip(optimizer.params, grads[-len(optimizer.params):], strict=True)))
    assert (both.loss_scale, both.skipped, one.loss_scale, one.skipped) == (2.0**14, 2, 2.0**15, 1)


def test_of_two_optimizers_of_a_parameter_the_last_counts(device: str, f16: None) -> None:
    W = param()
    first = ag.optimizer_sgd([W], lr=0.0)
    set_scale(first, 2.0**-24)
    assert gradients(lambda: weakly(W, 2.0**-30), W)[0].max() == 0.0
    second = ag.optimizer_sgd([W], lr=0.0)
    assert gradients(lambda: weakly(W, 2.0**-30), W)[0].max() == 2.0**-30
    first.step({"param1": np.zeros((3, 3))})
    assert gradients(lambda: weakly(W, 2.0**-30), W)[0].max() == 0.0
    second.step({"param1": np.full((3, 3), np.inf)})
    assert gradients(lambda: weakly(W, 2.0**-30), W)[0].max() == 2.0**-30
    del first
    assert (second.loss_scale, second.skipped) == (2.0**15, 1)
    del second
    assert gradients(lambda: weakly(W, 2.0**-30), W)[0].max() == 0.0


@pytest.mark.parametrize("order", [*permutations(range(3))])
@pytest.mark.parametrize("stepped", [(), (0,), (1, 0), (2, 0, 1)])
def test_a_resumed_job_knows_who_adopted_last(device: str, f16: None, stepped: tuple[int, ...],
                                              order: tuple[int, ...]) -> None:
    """In whatever order its states are loaded; also where the ones that adopted later have gone."""
    def made() -> tuple[ag.Tensor, list[ag.Optimizer | None]]:
        W = param()
        return W, [ag.optimizer_sgd([W], lr=0.0) for _ in range(3)]

    def told(W: ag.Tensor, optimizers: list[ag.Optimizer | None]) -> list[bytes]:
        """Return what each makes of 5 * 2^-24: 5, 4 or 0 times 2^-24; the one that counts goes first."""
        found = []
        for _ in range(3):
            found.append(gradients(lambda: weakly(W, 5 * 2.0**-24), W)[0].tobytes())
            optimizers[last_of(optimizers)] = None
        return found

    def last_of(optimizers: list[ag.Optimizer | None]) -> int:
        numbers = {id(x._scale): i for i, x in enumerate(optimizers) if x is not None}
        return next(numbers[id(scale)] for scale in scales_of([W.id]))

    W, optimizers = made()
    for i in range(3):
        set_scale(optimizers[i], 2.0 ** (-2 * i))
    for i in stepped:
        optimizers[i].step({"param1": np.zeros((3, 3))})
    states = [x.state_dict() for x in optimizers]
    want = told(W, optimizers)
    assert len({*want}) == 3
    W, optimizers = made()
    for i in order:
        optimizers[i].load_state_dict(states[i])
    assert [x.state_dict().keys() for x in optimizers] == [x.keys() for x in states]
    assert told(W, optimizers) == want


def test_a_captured_step_keeps_no_optimizer(device: str, f16: None) -> None:
    """Nor its scale: what was captured knows it by a global, by an attribute, or by a function's own variable."""
    class Trainer:
        def __init__(self, optimizer: ag.Optimizer) -> None:
            self.optimizer = optimizer

        def step(self, x: ag.Tensor) -> ag.Tensor:
            with ag.with_grad_tape():
                loss = weakly(W * x, 0.5)
            self.optimizer.step(ag.backward(loss))
            return loss

    W = param()
    scope: dict[str, Any] = {"W": W, "ag": ag, "weakly": weakly, "optimizer": ag.optimizer_sgd([W], lr=0.1)}
    exec("def step(x):\n    with ag.with_grad_tape():\n        loss = weakly(W * x, 0.5)\n"
         "    optimizer.step(ag.backward(loss))\n    return loss", scope)
    trainer = Trainer(ag.optimizer_sgd([W], lr=0.1))
    steps = [ag.ag_capture(scope["step"]), ag.ag_capture(trainer.step), ag.ag_capture(lambda x: trainer.step(x))]
    for step in steps:
        for k in range(4):
            step(ag.ag_tensor(np.full((3, 3), 0.25 * k)))
    gone = [ref(scope.pop("optimizer")), ref(trainer.optimizer)]
    del trainer.optimizer
    gc.collect()
    assert [x() for x in gone] == [None, None]
    assert scales_of([W.id]) == []
    trainer.optimizer = scope["optimizer"] = ag.optimizer_sgd([W], lr=0.5)
    before = W.numpy()
    for step in steps:
        step(ag.ag_tensor(np.ones((3, 3))))
    assert trainer.optimizer.t == 3
    assert W.numpy().tobytes() == (before - np.float32(0.75)).astype(np.float16).astype(before.dtype).tobytes()


@wrapped
def test_a_step_adopts_again_what_a_state_took(device: str, f16: None, wrap: Callable[..., Any]) -> None:
    """Loading a state of the other optimizer moves no parameter, but says that it was the last to adopt them."""
    W = param()
    one, two = (ag.optimizer_sgd([W], lr=0.0) for _ in range(2))
    set_scale(two, 2.0**-24)
    run = wrap(lambda g: one.step({"param1": g}) or g * 1.0)
    for k in range(5):
        two.load_state_dict(two.state_dict() | {"claimed_later": np.zeros(1)})
        assert gradients(lambda: weakly(W, 2.0**-30), W)[0].max() == 0.0
        run(ag.ag_tensor(np.full((3, 3), float(k)), dtype="f32"))
        assert gradients(lambda: weakly(W, 2.0**-30), W)[0].max() == 2.0**-30


@pytest.mark.parametrize("returned", ["3", "[x]", "float(loss)", "kept.append(x)"])
def test_a_refused_step_keeps_nothing_alive(device: str, f16: None, returned: str) -> None:
    W = param()
    scope: dict[str, Any] = {"W": W, "ag": ag, "weakly": weakly, "optimizer": ag.optimizer_sgd([W], lr=0.1), "kept": []}
    exec("def step(x):\n    with ag.with_grad_tape():\n        loss = weakly(W * x, 0.5)\n"
         f"    optimizer.step(ag.backward(loss))\n    return {returned}", scope)
    step, gone = ag.ag_capture(scope["step"]), ref(scope["optimizer"])
    gc.disable()
    try:
        with pytest.raises(ag.CaptureError):
            step(np.ones((3, 3), np.float32))
        del scope["optimizer"]
        assert gone() is None
    finally:
        gc.enable()


def test_an_optimizer_in_a_circle_is_nobodys_business(device: str, f16: None) -> None:
    """One that waits for the garbage collector changes nothing for a parameter that another one has since."""
    W, X = param(), param(1)
    old = ag.optimizer_sgd({"W": W, "X": X}, lr=0.0)
    set_scale(old, 2.0**-24)
    old._circle = [old]  # type: ignore[attr-defined]
    gc.disable()
    try:
        del old
        optimizer = ag.optimizer_sgd({"W": W, "X": X}, lr=0.0)
        assert gradients(lambda: weakly(W * X, 2.0**-30), W)[0].all()
        assert optimizer.loss_scale == 2.0**16
    finally:
        gc.enable()


# ---------------------------------------------------------------------------------------------- what is reached


def test_parameters_behind_a_checkpoint_are_reached(device: str, f16: None) -> None:
    """Also those that only the checkpointed function knows, in a checkpoint of its own or before it."""
    V, W, X = param(), param(1), param(2)

    def inner(x: ag.Tensor) -> ag.Tensor:
        return ag.ag_checkpoint(lambda y: ag.ag_tanh(y) @ W.astype("f32").astype("f16"), x)

    def loss_of(wrap: Callable[..., ag.Tensor]) -> ag.Tensor:
        return weakly(wrap(inner, V * X), 2.0**-20)

    def plain(fn: Callable[..., ag.Tensor], x: ag.Tensor) -> ag.Tensor:
        return fn(x)

    unscaled = gradients(lambda: loss_of(plain), V, W, X)
    for p in (V, W, X):
        optimizer = ag.optimizer_sgd([p])
        want = gradients(lambda: loss_of(plain), V, W, X)
        assert want[0].tobytes() != unscaled[0].tobytes()
        for found in (gradients(lambda: loss_of(ag.ag_checkpoint), V, W, X),
                      gradients(lambda: ag.ag_checkpoint(lambda: loss_of(plain)), V, W, X)):
            assert [g.tobytes() for g in found] == [g.tobytes() for g in want]
        del optimizer


def test_what_a_checkpoint_uses_without_the_tape_is_not_reached(device: str, f16: None) -> None:
    V, T, one = param(), param(1), ag.ag_tensor(np.ones((3, 3)))
    teacher = ag.optimizer_sgd([T])

    def fn(x: ag.Tensor) -> ag.Tensor:
        with ag.no_grad():
            target = ag.ag_cast(T, "f32").astype("f16") * T
        return V * x * target * T.detach()

    want = gradients(lambda: ag.ag_sum(fn(one)), V)[0]
    found = gradients(lambda: ag.ag_sum(ag.ag_checkpoint(fn, one)), V)[0]
    assert np.isfinite(want).all() and found.tobytes() == want.tobytes()
    assert teacher.loss_scale == 2.0**16


def test_another_device_has_the_scale_of_the_parameters_reached(f16: None) -> None:
    V, W = ag.ag_param(np.ones((2, 2)), device="cpu"), ag.ag_param(np.ones((2, 2)), device="cpu:1")

    def loss_of() -> ag.Tensor:
        return weakly(ag.ag_to_device(ag.ag_mul(V, 1.0), "cpu:1"), 2.0**-30)

    beside = ag.optimizer_sgd([W])
    assert gradients(loss_of, V)[0].max() == 0.0  # W is not reached, though its optimizer scales on that device
    both = ag.optimizer_sgd({"V": V, "W": W})
    assert gradients(loss_of, V)[0].max() == 2.0**-30
    assert beside.loss_scale == both.loss_scale == 2.0**16


def test_gradients_of_before_and_of_several_passes_add_up(device: str, f16: None) -> None:
    W, X = param(), param(1)
    other = ag.optimizer_sgd([X], lr=1.0)
    set_scale(other, 2.0**4)
    gradients(lambda: weakly(W), W)  # of before the optimizer
    optimizer = ag.optimizer_sgd([W], lr=0.5)
    for scale, times in ((2.0**15, 1.0), (2.0**10, 2.0)):
        set_scale(optimizer, scale)
        gradients(lambda: weakly(W, times), W)  # noqa: B023
    gradients(lambda: weakly(W * X, 0.25), X)
    assert W.grad is not None
    before = W.numpy()
    np.testing.assert_allclose(W.grad.numpy(), 4.0 + 0.25 * X.numpy(), rtol=1e-3)
    norm = ag.clip_grad_norm([W], None, 1.0)
    np.testing.assert_allclose(float(norm), np.linalg.norm(4.0 + 0.25 * X.numpy()), rtol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(W.grad.numpy()), 1.0, rtol=1e-3)
    optimizer.step()
    np.testing.assert_allclose(W.numpy(), before - 0.5 * W.grad.numpy(), rtol=2e-3, atol=1e-3)
    assert (optimizer.loss_scale, other.loss_scale, optimizer.skipped) == (2.0**10, 2.0**4, 0)


# ---------------------------------------------------------------------------------------------- captured steps


def test_a_replay_scales_as_an_eager_pass_would(device: str, f16: None) -> None:
    """Optimizers, and scales of memory that they do not move, come and go between the replays of a pass."""
    W, X = param(), param(1)

    def step(x: ag.Tensor) -> None:
        with ag.with_grad_tape():
            loss = weakly(W * x * X, 2.0**-30)
        ag.backward(loss)

    captured, x, held = ag.ag_capture(step), ag.ag_tensor(np.ones((3, 3))), []

    def same() -> float:
        found = []
        for run in (captured, captured, captured, step):
            run(x)
            assert W.grad is not None
            found.append(W.grad.numpy())
            W.grad = X.grad = None
        assert all(g.tobytes() == found[0].tobytes() for g in found)
        return float(np.abs(found[0]).max())

    assert same() == 0.0
    for things in ([W], [X], [param(2)], [W, X]):
        for make in (lambda p: LossScale(p, [backend_of(device)]), lambda p: ag.optimizer_sgd(p)):
            held.append(make(things))
            assert (same() > 0.0) is any(p is W or p is X for p in things)
            held.clear()
            assert same() == 0.0


def test_a_replayed_step_of_float32_parameters_waits_as_an_eager_one(device: str, f16: None) -> None:
    """An optimizer without f16 parameters, whose gradients come to pass through somebody's f16 later."""
    ends = []
    for wrap in WRAPS.values():
        U, W = ag.ag_param([[1.0]], dtype="f32"), ag.ag_param([[1.0]])
        wide = ag.optimizer_sgd([U], lr=0.25)

        def step(x: ag.Tensor) -> None:
            with ag.with_grad_tape():
                loss = ag.ag_sum(U * x)  # noqa: B023 - used in this turn of the loop
            wide.step(ag.backward(loss))  # noqa: B023

        run, values = wrap(step), []
        for x in (1.0, 1.0, 1.0, np.inf):
            if x == np.inf:
                optimizer = ag.optimizer_sgd([W])
                gradients(lambda: ag.ag_sum(ag.ag_cast(U, "f16") * W), U)  # noqa: B023
            run(ag.ag_tensor([[x]], dtype="f32"))
            values.append(U.item())
        del optimizer
        run(ag.ag_tensor([[np.inf]], dtype="f32"))
        ends.append([*values, U.item()])
    assert ends == [[0.75, 0.5, 0.25, 0.25, -np.inf]] * 2
