"""A world of the state machine: a model, optimizers, steps and data, and how to look at all of it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from machine.models import KINDS, host
from machine.steps import Spec

import ag
from ag.optim.optimizer import Optimizer

Seen = dict[str, Any]  # what was seen, by name: (type, shape, bytes), numbers, or a Refused
MOMENTS = {
    "sgd": lambda p: ag.optimizer_sgd(p, lr=0.05),
    "momentum": lambda p: ag.optimizer_sgd(p, lr=0.02, momentum=0.5),
    "adam": lambda p: ag.optimizer_adam(p, lr=0.02),
    "adamw": lambda p: ag.optimizer_adamw(p, lr=0.02),
}


@dataclass(frozen=True)
class Refused:
    """A value that could not be read, by a named error."""

    error: str


@dataclass
class Step:
    """A step and what runs it."""

    spec: Spec
    plain: Callable[..., Any]
    run: Callable[..., Any]
    refusals: int = 0  # in a row


@dataclass
class World:
    """One of the two worlds."""

    device: str
    captured: bool  # whether this is the subject
    kind: str = "dense"  # of model
    dtype: str = "f32"  # the default element type
    names: dict[str, Any] = field(default_factory=dict)  # the globals of steps
    steps: list[Step] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    batches: list[tuple[Any, Any]] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)

    def restart(self, kind: str, dtype: str, seed: int, optimizer: str) -> None:
        """Begin anew."""
        for step in self.steps:
            self.drop(step)
        self.kind, self.dtype = kind, dtype
        ag.ag_device(self.device)
        ag.ag_dtype(dtype)
        ag.ag_seed(seed)
        rng = np.random.default_rng(seed)
        self.batches = [KINDS[kind].batch(rng, n) for n in (4, 4, 3)]
        self.steps, self.kept, self.states, self.schedulers = [], [], [], []
        self.names = self._globals(kind)
        self.names["opt0"] = MOMENTS[optimizer](self.model)

    def _globals(self, kind: str) -> dict[str, Any]:
        model = KINDS[kind].make()
        first = next(iter(model.parameters().values()))
        own = ag.ag_param(host((2, 2), 7), dtype="f32")
        far = ag.ag_param(host((2, 2), 6), device=self.other, dtype="f32")  # of which there is no other state
        return {
            "__name__": "script",
            "__builtins__": __builtins__,
            "ag": ag,
            "np": np,
            "model": model,
            "loss_fn": KINDS[kind].loss,
            "shift": 1.25,
            "config": {"scale": 0.75},
            "rng": np.random.default_rng(3),
            "chance": random.Random(3),
            "counter": {"n": 0},
            "trouble": {"on": False},
            "extra": self.batches[0][0],
            "weights": ag.ag_tensor(host((2, 2), 4)),
            "average": ag.ag_tensor([[0.5]]),
            "box": deque(maxlen=3),
            "large": ag.ag_tensor(host((64, 64), 5)),  # its product lies in a program's memory
            "far": far,
            "own": own,
            "own_opt": ag.optimizer_sgd([own], lr=0.1),
            "far_opt": ag.optimizer_sgd([far], lr=0.1),
            "other": self.other,
            "device": self.device,
            "start": first.numpy().copy(),
            "noise": ag.ag_dropout(0.5),
            "inner": self.wrapped(lambda w: ag.ag_mean(w * 3.0)),
            "in_thread": _in_thread,
            "parallel": ag.DataParallel(model, [self.device, self.device]),
            **tail(model),
        }

    @property
    def model(self) -> Any:
        return self.names["model"]

    @property
    def other(self) -> str:
        """Another device than the world's own."""
        return "cpu:1" if self.device == "cpu" else "cpu"

    @property
    def optimizers(self) -> dict[str, Any]:
        return {name: x for name, x in self.names.items() if name.startswith("opt")}

    @property
    def all_optimizers(self) -> dict[str, Any]:
        """Return the optimizers of hostile steps, too: in 16 bits each has float32 masters, which no tensor shows."""
        return {name: x for name, x in self.names.items() if isinstance(x, Optimizer)}

    def wrapped(self, fn: Callable[..., Any], recompute: bool = False) -> Callable[..., Any]:
        """`fn`, captured in the subject."""
        return ag.ag_capture(fn, recompute=recompute) if self.captured else fn

    def add_step(self, spec: Spec) -> None:
        """Define a step as a script does."""
        exec(compile(spec.source(), f"<step {spec.hostile}>", "exec"), self.names)
        plain = self.names.pop("step")
        self.steps.append(Step(spec, plain, self.wrapped(plain, spec.recompute)))

    def drop(self, step: Step) -> None:
        """Let go of a step and its program."""
        if step in self.steps:
            self.steps = [s for s in self.steps if s is not step]

    def keep(self, label: str, value: Any) -> None:
        """Read it again whenever somebody looks."""
        self.kept = [*self.kept[-4:], (label, value)]

    def forget_all(self) -> None:
        """Keep nothing, in steps either."""
        self.kept = []
        self.names["box"].clear()

    # ------------------------------------------------------------------------------------------ looking

    def look(self) -> Seen:
        """All that a user can see."""
        seen: Seen = {"device": ag.ag_default_device(), "dtype": ag.ag_default_dtype()}
        for name, x in {**self.model.parameters(), **self.model.buffers()}.items():
            seen[f"model.{name}"] = value_of(lambda x=x: x)
            seen[f"grad.{name}"] = value_of(lambda x=x: x.grad)
        for name, opt in self.all_optimizers.items():
            seen[f"{name}.lr"] = opt.lr
            for key, x in opt.state_dict().items():
                seen[f"{name}.{key}"] = value_of(lambda x=x: x)
        for i, (label, value) in enumerate(self.kept):
            seen |= {f"kept{i} {label}{path}": x for path, x in flat(value)}
        for i, arrays in enumerate(self.batches):
            seen |= {f"batch{i}{path}": x for path, x in flat(arrays)}
        seen |= {f"box{path}": x for path, x in flat(list(self.names["box"]))}
        seen["stage"] = getattr(self.model, "stage", None)
        for name in ("average", "far", "own"):
            seen[name] = value_of(lambda name=name: self.names[name])
        return seen

    def python(self) -> dict[str, Any]:
        """Return what Python holds beside all that `look` sees; the subject takes it over after a refusal."""
        names = self.names
        return {
            "rng": names["rng"].bit_generator.state,
            "chance": names["chance"].getstate(),
            "counter": dict(names["counter"]),
            "calls": getattr(self.model, "calls", None),
            "trained": list(self.model.parameters()),
        }

    def adopt(self, seen: Seen, python: Mapping[str, Any]) -> None:
        """Become like the other world, by assignment."""
        names = self.names
        names["rng"].bit_generator.state = python["rng"]
        names["chance"].setstate(python["chance"])
        names["counter"].update(python["counter"])
        if python["calls"] is not None:
            self.model.calls = python["calls"]
        names["average"] = ag.ag_tensor(
            array_of(seen["average"]), device=self.device, dtype=seen["average"][0].split()[0]
        )
        if seen["stage"] is not None:
            self.model.stage = seen["stage"]
        for name in ("far", "own"):
            names[name].data = array_of(seen[name])
        for name, x in {**self.model.parameters(), **self.model.buffers()}.items():
            x.data = array_of(seen[f"model.{name}"])
            g = array_of(seen[f"grad.{name}"])
            x.grad = None if g is None else _tensor_like(g, x)
            x.requires_grad = name in python["trained"]
        for name, opt in self.all_optimizers.items():
            opt.load_state_dict(
                {
                    k.removeprefix(f"{name}."): array_of(v)
                    for k, v in seen.items()
                    if k.startswith(f"{name}.") and k != f"{name}.lr"
                }
            )
            opt.lr = seen[f"{name}.lr"]
        for i, arrays in enumerate(self.batches):
            for path, x in _leaves(arrays):
                x[...] = array_of(seen[f"batch{i}{path}"])
        self.forget_all()

    @property
    def has(self) -> dict[str, Any]:
        """Return what rules need to know of the world."""
        return {
            "steps": len(self.steps),
            "hostile": [step.spec.hostile for step in self.steps],
            "optimizers": sorted(self.optimizers) if self.names else [],
            "kind": self.kind,
            "schedulers": len(self.schedulers),
            "states": len(self.states),
        }

    def refusal(self, i: int) -> int | None:
        """Count that a step was refused; its number if that is the second time, and it should be captured again."""
        if i < len(self.steps):
            self.steps[i].refusals += 1
        return i if i < len(self.steps) and self.steps[i].refusals > 1 else None


