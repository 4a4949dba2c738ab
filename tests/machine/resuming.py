"""Random histories of a training that is saved and resumed: what follows a load is what would have followed without.

    python tests/machine/resuming.py --device cpu --count 200
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2])]

import ag

MODELS: list[Callable[[], ag.Layer]] = [
    lambda: ag.ag_sequential(ag.ag_linear(3, 4, "gelu"), ag.ag_dropout(0.5), ag.ag_linear(4, 2)),
    lambda: ag.ag_sequential(ag.ag_linear(3, 4, "relu"), ag.ag_batch_norm(4), ag.ag_linear(4, 2)),
]
OPTIMIZERS: list[Callable[[Any], Any]] = [
    lambda p: ag.optimizer_sgd(p, lr=0.05, momentum=0.5, weight_decay=0.1),
    lambda p: ag.optimizer_adam(p, lr=0.02),
    lambda p: ag.optimizer_adamw(p, lr=0.02),
]
SCHEDULES: list[Callable[[Any], Any]] = [
    lambda o: ag.lr_scheduler_step(o, 2, 0.5),
    lambda o: ag.lr_scheduler_cosine(o, 7),
    lambda o: ag.lr_scheduler_warmup(o, 3, ag.lr_scheduler_cosine(o, 5)),
]


class Training:
    """A training: all that is trained, and how far it is."""

    def __init__(self, choices: np.random.Generator, x: Any, y: Any) -> None:
        def one_of(made: list[Callable[..., Any]]) -> Callable[..., Any]:
            return made[int(choices.integers(len(made)))]

        self.model = one_of(MODELS)()
        self.optimizer = one_of(OPTIMIZERS)(self.model)
        self.schedule = one_of(SCHEDULES)(self.optimizer)
        self.loader = ag.ag_dataloader(x, y, batch_size=6, seed=3, prefetch=int(choices.integers(3)))
        captured, recompute = choices.random(2) < 0.5
        self.step = ag.ag_capture(self._step, recompute=bool(recompute)) if captured else self._step
        self.batches: Any = iter(())

    def _step(self, x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(self.model(x), y)
        grads = ag.backward(loss)
        ag.clip_grad_norm(self.model, grads, 1.0)
        self.optimizer.step(grads)
        self.optimizer.zero_grad()
        return loss

    def train(self, steps: int) -> list[bytes]:
        """The losses of some steps."""
        losses = []
        for _ in range(steps):
            while (batch := next(self.batches, None)) is None:
                self.batches = iter(self.loader)
            losses.append(self.step(batch.x, batch.y).numpy().tobytes())
            self.schedule.step()
        return losses

    @property
    def parts(self) -> tuple[Any, ...]:
        """The parts that a checkpoint holds."""
        return self.model, self.optimizer, self.schedule, self.loader

    def load(self, path: str) -> None:
        ag.ag_load_checkpoint(path, *self.parts)
        self.batches = iter(())

    def state(self) -> dict[str, Any]:
        """Everything that must be equal."""
        model, optimizer, schedule, loader = (part.state_dict() for part in self.parts)
        arrays = {f"model.{k}": v.tobytes() for k, v in model.items()} | {
            f"optimizer.{k}": np.asarray(v).tobytes() for k, v in optimizer.items()
        }
        return {**arrays, "rate": self.optimizer.lr, "schedule": schedule, "loader": loader}


def resumed(seed: int, device: str) -> str:
    """Resume a random training from its checkpoint; return what differs, or nothing if all is equal."""
    gc.collect()  # an optimizer of 16-bit parameters that is garbage still scales the losses of its device
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(3, 20)).astype(np.float32), rng.normal(size=(2, 20)).astype(np.float32)
    before = ag.ag_dtype(str(rng.choice(["f32", "f32", "f16", "bf16"])))
    try:
        with ag.ag_device(device), TemporaryDirectory() as folder:
            ag.ag_seed(seed)
            first, path = Training(np.random.default_rng(seed), x, y), str(Path(folder, "run.safetensors"))
            first.train(int(rng.integers(0, 9)))
            if rng.random() < 0.5:
                first.optimizer.lr = 0.013
            if rng.random() < 0.5 and hasattr(first.optimizer, "beta1"):
                first.optimizer.beta1 = 0.6
            ag.ag_save_checkpoint(path, *first.parts)
            count = int(rng.integers(1, 8))
            wanted = first.train(count), first.state()
            ag.ag_seed(999)
            other = Training(np.random.default_rng(seed), x, y)
            other.train(int(rng.integers(0, 5)))
            for who, training in (("another training", other), ("the same training", first)):
                training.load(path)
                found = training.train(count), training.state()
                if found != wanted:
                    names = [k for k in wanted[1] if wanted[1][k] != found[1][k]]
                    return f"{who} goes on otherwise after a load: {names}"
    finally:
        ag.ag_dtype(before)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=200)
    given = parser.parse_args()
    found = {seed: text for seed in range(given.count) if (text := resumed(seed, given.device))}
    for seed, text in found.items():
        print(f"seed {seed}: {text}")
    print(f"{given.device}: {given.count} histories, {len(found)} differ")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
