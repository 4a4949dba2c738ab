"""What users do around a step: the actions that both worlds carry out (world.py).

An action is a function of a world and plain arguments.  It returns what the user would read; the two worlds' results are
compared.  `perform` runs one by name.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from machine.steps import Spec
from machine.world import MOMENTS, Call, Step, World, flat

import ag

__all__ = ["ACTIONS", "perform"]

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
def forget_all(world: World) -> None:
    """Keep nothing."""
    world.kept = []


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
def step(world: World, i: int, batch: int, form: str = "arrays", eager: bool = False, keep: bool = False) -> Any:
    """Run a step; `form` is how its arguments come."""
    chosen = world.steps[i]
    x, y = _arguments(world, batch, form)
    result = _around(world, chosen, x, y, eager)
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


def _around(world: World, step: Step, x: Any, y: Any, eager: bool) -> Any:
    """What the loop of a script does before and after the call."""
    spec, opt = step.spec, world.names[step.spec.opt]
    if spec.zero == "outside":
        opt.zero_grad()
    result = (step.plain if eager else step.run)(x, y)
    if spec.backward == "outside":
        ag.backward(_loss_in(result))
    if spec.clip == "outside":
        _clipped(world)
    if spec.optimizer == "outside":
        opt.step()
    return result


def _loss_in(result: Any) -> ag.Tensor:
    while not isinstance(result, ag.Tensor):
        result = next(iter(result.values() if isinstance(result, dict) else result))
    return result


def _clipped(world: World, limit: float = 0.25) -> None:
    """Clip, and compare with numpy's way."""
    params = {n: p for n, p in world.model.parameters().items() if p.grad is not None}
    before = {n: p.grad.numpy().astype(np.float64) for n, p in params.items()}
    norm = np.sqrt(sum((g**2).sum() for g in before.values()))
    given = ag.clip_grad_norm(world.model, None, limit)
    assert np.isclose(given, norm, rtol=1e-4), f"clip_grad_norm returned {given} and the norm is {norm}"
    for n, p in params.items() if np.isfinite(norm) else ():
        wanted = before[n] * min(1.0, limit / norm) if norm else before[n]
        assert np.allclose(p.grad.numpy(), wanted, rtol=1e-3, atol=1e-6), f"clip_grad_norm scaled {n} otherwise"


# ---------------------------------------------------------------------------------------------- around steps


@contextmanager
def interrupted(at: int) -> Any:
    """Raise KeyboardInterrupt at the `at`-th line of `ag` that runs in the block."""
    left = at
    package = str(Path(ag.__file__).parent)

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(package) or _finalizing(frame):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(previous)


def _finalizing(frame: Any) -> bool:
    """Whether a destructor is running, in which Python only prints what is raised."""
    while frame is not None:
        if frame.f_code.co_name in ("__del__", "_run_finalizers") or "weakref" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


@action
def interrupted_step(world: World, i: int, batch: int, at: int) -> Any:
    """Ctrl-C somewhere in a step, in the subject only."""
    if not world.captured:
        return step(world, i, batch)
    with interrupted(at):
        return step(world, i, batch)


@action
def in_thread(world: World, i: int, batch: int) -> Any:
    """The step in a thread of its own."""
    return _threads(lambda: step(world, i, batch))[0]


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


# ---------------------------------------------------------------------------------------------- settings


@action
def set_rate(world: World, which: str, name: str, value: float) -> None:
    """A number of an optimizer; those that it does not have are left alone."""
    opt = world.names[which]
    if hasattr(opt, name):
        setattr(opt, name, value)


@action
def schedule(world: World, which: str, kind: str) -> None:
    made = {"step": lambda o: ag.lr_scheduler_step(o, 2, 0.5), "cosine": lambda o: ag.lr_scheduler_cosine(o, 5),
            "warmup": lambda o: ag.lr_scheduler_warmup(o, 3)}[kind](world.names[which])
    world.schedulers = [*world.schedulers[-1:], made]


@action
def scheduler_step(world: World, i: int) -> Any:
    return world.schedulers[i].step()


@action
def mode(world: World, train: bool) -> None:
    (ag.ag_train if train else ag.ag_eval)(world.model)


@action
def set_layer(world: World, name: str, value: float) -> int:
    """A setting of all layers that have it, also of objects inside."""
    count = 0
    for layer in dict(world.model.modules()).values():
        for owner in (layer, getattr(layer, "options", None)):
            if owner is not None and hasattr(owner, name):
                setattr(owner, name, value)
                count += 1
    return count


@action
def set_part(world: World, name: str, value: float) -> None:
    """An item in a dict or list of the model."""
    found = getattr(world.model, name, None)
    if isinstance(found, dict):
        found["a"] = value
    elif isinstance(found, list):
        found[0] = value


@action
def set_global(world: World, name: str, value: float) -> None:
    names = world.names
    if name == "scale":
        names["config"]["scale"] = value
    elif name == "trouble":
        names["trouble"]["on"] = value > 1
    elif name == "weights":
        names["weights"].data = np.full((2, 2), value)
    elif name == "new weights":
        names["weights"] = ag.ag_tensor(np.full((2, 2), value))
    else:
        names["shift"] = value


@action
def seed(world: World, value: int) -> None:
    ag.ag_seed(value)


@action
def draw(world: World) -> Any:
    """Random numbers, outside of steps."""
    return ag.ag_dropout(0.5)(ag.ag_tensor(np.ones((2, 8))))


