"""Trains a small classifier with an installed ag, on the device named, and shows that it learned.

    python tools/try_wheel.py DEVICE

Fails if ag comes from elsewhere than the environment of this Python, or if the loss does not fall.  Run by cibuildwheel
and tests/tools/test_wheel.py in environments that have the wheel and nothing else; uses the public functions alone.
"""

import sys
from pathlib import Path

import numpy as np

import ag


def main(device: str) -> None:
    """Train in a loop, captured, and in `dp_train`; print the losses."""
    where = Path(ag.__file__).resolve()
    assert Path(sys.prefix).resolve() in where.parents, f"ag comes from {where}, not from {sys.prefix}"
    x = np.random.default_rng(0).normal(size=(2, 96)).astype(np.float32)
    labels = (x[0] * x[1] > 0).astype(int)
    with ag.ag_device(device):
        ag.ag_seed(1)
        model = ag.ag_sequential(ag.ag_linear(2, 16, activation="tanh"), ag.ag_linear(16, 2))
        optimizer = ag.optimizer_adam(model.parameters(), lr=0.02)

        def step(x: ag.Tensor, labels: np.ndarray) -> ag.Tensor:
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(model(x), labels)
            optimizer.step(ag.backward(loss))
            optimizer.zero_grad()
            return loss

        captured = ag.ag_capture(step)
        losses = [captured(ag.ag_tensor(x), labels).item() for _ in range(150)]
    assert losses[-1] < 0.5 * losses[0], f"the loss goes from {losses[0]} to {losses[-1]}"
    data = [{"x": x[:, i : i + 1], "label": labels[i : i + 1]} for i in range(96)]
    result = ag.dp_train(
        make_model=lambda: ag.ag_sequential(ag.ag_linear(2, 16, activation="tanh"), ag.ag_linear(16, 2)), data=data,
        forward_fn=lambda model, sample: model.forward(sample["x"]), target_fn=lambda sample: sample["label"],
        loss_fn=ag.ag_softmax_cross_entropy_loss, micro_batch=8, n_iter=150, lr=0.02, seed=1, verbose=False,
        devices=[device])
    assert result.devices == [device] and result.loss_history[-1] < 0.5 * result.loss_history[0]
    print(f"{device}: {losses[0]:.3f} to {losses[-1]:.3f}, dp_train {result.loss_history[0]:.3f} to {result.loss:.3f}")


main(sys.argv[1])
