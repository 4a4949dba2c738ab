"""Values that a callback keeps of a step of dp_train stay as they are; steps that are left out spoil no later one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.dp_classifier import assert_equal
from helpers.ranks import DATA
from helpers.ranks import train as train_ragged

import ag


def network(width: int) -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(4, width, activation="tanh"), ag.ag_linear(width, width),
                            ag.ag_linear(width, 3))


def train(devices: list[str], width: int = 6, **options: Any) -> ag.DPResult:
    return train_ragged(devices, make_model=lambda: network(width), **{"batch": 8, **options})


# ---------------------------------------------------------------------------------------------- what is kept


def gradients(model: Any) -> list[Any]:
    """Return the gradients of one sample, which leave no trace in the parameters."""
    params = model.parameters().values()
    with ag.with_grad_tape():
        loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(DATA[0][0], model[0].W.device)), DATA[0][1])
    grads = ag.backward(loss)
    for p in params:
        p.grad = None
    return [grads[p] for p in params]


class Keeping:
    """A callback that keeps values of models and optimizers, and a copy of each to compare with."""

    def __init__(self, several: bool) -> None:
        self.several = several
        self.optimizers: list[Any] = []
        self.values: list[Any] = []
        self.copies: list[np.ndarray] = []

    def optimizer(self, params: dict[str, ag.Tensor]) -> Any:
        """Make the optimizers of the job: one, or one for each half of the parameters."""
        halves = [[*params][::2], [*params][1::2]] if self.several else [[*params]]
        self.optimizers = [ag.optimizer_adam({name: params[name] for name in half}, lr=0.01) for half in halves]
        return self.optimizers if self.several else self.optimizers[0]

    def __call__(self, step: ag.DPStep) -> None:
        for model in step.models:
            self.keep(gradients(model))
            self.keep([x for p in model.parameters().values() for x in (p.numpy(), p * 1.0)])
            self.keep(model.state_dict().values())
        for optimizer in self.optimizers:
            self.keep(optimizer.state_dict().values())
            self.keep([p.numpy() for p in optimizer.params.values()])

    def keep(self, values: Any) -> None:
        self.values += values
        self.copies += [np.array(np.asarray(x), copy=True) for x in values]

    def changed(self) -> int:
        """Count the values that are not what they were."""
        return sum(not np.array_equal(np.asarray(x), then) for x, then in zip(self.values, self.copies, strict=True))


@pytest.mark.parametrize("width", [6, pytest.param(700, marks=pytest.mark.slow)])  # copied by one thread, by several
@pytest.mark.parametrize(("others", "options"), [(0, {}), (0, {"several": True}), (1, {"max_norm": 0.05}),
                                                 ("vulkan", {"several": True})])
def test_values_that_a_callback_keeps_do_not_change(others: Any, width: int, options: dict[str, Any],
                                                    request: pytest.FixtureRequest) -> None:
    """Whatever steps follow; and keeping them changes no result."""
    devices = ["cpu", *([request.getfixturevalue("lavapipe")] if others == "vulkan" else ["cpu:1"] * others)]
    settings = {"width": width, "n_iter": 4, "max_norm": options.get("max_norm", np.inf), "batch": 2 * len(devices)}
    keeping, free = (Keeping(options.get("several", False)) for _ in range(2))
    kept = train(devices, optimizer=keeping.optimizer, callback=keeping, **settings)
    assert_equal(kept, train(devices, optimizer=free.optimizer, **settings))
    assert keeping.values and keeping.changed() == 0


# ---------------------------------------------------------------------------------------------- steps that are left out


def test_weights_beyond_float32_spoil_no_later_step() -> None:
    """Give samples an infinite weight in the second step: the step is left out, and the others are as without it."""
    def run(devices: list[str]) -> ag.DPResult:
        done: list[ag.DPStep] = []
        return train(devices, n_iter=4, on_nonfinite="skip", callback=done.append,
                     weight_fn=lambda _: 1e39 if len(done) == 1 else 2.0)

    one = run(["cpu"])
    assert np.isfinite(one.loss_history).tolist() == [True, False, True, True]
    two = run(["cpu", "cpu:1"])
    assert np.array_equal(one.loss_history, two.loss_history, equal_nan=True)
    for name, p in one.params.items():
        assert np.array_equal(p.numpy(), two.params[name].numpy()), name


# ---------------------------------------------------------------------------------------------- two kinds of device
