"""The rules of the state machine: what hypothesis draws, and when."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from machine.changes import GLOBALS, RATES, SETTINGS, changes
from machine.models import KINDS
from machine.pair import Pair
from machine.steps import HOSTILE, READ, RETURNS, Spec
from machine.training import HABITS, READING
from machine.world import MOMENTS

DTYPES = ("f32", "f32", "f32", "f16", "bf16")
often = st.sampled_from([True, True, True, False])
seldom = st.sampled_from([False, False, False, True])
batches = st.sampled_from([0, 0, 0, 1, 1, 2])
numbers = st.sampled_from([0.25, 0.5, 0.75, 1.5])
hostile_ways = st.sampled_from([way for way in HOSTILE if way])
harmless = st.just("")
rarely = st.sampled_from([False] * 9 + [True])
specs = st.builds(
    Spec,
    zero=st.sampled_from(["after", "before", "outside", "never"]),
    backward=st.sampled_from(["inside", "inside", "inside", "outside"]),
    optimizer=st.sampled_from(["inside", "inside", "outside", ""]),
    clip=st.sampled_from(["", "", "inside", "outside"]),
    which=st.just(0),
    passes=st.sampled_from([1, 1, 2, 3]),
    mapping=st.booleans(),
    returns=st.sampled_from([*RETURNS, "large", "large"]),
    hostile=harmless | harmless | hostile_ways | st.sampled_from([*READ]),
    wrap=st.booleans(),
    parallel=rarely,
    recompute=seldom,
)


class Machine(RuleBasedStateMachine):
    """A state machine of what users do around a step."""

    pair: Pair
    kinds: tuple[str, ...] = tuple(KINDS)
    dtypes: tuple[str, ...] = DTYPES

    def do(self, name: str, /, **arguments: Any) -> None:
        self.pair.do(name, **arguments)

    @property
    def steps(self) -> int:
        return int(self.pair.has["steps"])

    @property
    def optimizers(self) -> list[str]:
        return list(self.pair.has["optimizers"])

    def a_step(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, self.steps - 1), label="step")

    def an_optimizer(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(self.optimizers), label="optimizer")

    @initialize(data=st.data(), seed=st.integers(0, 9), optimizer=st.sampled_from(sorted(MOMENTS)), spec=specs)
    def begin(self, data: st.DataObject, seed: int, optimizer: str, spec: Spec) -> None:
        kind, dtype = data.draw(st.sampled_from(self.kinds)), data.draw(st.sampled_from(self.dtypes))
        self.do("restart", kind=kind, dtype=dtype, seed=seed, optimizer=optimizer)
        recompute = data.draw(often) if kind == "deep" else spec.recompute
        self.do("new_step", spec=spec._replace(recompute=recompute))
        for k in range(data.draw(st.integers(1, 4), label="steps")):  # from the third on they are replayed
            self.do("step", i=0, batch=k % 2, look=k != 1)
        self.change_and_step(data, 0)
        if data.draw(st.booleans()):
            self.hostile_step(data)

    def replay_after_a_change(self, data: st.DataObject, times: int, group: str) -> None:
        i = self.a_step(data)
        for k in range(times):
            self.do("step", i=i, batch=k % 2, look=False)
        self.change_and_step(data, i, group)

    def change_and_step(self, data: st.DataObject, i: int, group: str = "") -> None:
        """Change something, and run the step again, which must notice."""
        read = READ.get(self.pair.has["hostile"][i])
        if read and data.draw(often, label="what it reads"):
            self.do("set_global", name=read, value=data.draw(numbers))
        name, arguments = data.draw(changes(self.pair.has["kind"], self.optimizers, group), label="change")
        self.do(name, **arguments)
        for k in range(3 if i < self.steps else 0):
            self.do("step", i=i, batch=k % 2, keep=k < 2)

    # -------------------------------------------------------------------------------------- steps

    @precondition(lambda self: self.steps < 3)
    @rule(data=st.data(), spec=specs)
    def new_step(self, data: st.DataObject, spec: Spec) -> None:
        which = int(self.an_optimizer(data).removeprefix("opt"))
        self.do("new_step", spec=spec._replace(which=which))

    @precondition(lambda self: self.steps > 1)
    @rule(data=st.data())
    def drop_step(self, data: st.DataObject) -> None:
        self.do("drop_step", i=self.a_step(data))

    @precondition(lambda self: self.steps)
    @rule(data=st.data())
    def close_step(self, data: st.DataObject) -> None:
        self.do("close_step", i=self.a_step(data))

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), batch=batches, keep=st.booleans(), look=often)
    def step(self, data: st.DataObject, batch: int, keep: bool, look: bool) -> None:
        self.do("step", i=self.a_step(data), batch=batch, keep=keep, look=look)

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), times=st.integers(2, 4))
    def several_steps(self, data: st.DataObject, times: int) -> None:
        i = self.a_step(data)
        for k in range(times):
            self.do("step", i=i, batch=k % 2, keep=k < 2, look=k == times - 1)

    @precondition(lambda self: self.steps)
    @rule(
        data=st.data(),
        batch=batches,
        look=often,
        form=st.sampled_from(["tensors", "wide", "order", "view", "same", "read-only"]),
    )
    def step_with_other_arguments(self, data: st.DataObject, batch: int, form: str, look: bool) -> None:
        self.do("step", i=self.a_step(data), batch=batch, form=form, look=look)

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), batch=batches)
    def eager_step(self, data: st.DataObject, batch: int) -> None:
        self.do("step", i=self.a_step(data), batch=batch, eager=True)

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), batch=batches)
    def step_in_thread(self, data: st.DataObject, batch: int) -> None:
        self.do("in_thread", i=self.a_step(data), batch=batch)

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), batch=batches)
    def two_threads(self, data: st.DataObject, batch: int) -> None:
        self.do("two_threads", i=self.a_step(data), batch=batch)

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), batch=batches, at=st.integers(1, 1500))
    def interrupted_step(self, data: st.DataObject, batch: int, at: int) -> None:
        self.do("interrupted_step", i=self.a_step(data), batch=batch, at=at)

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), batch=batches, under=st.sampled_from(["tape", "no_grad"]))
    def step_under(self, data: st.DataObject, batch: int, under: str) -> None:
        self.do("step", i=self.a_step(data), batch=batch, under=under)

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), batch=batches, value=st.integers(0, 9))
    def step_in_seeded_thread(self, data: st.DataObject, batch: int, value: int) -> None:
        self.do("in_thread", i=self.a_step(data), batch=batch, seed=value)

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), times=st.integers(1, 4))
    def step_with_other_settings(self, data: st.DataObject, times: int) -> None:
        self.replay_after_a_change(data, times, "settings")

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), times=st.integers(1, 4))
    def step_with_other_values(self, data: st.DataObject, times: int) -> None:
        self.replay_after_a_change(data, times, "values")

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), times=st.integers(1, 4))
    def step_with_other_objects(self, data: st.DataObject, times: int) -> None:
        self.replay_after_a_change(data, times, "objects")

    @rule(data=st.data())
    def hostile_step(self, data: st.DataObject) -> None:
        hostile, returns = data.draw(hostile_ways), data.draw(st.sampled_from([*RETURNS]))
        form = data.draw(st.sampled_from(["arrays", "tensors", "same"]), label="form")
        if self.steps == 3:
            self.do("drop_step", i=0)
        self.do("new_step", spec=Spec(hostile=hostile, returns=returns))
        for k in range(4):
            self.do("step", i=self.steps - 1, batch=k % 2, keep=k == 3, form=form)
        name = READ.get(hostile) or data.draw(st.sampled_from(GLOBALS))
        self.do("set_global", name=name, value=data.draw(numbers))
        for k in range(2):
            self.do("step", i=self.steps - 1, batch=k, form=form)

    @precondition(lambda self: self.steps)
    @rule(data=st.data())
    def change_argument_tensor(self, data: st.DataObject) -> None:
        self.do("change_argument_tensor", i=self.a_step(data))

    # -------------------------------------------------------------------------------------- settings

    @rule(data=st.data(), rate=st.sampled_from(RATES))
    def set_rate(self, data: st.DataObject, rate: tuple[str, float]) -> None:
        self.do("set_rate", which=self.an_optimizer(data), name=rate[0], value=rate[1])

    @rule(data=st.data(), kind=st.sampled_from(["step", "cosine", "warmup"]))
    def schedule(self, data: st.DataObject, kind: str) -> None:
        self.do("schedule", which=self.an_optimizer(data), kind=kind)

    @precondition(lambda self: self.pair.has["schedulers"])
    @rule()
    def scheduler_step(self) -> None:
        self.do("scheduler_step", i=-1)

    @rule(train=st.booleans())
    def mode(self, train: bool) -> None:
        self.do("mode", train=train)

    @precondition(lambda self: SETTINGS[self.pair.has["kind"]])
    @rule(data=st.data())
    def set_layer(self, data: st.DataObject) -> None:
        name, value = data.draw(st.sampled_from(SETTINGS[self.pair.has["kind"]]), label="setting")
        self.do("set_layer", name=name, value=value)

    @precondition(lambda self: self.pair.has["kind"] == "custom")
    @rule(name=st.sampled_from(["gains", "shifts"]), value=numbers)
    def set_part(self, name: str, value: float) -> None:
        self.do("set_part", name=name, value=value)

    @rule(name=st.sampled_from(GLOBALS), value=numbers)
    def set_global(self, name: str, value: float) -> None:
        self.do("set_global", name=name, value=value)

    @rule(value=st.integers(0, 99))
    def seed(self, value: int) -> None:
        self.do("seed", value=value)

    @rule()
    def draw(self) -> None:
        self.do("draw")

    @rule(other=seldom)
    def default_device(self, other: bool) -> None:
        self.do("default_device", other=other)

    @rule(name=st.sampled_from(["f32", "f32", "f16"]))
    def default_dtype(self, name: str) -> None:
        self.do("default_dtype", name=name)

    @rule(other=seldom)
    def move(self, other: bool) -> None:
        self.do("move", other=other)

    # -------------------------------------------------------------------------------------- optimizers, files

    @rule(which=st.sampled_from(["opt0", "opt1", "opt2"]), kind=st.sampled_from(sorted(MOMENTS)))
    def make_optimizer(self, which: str, kind: str) -> None:
        self.do("make_optimizer", which=which, kind=kind)

    @rule(which=st.sampled_from(["opt1", "opt2"]))
    def drop_optimizer(self, which: str) -> None:
        self.do("drop_optimizer", which=which)

    @rule(data=st.data())
    def optimizer_step(self, data: st.DataObject) -> None:
        self.do("optimizer_step", which=self.an_optimizer(data))

    @rule(data=st.data())
    def zero_grad(self, data: st.DataObject) -> None:
        self.do("zero_grad", which=self.an_optimizer(data))

    @rule()
    def clip(self) -> None:
        self.do("clip")

    @rule(data=st.data())
    def save_state(self, data: st.DataObject) -> None:
        self.do("save_state", which=self.an_optimizer(data))

    @precondition(lambda self: self.pair.has["states"])
    @rule()
    def load_state(self) -> None:
        self.do("load_state", i=0)

    @precondition(lambda self: self.pair.has["states"])
    @rule(data=st.data())
    def load_into(self, data: st.DataObject) -> None:
        self.do("load_into", which=self.an_optimizer(data))

    @precondition(lambda self: self.steps)
    @rule(data=st.data())
    def through_file(self, data: st.DataObject) -> None:
        self.do("through_file", which=self.an_optimizer(data))

    @precondition(lambda self: self.pair.has["kind"] in ("dense", "plain", "norms", "images"))
    @rule()
    def load_model(self) -> None:
        self.do("load_model")

    # -------------------------------------------------------------------------------------- values

    @rule(k=st.integers(0, 5), value=numbers)
    def assign(self, k: int, value: float) -> None:
        self.do("assign", k=k, value=value)

    @rule(k=st.integers(0, 5), how=st.sampled_from(["none", "ones", "twice"]))
    def assign_grad(self, k: int, how: str) -> None:
        self.do("assign_grad", k=k, how=how)

    @rule(k=st.integers(0, 5), frozen=st.booleans())
    def freeze(self, k: int, frozen: bool) -> None:
        self.do("freeze", k=k, frozen=frozen)

    @rule()
    def copy_model(self) -> None:
        self.do("copy_model")

    @rule()
    def keep_grads(self) -> None:
        self.do("keep_grads")

    @rule(batch=batches, how=st.sampled_from(["scale", "overwrite", "labels", "new"]), value=st.integers(0, 6))
    def change_batch(self, batch: int, how: str, value: int) -> None:
        self.do("change_batch", batch=batch, how=how, value=value)

    @rule()
    def backward_elsewhere(self) -> None:
        self.do("backward_elsewhere")

    @rule(
        habits=st.lists(st.sampled_from([*HABITS, *READING]), min_size=5, max_size=5, unique=True),
        capture=often,
        replicas=st.sampled_from([1, 2, 2]),
        micro_batch=st.integers(1, 2),
        accumulate=st.integers(1, 2),
    )
    def train(self, habits: list[str], **arguments: Any) -> None:
        for habit in habits:
            self.do("train", habit=habit, **arguments)

    @rule()
    def collect(self) -> None:
        self.do("collect")

    @rule()
    def constants(self) -> None:
        self.do("constants")

    @rule()
    def synchronize(self) -> None:
        self.do("synchronize")

    @rule()
    def look(self) -> None:
        self.do("nothing")

    def teardown(self) -> None:
        if self.pair.history and not self.pair.broken:
            self.do("nothing")


def machine_for(
    pair: Pair, kinds: tuple[str, ...] = tuple(KINDS), dtypes: tuple[str, ...] = DTYPES
) -> type[Machine]:
    """Make a machine whose worlds are those of `pair`."""
    return type("Machine", (Machine,), {"pair": pair, "kinds": kinds, "dtypes": dtypes})
