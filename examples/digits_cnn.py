"""A convolutional network that reads handwritten digits, 8 x 8 pixels each. Run it as `python examples/digits_cnn.py`.

It fails when it reads less than 95 % of the digits that were held out correctly.
"""

import argparse
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

import ag

DIGITS = Path(__file__).parent / "data" / "digits.csv.gz"
ENOUGH = 0.95


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (1, 8, 8, 1797) with values from 0 to 1, and their digits (1797,), in one fixed random order."""
    rows = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    rows = np.random.default_rng(0).permutation(rows)
    return rows[:, :64].reshape(-1, 1, 8, 8).transpose(1, 2, 3, 0) / 16, rows[:, 64].astype(np.int64)


def make_model() -> ag.Layer:
    return ag.ag_sequential(  # 1 x 8 x 8 pixels
        ag.ag_conv2d_layer(1, 16, 3, padding=1, activation="relu"),
        ag.ag_batch_norm(16),
        ag.ag_max_pool(2),  # 16 x 4 x 4
        ag.ag_conv2d_layer(16, 32, 3, padding=1, activation="relu"),
        ag.ag_batch_norm(32),
        ag.ag_max_pool(2),  # 32 x 2 x 2
        ag.ag_flatten_layer(),
        ag.ag_linear(32 * 2 * 2, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a convolutional network on handwritten digits.")
    parser.add_argument("--device", default="cpu", help="such as vulkan:0 or gpu (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="passes over the images (default: %(default)s)")
    options = parser.parse_args()
    ag.ag_device(options.device)
    ag.ag_seed(0)

    images, digits = load_digits()
    held_out = len(digits) // 5
    loader = ag.ag_dataloader(images[..., held_out:], digits[held_out:], batch_size=32, drop_last=True)
    model = make_model()
    print(model)
    optimizer = ag.optimizer_adam(model, lr=5e-3)
    schedule = ag.lr_scheduler_cosine(optimizer, T_max=options.epochs * len(loader))
    begin = perf_counter()

    @ag.ag_capture  # records the first batch, replays it with the others: drop_last leaves one size
    def step(x, y):
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(x), y)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    for epoch in range(options.epochs):
        losses = []
        for batch in loader.epoch():
            losses.append(step(batch.x, batch.y).item())
            schedule.step()
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")

    guesses = ag.ag_eval(model)(ag.ag_tensor(images[..., :held_out])).numpy().argmax(0)
    accuracy = np.mean(guesses == digits[:held_out])
    print(f"accuracy on {held_out} digits held out: {accuracy:.3f}, after {perf_counter() - begin:.1f} s")
    if accuracy < ENOUGH:
        sys.exit(f"FAILED: the accuracy must be at least {ENOUGH}")


if __name__ == "__main__":
    main()
