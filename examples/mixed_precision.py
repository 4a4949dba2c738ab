"""The digits network in 16-bit types: as accurate as in float32. Run it as `python examples/mixed_precision.py`.

Weights, activations and their gradients are stored in 16 bits; sums are made in float32, and the optimizer updates
float32 weights.  It fails when a 16-bit type reads 0.5 % fewer of the held-out digits than float32, over all seeds.
"""

import argparse
import sys
from time import perf_counter

import numpy as np
from digits_cnn import load_digits, make_model

import ag

MOST_WORSE = 0.005


def train(dtype: str, seed: int, epochs: int) -> float:
    """Accuracy on the held-out digits after training in an element type."""
    images, digits = load_digits()
    held_out = len(digits) // 2
    with ag.ag_device(ag.ag_default_device()):
        previous = ag.ag_dtype(dtype)  # what follows is in this type: nothing else changes
        ag.ag_seed(seed)
        loader = ag.ag_dataloader(images[..., held_out:], digits[held_out:], batch_size=32, drop_last=True, seed=seed)
        model = make_model()
        optimizer = ag.optimizer_adam(model, lr=5e-3)
        schedule = ag.lr_scheduler_cosine(optimizer, T_max=epochs * len(loader))

        @ag.ag_capture
        def step(x, y):
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(model(x), y)
            optimizer.step(ag.backward(loss))
            optimizer.zero_grad()
            return loss

        begin = perf_counter()
        for _ in range(epochs):
            for batch in loader.epoch():
                loss = step(batch.x, batch.y)
                schedule.step()
        ag.ag_synchronize()
        seconds = perf_counter() - begin
        guesses = ag.ag_eval(model)(ag.ag_tensor(images[..., :held_out])).numpy().argmax(0)
        ag.ag_dtype(previous)
    accuracy = float(np.mean(guesses == digits[:held_out]))
    stored = ", ".join({p.dtype for p in model.parameters().values()})
    print(f"{dtype:>4}, seed {seed}: accuracy {accuracy:.4f}, last loss {loss.item():.4f}, {seconds:.1f} s, weights in "
          f"{stored}, loss scale {optimizer.loss_scale}, {optimizer.skipped} steps skipped")
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the digits network in float32, bfloat16 and float16.")
    parser.add_argument("--device", default="cpu", help="such as vulkan:0 or gpu (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=6, help="passes over the images (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each type (default: %(default)s)")
    options = parser.parse_args()
    ag.ag_device(options.device)
    means = {dtype: np.mean([train(dtype, seed, options.epochs) for seed in range(options.seeds)])
             for dtype in ("f32", "bf16", "f16")}
    print(", ".join(f"{dtype} {mean:.4f}" for dtype, mean in means.items()))
    if min(means.values()) < means["f32"] - MOST_WORSE:
        sys.exit(f"FAILED: a 16-bit type reads more than {MOST_WORSE:.1%} fewer digits than float32")


if __name__ == "__main__":
    main()
