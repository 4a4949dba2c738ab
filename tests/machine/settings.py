"""Actions that change something between two steps: settings, optimizers, files, values, the arrays of batches."""

from __future__ import annotations

import gc
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from machine.actions import action, around, clipped, step
from machine.world import MOMENTS, World, tail

import ag

# ---------------------------------------------------------------------------------------------- settings


@action
def set_rate(world: World, which: str, name: str, value: float) -> None:
    """A number of an optimizer; those that it does not have are left alone."""
    opt = world.names[which]
    if hasattr(opt, name):
        setattr(opt, name, value)


@action
def schedule(world: World, which: str, kind: str) -> None:
    made = {
        "step": lambda o: ag.lr_scheduler_step(o, 2, 0.5),
        "cosine": lambda o: ag.lr_scheduler_cosine(o, 5),
        "warmup": lambda o: ag.lr_scheduler_warmup(o, 3),
    }[kind](world.names[which])
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
    elif name == "stage":
        world.model.stage = value
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
        clipped(world)


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
def load_into(world: World, which: str) -> None:
    """Load the optimizer's state that was saved last into another optimizer, of whatever kind."""
    _, (_, optimizer) = world.states[-1]
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
def copy_model(world: World) -> None:
    """A copy of the model, with an optimizer for it: the steps go on with the name `model`."""
    _go_on_with(world, deepcopy(world.model))


@action
def load_model(world: World) -> None:
    """Another model object, from a file, with an optimizer for it: the steps go on with the name `model`."""
    with TemporaryDirectory() as folder:
        path = str(Path(folder, "here.safetensors"))
        ag.ag_save_model(world.model, path, model_fn=None)
        model = ag.ag_load_model(path, device=world.device)
    _go_on_with(world, ag.ag_train(model))


def _go_on_with(world: World, model: Any) -> None:
    world.names |= {"model": model, **tail(model)}
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
def freeze(world: World, k: int, frozen: bool) -> None:
    """Let a parameter have no gradient from now on, or have one again."""
    params = list(world.model.parameters().values())
    params[k % len(params)].requires_grad = not frozen


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
    first = around(world, chosen, t, y, False)
    t.data = x * 0.5
    return first, around(world, chosen, t, y, False)


@action
def backward_elsewhere(world: World) -> Any:
    """Accumulate into the gradients, outside of any step."""
    x, y = world.batches[1]
    with ag.with_grad_tape():
        loss = world.names["loss_fn"](world.model(x), y)
    return ag.backward(loss)


@action
def constants(world: World) -> None:
    """Numbers mean what they say, also and sums have memory of their own."""
    made = ag.ag_reshape(5.0, 1, 1)
    made.data = [[7.0]]
    for value in (1.0, 5.0, 0.0):
        got = (ag.ag_tensor([[2.0]]) + value).item()
        assert got == 2.0 + value, f"2 + {value} is {got}"
    p = ag.ag_tensor([[3.0]])
    for fn in (ag.ag_sum, ag.ag_mean, ag.ag_max):
        fn(p, dim=()).data = [[9.0]]
        assert p.item() == 3.0, f"{fn.__name__} returned its operand's memory"
