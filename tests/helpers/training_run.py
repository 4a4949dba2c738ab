"""A small training loop with everything that has a state: for the tests of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import ag
from ag.engine.random import generator_snapshot

RNG = np.random.default_rng(7)
X = RNG.standard_normal((4, 12)).astype(np.float32)
LABELS = RNG.integers(0, 3, 12)


class Run:
    """A training loop with everything that has a state."""

    def __init__(self, captured: bool = False, seed: int = 5) -> None:
        ag.ag_seed(seed)
        self.model = ag.ag_sequential(ag.ag_linear(4, 8, activation="relu"), ag.ag_dropout(0.3), ag.ag_linear(8, 3))
        self.optimizer = ag.optimizer_adam(self.model, lr=0.05)
        self.schedule = ag.lr_scheduler_cosine(self.optimizer, 12, 0.001)
        self.loader = ag.ag_dataloader(X, LABELS, batch_size=3)
        self._call = ag.ag_capture(self._step) if captured else self._step
        self._batches = self._endless()

    def _endless(self) -> Iterator[ag.Batch]:
        while True:
            yield from self.loader.epoch()

    def _step(self, x: ag.Tensor, labels: np.ndarray) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(self.model(x), labels)
        self.optimizer.step(ag.backward(loss))
        self.optimizer.zero_grad()
        return loss

    def train(self, steps: int) -> list[Any]:
        """Loss and rate of every step, and the weights at the end."""
        found: list[Any] = []
        for _ in range(steps):
            batch = next(self._batches)
            found.append((self._call(batch.x, batch.y).item(), self.optimizer.lr))
            self.schedule.step()
        return [*found, self.weights()]

    def weights(self) -> bytes:
        return b"".join(v.tobytes() for v in {**self.model.state_dict(), **self.optimizer.state_dict()}.values())

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.schedule,
                "dataloader": self.loader}

    def everything(self) -> tuple[Any, ...]:
        return (self.weights(), self.schedule.state_dict(), self.loader.state_dict(), self.optimizer.lr,
                self.loader.order.tolist(), generator_snapshot())
