"""Jobs of `train_distributed` on one process or a rank of several, whose numbers can be compared."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

import ag
from ag.parallel.comm.comm import Comm

RNG = np.random.default_rng(31)
X = RNG.standard_normal((4, 44)).astype(np.float32)
Y = X[:2] - X[2:]
EPOCHS, STEPS = 3, 12  # four steps per epoch, the last with 8 of 12 samples
Happens = dict[tuple[int, int], Callable[[], None]]  # by rank and call of the loss


def calls(of_loss: dict[int, Callable[[], None]]) -> Happens:
    """Return what befalls the only rank, by the number of the call of the loss."""
    return {(0, call): what for call, what in of_loss.items()}


def layers(norm: bool = False, dropout: bool = False) -> list[ag.Layer]:
    ag.ag_seed(5)
    return [ag.ag_linear(4, 8, activation="tanh"), *([ag.ag_batch_norm(8)] if norm else []),
            *([ag.ag_dropout(0.3)] if dropout else []), ag.ag_linear(8, 2)]


MODELS: dict[str, Callable[[list[str]], Any]] = {
    "data parallel": lambda devices: ag.DataParallel(ag.ag_sequential(layers()), devices),
    "a layer": lambda devices: ag.ag_sequential(layers()),
    "batch norm": lambda devices: ag.DataParallel(ag.ag_sequential(layers(norm=True)), devices),
    "synchronised": lambda devices: ag.DataParallel(ag.SyncBatchNorm.convert(ag.ag_sequential(layers(norm=True))),
                                                    devices),
    "dropout": lambda devices: ag.DataParallel(ag.ag_sequential(layers(dropout=True)), devices),
    "compressed": lambda devices: ag.CompressedDataParallel(ag.ag_sequential(layers()), devices, 0.2, momentum=0.5),
    "everything sent": lambda devices: ag.CompressedDataParallel(ag.ag_sequential(layers()), devices, 1.0),
    "model parallel": lambda devices: ag.ModelParallel(layers(), (devices * 2)[:2]),
    "pipeline": lambda devices: ag.Pipeline(layers(), (devices * 2)[:2]),
}


def batches() -> list[tuple[ag.Tensor, np.ndarray | ag.Tensor]]:
    return [(ag.ag_tensor(X[:, k : k + 12]), ag.ag_tensor(Y[:, k : k + 12])) for k in range(0, 44, 12)]


class Trained:
    """A finished job, or a rank of one; `happens` says what befalls it."""

    def __init__(self, devices: list[str], kind: str = "data parallel", comm: Comm | None = None, data: Any = None,
                 happens: Happens | None = None, seed: int | None = 1, lr: float = 0.02, epochs: int = EPOCHS,
                 home: str | None = None, **options: Any) -> None:
        rank = comm.rank if comm is not None else 0
        self.world = ag.DistributedWorld(devices, comm)
        number = count()

        def loss_fn(out: ag.Tensor, y: Any) -> ag.Tensor:
            (happens or {}).get((rank, next(number)), lambda: None)()
            return ag.ag_mse_loss(out, y)

        with ag.ag_device(home or devices[0]):
            self.model = MODELS[kind](devices)
            self.optimizer = ag.optimizer_sgd(self.model.parameters(), lr=lr * 5) if "sent" in kind or "comp" in kind \
                else ag.optimizer_adam(self.model.parameters(), lr=lr)
            data = ag.ag_dataloader(X, Y, batch_size=12, seed=seed) if data is None else data()
            self.data = data
            self.losses = ag.train_distributed(self.model, data, self.world, loss_fn, self.optimizer, epochs,
                                               **options)

    def everything(self) -> list[Any]:
        """Return what a device that fails must not change, with every bit."""
        return [self.losses, *(x.tobytes() for x in self.model.state_dict().values()),
                *(x.tobytes() for x in self.optimizer.state_dict().values())]

    def numbers(self) -> list[np.ndarray]:
        return [np.array(self.losses), *self.model.state_dict().values()]