def tail(model: Any) -> dict[str, Any]:
    """Make an optimizer that shares the model's first parameter with the others."""
    first = next(iter(model.parameters().values()))
    return {"tail_of": first, "tail": ag.optimizer_sgd([first], lr=0.1)}


def _tensor_like(array: Any, p: Any) -> Any:
    made = ag.ag_tensor(array.reshape(p.shape), device=p.device, dtype="f64" if array.dtype == np.float64 else "f32")
    return made if made.shape == p.shape else ag.ag_reshape(made, *p.shape)


def _in_thread(fn: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fn).result()


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key if isinstance(key, str) else (key.name or key.shape)}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{path}[{i}]")
    else:
        yield path, value


def flat(value: Any) -> list[tuple[str, Any]]:
    """Everything inside a result, by path."""
    try:
        return [(path, value_of(lambda x=x: x)) for path, x in _leaves(value)]
    except ag.AgError as error:
        return [("", Refused(f"{type(error).__name__}: {error}"))]


def value_of(get: Callable[[], Any]) -> Any:
    """A tensor or array as (type, shape, bytes), or a plain value."""
    try:
        x = get()
        if isinstance(x, ag.Tensor):
            name, array = f"{x.dtype} on {x.device}", x.numpy()
        elif isinstance(x, np.ndarray):
            name, array = "array", x.view(np.ndarray)  # also what a step kept of an argument
        else:
            return x
        return name, array.dtype.str, array.shape, array.tobytes()
    except ag.AgError as error:
        return Refused(f"{type(error).__name__}: {error}")


def array_of(seen: Any) -> Any:
    """The array in what `value_of` returned; None stays None."""
    if seen is None:
        return None
    _, dtype, shape, data = seen
    return np.frombuffer(data, dtype).reshape(shape).copy()


@dataclass(frozen=True)
class Call:
    """The outcome of an action: its result or its error, and what was seen afterwards, if a look was asked for."""

    result: Any = None
    error: str = ""
    kinds: tuple[str, ...] = ()  # names of the error's class and its bases
    seen: Seen | None = None
    python: dict[str, Any] | None = None
    has: dict[str, Any] = field(default_factory=dict)  # what there is now: steps, optimizers, ...
    stale: int | None = None  # a step that was refused twice
