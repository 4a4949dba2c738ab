"""Do what users do around a step: functions of a world (world.py) that return what the user would read."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from helpers.interrupts import at_place
from machine.steps import EMPTIED, Spec
from machine.world import Call, Step, World, flat

import ag

ACTIONS: dict[str, Callable[..., Any]] = {}
Action = Callable[..., Any]


def action(fn: Action) -> Action:
    ACTIONS[fn.__name__] = fn
    return fn


def perform(world: World, name: str, arguments: dict[str, Any], look: bool) -> Call:
    """Run an action, and look at the world afterwards if asked."""
    result, error, kinds = None, "", ()
    try:
        result = flat(ACTIONS[name](world, **arguments))
    except (Exception, KeyboardInterrupt) as problem:  # noqa: BLE001  (it is compared with the other world's)
        error, kinds = f"{type(problem).__name__}: {problem}", tuple(c.__name__ for c in type(problem).__mro__)
        problem.__traceback__ = None
    seen = world.look() if look else None
    stale = world.refusal(arguments["i"]) if error and "i" in arguments and name != "scheduler_step" else None
    return Call(result, error, kinds, seen, world.python() if look else None, world.has, stale)


# ---------------------------------------------------------------------------------------------- worlds


@action
def restart(world: World, kind: str, dtype: str, seed: int, optimizer: str) -> None:
    world.restart(kind, dtype, seed, optimizer)


@action
def nothing(world: World) -> None:
    """Only look."""


@action
def adopt(world: World, seen: Any, python: Any) -> None:
    world.adopt(seen, python)


@action
def forget_arguments(world: World) -> None:
    """Those that a step has kept that then failed: copies, where it was captured (docs/capture.md)."""
    box = world.names["box"]
    kept = [x for x in box if not isinstance(x, np.ndarray)]
    box.clear()
    box.extend(kept)


@action
def forget_all(world: World) -> None:
    world.forget_all()


# ---------------------------------------------------------------------------------------------- steps


@action
def new_step(world: World, spec: Spec) -> None:
    world.add_step(spec)
    world.steps = world.steps[-3:]


@action
def drop_step(world: World, i: int) -> None:
    world.steps.pop(i)


@action
def close_step(world: World, i: int) -> None:
    if world.captured:
        world.steps[i].run.close()


@action
def capture_again(world: World, i: int) -> None:
    """A new program for a step that was refused."""
    step = world.steps[i]
    step.run, step.refusals = world.wrapped(step.plain, step.spec.recompute), 0


@action
def step(
    world: World, i: int, batch: int, form: str = "arrays", eager: bool = False, keep: bool = False, under: str = ""
) -> Any:
    """Run a step; `form` is how its arguments come, `under` whether a tape is on around it, or off."""
    chosen = world.steps[i]
    x, y = _arguments(world, batch, form)
    with {"tape": ag.with_grad_tape(), "no_grad": ag.no_grad()}.get(under, nullcontext()):
        result = around(world, chosen, x, y, eager)
    if keep:
        world.keep("result", result)
    return result


def _arguments(world: World, batch: int, form: str) -> tuple[Any, Any]:
    x, y = world.batches[batch]
    if form == "tensors" and x.dtype.kind == "f":
        return ag.ag_tensor(x), (ag.ag_tensor(y) if y.dtype.kind == "f" else y)
    if form == "wide":
        return x.astype({"f": np.float64, "i": np.int32}[x.dtype.kind]), y
    if form == "order":
        return np.asfortranarray(x), y
    if form == "view":
        return np.repeat(x, 2, axis=-1)[..., ::2], y
    if form == "same" and x.shape == y.shape:
        return x, x
    if form == "read-only":
        x = x.view()
        x.flags.writeable = False
    return x, y


def around(world: World, step: Step, x: Any, y: Any, eager: bool) -> Any:
    """Call a step, and do what the loop of a script does before and after the call."""
    spec, opt = step.spec, world.names[step.spec.opt]
    if spec.hostile in EMPTIED:
        world.names["box"].clear()
    if spec.zero == "outside":
        opt.zero_grad()
    result = (step.plain if eager else step.run)(x, y)
    if spec.backward == "outside":
        ag.backward(_loss_in(result))
    if spec.clip == "outside":
        clipped(world)
    if spec.optimizer == "outside":
        opt.step()
    return result


def _loss_in(result: Any) -> ag.Tensor:
    while not isinstance(result, ag.Tensor):
        result = next(iter(result.values() if isinstance(result, dict) else result))
    return result


def clipped(world: World, limit: float = 0.25) -> None:
    """Clip, and compare with numpy's way."""
    params = {n: p for n, p in world.model.parameters().items() if p.grad is not None}
    before = {n: p.grad.numpy().astype(np.float64) for n, p in params.items()}
    norm = np.sqrt(sum((g**2).sum() for g in before.values()))
    given = ag.clip_grad_norm(world.model, None, limit)
    assert np.isclose(given, norm, rtol=1e-4, equal_nan=True), f"clip_grad_norm returned {given} and the norm is {norm}"
    for n, p in params.items() if np.isfinite(norm) else ():
        wanted = before[n] * min(1.0, limit / norm) if norm else before[n]
        assert np.allclose(p.grad.numpy(), wanted, rtol=1e-3, atol=1e-6), f"clip_grad_norm scaled {n} otherwise"


# ---------------------------------------------------------------------------------------------- around steps


PACKAGE = str(Path(ag.__file__).parent)


def _in_package(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE) and not _finalizing(frame)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _finalizing(frame: FrameType | None) -> bool:
    """Return whether a destructor is running, in which Python only prints what is raised."""
    while frame is not None:
        if frame.f_code.co_name in ("__del__", "_run_finalizers") or "weakref" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


@action
def interrupted_step(world: World, i: int, batch: int, at: int) -> Any:
    """Ctrl-C at the `at`-th place where Python would notice it in a step, in the subject only."""
    if not world.captured:
        return step(world, i, batch)
    with at_place(at, _interrupt, _in_package):
        return step(world, i, batch)


@action
def in_thread(world: World, i: int, batch: int, seed: int | None = None) -> Any:
    """The step in a thread of its own, which may seed a generator of its own."""

    def run() -> Any:
        if seed is not None:
            ag.ag_seed(seed)
        return step(world, i, batch)

    return _threads(run)[0]


@action
def two_threads(world: World, i: int, batch: int) -> Any:
    """The step beside another one, that shares nothing with it."""
    weight = ag.ag_param([[0.5, 0.25]])
    other = world.wrapped(lambda x: ag.ag_mean((weight * x) ** 2))
    x = ag.ag_tensor([[1.0, 2.0]])
    first, second = _threads(lambda: step(world, i, batch), lambda: [other(x).item() for _ in range(3)])
    return first, second


def _threads(*calls: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(calls)

    def run(k: int) -> None:
        try:
            results[k] = (True, calls[k]())
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  (raised below)
            results[k] = (False, error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for fine, result in results:
        if not fine:
            raise result
    return [result for _, result in results]


@action
def collect(world: World) -> None:
    gc.collect()


@action
def synchronize(world: World) -> None:
    ag.ag_synchronize()