@action
def default_device(world: World, other: bool) -> None:
    ag.ag_device(world.other if other else world.device)


@action
def default_dtype(world: World, name: str) -> None:
    ag.ag_dtype(name)


@action
def move(world: World, other: bool) -> None:
    world.model.to(world.other if other else world.device)


# ---------------------------------------------------------------------------------------------- optimizers, files


@action
def make_optimizer(world: World, which: str, kind: str) -> None:
    world.names[which] = MOMENTS[kind](world.model)


@action
def drop_optimizer(world: World, which: str) -> None:
    """The optimizer and the steps that use it."""
    if which in world.names and which != "opt0":
        world.steps = [s for s in world.steps if s.spec.opt != which]
        world.schedulers = []
        del world.names[which]
        gc.collect()


@action
def optimizer_step(world: World, which: str) -> None:
    world.names[which].step()


@action
def zero_grad(world: World, which: str) -> None:
    world.names[which].zero_grad()


@action
def clip(world: World) -> None:
    if any(p.grad is not None for p in world.model.parameters().values()):
        _clipped(world)


@action
def save_state(world: World, which: str) -> None:
    copies = [{k: np.array(v) for k, v in x.state_dict().items()} for x in (world.model, world.names[which])]
    world.states = [*world.states[-1:], (which, copies)]


@action
def load_state(world: World, i: int) -> None:
    which, (model, optimizer) = world.states[i]
    world.model.load_state_dict(model)
    if which in world.names:
        world.names[which].load_state_dict(optimizer)


@action
def through_file(world: World, which: str) -> None:
    """Save, train a little, load."""
    with TemporaryDirectory() as folder:
        path = str(Path(folder, "here.safetensors"))
        ag.ag_save_checkpoint(path, world.model, world.names[which])
        for i in range(len(world.steps)):
            step(world, i, 0)
        ag.ag_load_checkpoint(path, world.model, world.names[which])


@action
def load_model(world: World) -> None:
    """Another model object, from a file, with an optimizer for it: the steps go on with the name `model`."""
    with TemporaryDirectory() as folder:
        path = str(Path(folder, "here.safetensors"))
        ag.ag_save_model(world.model, path, model_fn=None)
        model = ag.ag_load_model(path, device=world.device)
    world.names["model"] = ag.ag_train(model)
    world.names["parallel"] = ag.DataParallel(model, [world.device, world.device])
    for which in world.optimizers:
        world.names[which] = MOMENTS["sgd"](model)
    world.schedulers, world.states = [], []


# ---------------------------------------------------------------------------------------------- values


@action
def assign(world: World, k: int, value: float) -> None:
    """Overwrite a parameter."""
    params = list(world.model.parameters().values())
    p = params[k % len(params)]
    p.data = p.numpy() * 0.5 + value


@action
def assign_grad(world: World, k: int, how: str) -> None:
    params = list(world.model.parameters().values())
    p = params[k % len(params)]
    if how == "none":
        p.grad = None
    elif how == "ones" or p.grad is None:
        made = ag.ag_tensor(np.ones(p.shape), device=p.device, dtype="f64" if p.dtype == "f64" else "f32")
        p.grad = ag.ag_reshape(made, *p.shape)
    else:
        p.grad = p.grad * 2.0


@action
def keep_grads(world: World) -> None:
    world.keep("grad", {n: p.grad for n, p in world.model.parameters().items()})


@action
def change_batch(world: World, batch: int, how: str, value: int) -> None:
    """Mutate the arrays that steps get, or put others in their place."""
    x, y = world.batches[batch]
    if how == "new":
        world.batches[batch] = x.copy(), y.copy()
    elif how == "labels" and y.dtype.kind == "i":
        y[...] = np.roll(y, 1)
    elif x.dtype.kind == "i":
        x[...] = (x + value) % 7
    elif how == "scale":
        x *= 0.5 + value / 8
    else:
        x[...] = np.random.default_rng(value).normal(size=x.shape)


@action
def change_argument_tensor(world: World, i: int) -> Any:
    """The same tensor as argument twice, with other values the second time."""
    x, y = world.batches[0]
    if x.dtype.kind != "f":
        return None
    t = ag.ag_tensor(x)
    chosen = world.steps[i]
    first = _around(world, chosen, t, y, False)
    t.data = x * 0.5
    return first, _around(world, chosen, t, y, False)


@action
def backward_elsewhere(world: World) -> Any:
    """Accumulate into the gradients, outside of any step."""
    x, y = world.batches[1]
    with ag.with_grad_tape():
        loss = world.names["loss_fn"](world.model(x), y)
    return ag.backward(loss)


@action
def constants(world: World) -> None:
    """Numbers mean what they say, also after results of constants were written to, and sums have memory of their own."""
    made = ag.ag_reshape(5.0, 1, 1)
    made.data = [[7.0]]
    for value in (1.0, 5.0, 0.0):
        got = (ag.ag_tensor([[2.0]]) + value).item()
        assert got == 2.0 + value, f"2 + {value} is {got}"
    p = ag.ag_tensor([[3.0]])
    for fn in (ag.ag_sum, ag.ag_mean, ag.ag_max):
        fn(p, dim=()).data = [[9.0]]
        assert p.item() == 3.0, f"{fn.__name__} returned its operand's memory"
