"""A folder of images: split, augmentation, a convolutional network, a confusion matrix, and an ONNX file."""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import ag
from ag import data, nn, training


def write_images(folder: Path, count: int = 1000) -> None:
    """Write digits as PNG files, a folder for each class; in the place of images of your own."""
    pixels, digits = data.load_digits()[:2]
    for i in range(count):
        path = folder / str(digits[i]) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((pixels[i].reshape(8, 8) * (255 / 16)).astype(np.uint8))
        image.resize((18, 18)).save(path)


def shifted(image):
    """Move an image (height, width, 3) by up to a pixel in each direction."""
    down, right = rng.integers(-1, 2, size=2)
    return np.roll(image, (down, right), (0, 1))


if __name__ == "__main__":
    folder, rng = Path(tempfile.mkdtemp()), np.random.default_rng(0)
    write_images(folder / "images")
    images = data.ImageFolder(folder / "images", 16, batch_size=32, seed=0, transform=shifted)
    train, valid = images.split(0.8, seed=0, stratify=True, transforms=(shifted, None))
    print(f"{len(images.classes)} classes; batches {train.next_batch().x.shape}, the samples on the last axis")

    ag.ag_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, activation="relu"), nn.BatchNorm(16), nn.MaxPool(2),
        nn.Conv2d(16, 32, 3, padding=1, activation="relu"), nn.BatchNorm(32), nn.MaxPool(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 4 * 4, 10))
    print(ag.summary(model, (3, 16, 16)))
    history = ag.fit(
        model, train, valid, 12, optimizer="adamw", lr=3e-3, scheduler="cosine", metrics=["accuracy", "f1_macro"],
        callbacks=[training.EarlyStopping(patience=4), training.BestWeights(), training.CSVLog(folder / "log.csv")])
    print(training.confusion_matrix(model, valid))

    ag.export_onnx(model, folder / "digits.onnx", valid)
    print(f"digits.onnx: {(folder / 'digits.onnx').stat().st_size / 1000:.0f} kB, images of shape (N, 3, 16, 16)")
    if max(history["val_accuracy"]) < 0.9:
        sys.exit("FAILED: the accuracy must reach 0.9")
