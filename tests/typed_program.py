"""A user's program of 100 lines, for type checkers; `tests/test_types.py` runs it, too."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

import ag
from ag import data, nn, ops, optim

Floats = npt.NDArray[np.float32]


class Block(nn.Layer):
    """Two linear layers with a skip connection."""

    def __init__(self, width: int, rate: float = 0.1) -> None:
        self.first = nn.Linear(width, 2 * width, activation="gelu")
        self.second = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(rate)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return self.norm(x + self.drop(self.second(self.first(x))))


class Classifier(nn.Layer):
    def __init__(self, features: int, classes: int, width: int = 16, blocks: int = 2) -> None:
        self.embed = nn.Linear(features, width)
        self.blocks = [Block(width) for _ in range(blocks)]
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, classes)
        self.scale = ag.ag_param([1.0])

    def forward(self, x: ag.Tensor, temperature: float = 1.0) -> ag.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h)) * self.scale / temperature


class TwoInputs(nn.Layer):
    def __init__(self) -> None:
        self.left, self.right = nn.Linear(2, 3), nn.Linear(4, 3, bias=False)

    def forward(self, a: ag.Tensor, b: ag.Tensor) -> ag.Tensor:
        return ops.relu(self.left(a) + self.right(b))


def accuracy(model: nn.Layer, x: Floats, labels: npt.NDArray[np.int64]) -> float:
    nn.eval(model)
    with ag.no_grad():
        scores = model(ag.ag_tensor(x))
    nn.train(model)
    return float((scores.numpy().argmax(axis=0) == labels).mean())


def batches(x: Floats, labels: npt.NDArray[np.int64]) -> Iterator[tuple[ag.Tensor, npt.NDArray[np.int64]]]:
    loader = data.DataLoader(x, labels, batch_size=32, seed=1)
    for batch in loader:
        yield batch.x, batch.y


def train(model: Classifier, optimizer: optim.Optimizer, schedule: optim.Schedule, x: Floats,
          labels: npt.NDArray[np.int64], epochs: int) -> list[float]:
    history: list[float] = []
    for _ in range(epochs):
        for inputs, targets in data.DataLoader(x, labels, batch_size=32, seed=1):
            with ag.with_grad_tape():
                loss = ops.softmax_cross_entropy_loss(model(inputs), targets)
            gradients = ag.backward(loss)
            optimizer.step(gradients)
            optimizer.zero_grad()
            schedule.step()
            history.append(loss.item())
        print(f"loss {history[-1]:.4f}, rate {schedule.get_lr():.3g}")
    return history


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 200)).astype(np.float32)
    labels = (x[0] * x[1] > 0).astype(np.int64)
    model = Classifier(2, 2)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    schedule = optim.CosineSchedule(optimizer, T_max=50)
    best, best_accuracy = copy.deepcopy(model), 0.0
    history = train(model, optimizer, schedule, x, labels, 3)
    if (now := accuracy(model, x, labels)) > best_accuracy:
        best, best_accuracy = copy.deepcopy(model), now
    again: Classifier = pickle.loads(pickle.dumps(best))
    probabilities = ops.softmax(again(ag.ag_tensor(x)), axis=0)
    total: ag.Tensor = ops.sum(probabilities, axis=0, keepdims=True)
    means = probabilities.mean(axis=1)
    mask: ag.Tensor = (probabilities > 0.2) & ~ops.isnan(probabilities)
    chosen: ag.Tensor = ops.where(mask, ops.softplus(probabilities, 2.0), 0.0).sin().maximum(0.0).amax(dim=0)
    assert ops.var(chosen, dim=0, correction=0).shape == ()
    pair = TwoInputs()(ag.ag_tensor(x[:, :1]), ag.ag_tensor(np.ones((4, 1), np.float32)))
    sequence = nn.Sequential(nn.Linear(2, 4, activation="relu"), nn.Linear(4, 1))
    value: ag.Tensor = sequence(x)

    def score(inputs: ag.Tensor) -> ag.Tensor:
        return ops.mean(sequence(inputs))

    step = ag.ag_capture(score)
    print(total.shape, means.shape, pair.shape, value.shape, len(history), step(ag.ag_tensor(x)))
    result = ag.dp_train(lambda: nn.Linear(2, 2), [x[:, i : i + 1] for i in range(8)], ops.mse_loss, n_iter=2,
                         devices=["cpu"], verbose=False)
    print(result.loss, best_accuracy)


if __name__ == "__main__":
    main()
