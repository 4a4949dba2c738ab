"""A small transformer that learns to write like five sonnets; it fails when the loss does not fall by half."""

import argparse
import sys
from pathlib import Path

import numpy as np

import ag

TEXT = (Path(__file__).parent / "data" / "sonnets.txt").read_text("utf-8")
ALPHABET = sorted(set(TEXT))
IDS = np.array([ALPHABET.index(c) for c in TEXT])
WIDTH, HEADS, CONTEXT, BATCH = 64, 4, 32, 16


class Block(ag.Layer):
    """Attention to the characters so far, then a network at each character; both add to what comes in."""

    def __init__(self) -> None:
        self.norm1, self.norm2 = ag.ag_layer_norm(WIDTH), ag.ag_layer_norm(WIDTH)
        self.attention = ag.ag_multihead_attention(WIDTH, HEADS)
        self.mlp = ag.ag_sequential(ag.ag_linear(WIDTH, 4 * WIDTH, activation="gelu"), ag.ag_linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x), causal_mask=True)
        return x + self.mlp(self.norm2(x))


class Transformer(ag.Layer):
    """From ids (time, batch) to logits (characters, time, batch): which character comes next, at each place."""

    def __init__(self) -> None:
        self.characters = ag.ag_embedding(len(ALPHABET), WIDTH)
        self.places = ag.ag_param(np.zeros((WIDTH, CONTEXT, 1)))
        self.layers = ag.ag_sequential(Block(), Block(), ag.ag_layer_norm(WIDTH), ag.ag_linear(WIDTH, len(ALPHABET)))

    def forward(self, ids):
        return self.layers(self.characters(ids) + self.places[:, : len(ids)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a character-level transformer.")
    parser.add_argument("--device", default="cpu", help="such as vulkan:0 or gpu (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps (default: %(default)s)")
    options = parser.parse_args()
    ag.ag_device(options.device)
    ag.ag_seed(0)
    rng = np.random.default_rng(0)

    model = Transformer()
    optimizer = ag.optimizer_adamw(model, lr=5e-3)
    schedule = ag.lr_scheduler_warmup(optimizer, 20, after=ag.lr_scheduler_cosine(optimizer, T_max=options.steps))

    def step(x, y):
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(x), y)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    step, losses = ag.ag_capture(step), []
    for _ in range(options.steps):
        start = rng.integers(len(IDS) - CONTEXT, size=BATCH) + np.arange(CONTEXT)[:, None]  # (time, batch)
        losses.append(step(IDS[start], IDS[start + 1]).item())
        schedule.step()
    first, last = losses[0], np.mean(losses[-10:])
    print(f"loss per character: {first:.3f} at first, {last:.3f} after {options.steps} steps\n")

    written = [ALPHABET.index(c) for c in "Shall I "]
    for _ in range(200):
        logits = model(np.array(written[-CONTEXT:])[:, None])[:, -1, 0].numpy()
        written.append(int(np.argmax(logits + rng.gumbel(size=logits.shape))))  # a draw from softmax(logits)
    print("".join(ALPHABET[i] for i in written))
    if last > first / 2:
        sys.exit("FAILED: the loss must fall below half of what it was")


if __name__ == "__main__":
    main()
