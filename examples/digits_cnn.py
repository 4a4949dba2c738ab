"""A convolutional network that learns to read handwritten digits; it fails when it reads less than 95 % correctly."""

import argparse
import sys

import numpy as np

import ag
from ag import data, nn, optim, training


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (1, 8, 8, 1797) with values from 0 to 1, and their digits (1797,), in one fixed random order."""
    x, y = data.load_digits()
    order = np.random.default_rng(0).permutation(len(y))
    return x[order].reshape(-1, 1, 8, 8).transpose(1, 2, 3, 0) / 16, y[order]


def make_model() -> nn.Layer:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, activation="relu"), nn.BatchNorm(16), nn.MaxPool(2),  # 16 x 4 x 4
        nn.Conv2d(16, 32, 3, padding=1, activation="relu"), nn.BatchNorm(32), nn.MaxPool(2),  # 32 x 2 x 2
        nn.Flatten(), nn.Linear(32 * 2 * 2, 10))


class Shifted:
    """Images, each moved by up to a pixel down and right, anew every time."""

    def __init__(self, images: np.ndarray, digits: np.ndarray) -> None:
        self.images, self.digits = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1))), digits
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        down, right = self.rng.binomial(2, 0.5, size=2)  # mostly 1, the middle
        return self.images[i, :, down : down + 8, right : right + 8], self.digits[i]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a convolutional network on handwritten digits.")
    parser.add_argument("--device", default="cpu", help="such as vulkan:0 or gpu (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the images at most (default: %(default)s)")
    options = parser.parse_args()
    images, digits = load_digits()
    images = np.moveaxis(images, -1, 0)  # `fit` takes the samples on the first axis
    test, valid, train = zip(np.split(images, [359, 540]), np.split(digits, [359, 540]), strict=True)
    loader = data.DataLoader(Shifted(*train), batch_size=32)
    ag.ag_seed(0)
    model = make_model()
    history = ag.fit(
        model, loader, valid, options.epochs, metrics=["accuracy"], lr=5e-3, devices=[options.device],
        scheduler=lambda optimizer: optim.CosineSchedule(optimizer, T_max=options.epochs * len(loader)),
        callbacks=[training.EarlyStopping(patience=4), training.BestWeights()])
    accuracy = training.evaluate(model, test, metrics=["accuracy"])["accuracy"]
    print(f"accuracy on {len(test[0])} digits held out: {accuracy:.3f}, after {sum(history.seconds):.1f} s")
    if accuracy < 0.95:
        sys.exit("FAILED: the accuracy must be at least 0.95")
