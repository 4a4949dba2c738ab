"""A small transformer that learns to write like five sonnets; it fails when the loss does not fall by half."""

import argparse
import sys

import numpy as np

import ag
from ag import data, nn, ops, optim

TEXT = data.load_sonnets()
ALPHABET = sorted(set(TEXT))
IDS = np.array([ALPHABET.index(c) for c in TEXT])
WIDTH, HEADS, CONTEXT = 64, 4, 32


class Block(nn.Layer):  # attention to the characters so far, then a network at each; both add to what comes in
    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH, activation="gelu"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x), causal_mask=True)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Layer):  # from ids (time, batch) to logits (characters, time, batch) of the character that follows
    def __init__(self) -> None:
        self.characters = nn.Embedding(len(ALPHABET), WIDTH)
        self.places = ag.ag_param(np.zeros((WIDTH, CONTEXT, 1)))
        self.layers = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET)))

    def forward(self, ids):
        return self.layers(self.characters(ids) + self.places[:, : len(ids)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a character-level transformer.")
    parser.add_argument("--device", default="cpu", help="such as vulkan:0 or gpu (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps (default: %(default)s)")
    options = parser.parse_args()
    data = [(IDS[i : i + CONTEXT], IDS[i + 1 : i + 1 + CONTEXT]) for i in range(len(IDS) - CONTEXT)]
    result = ag.dp_train(
        Transformer, data, ops.softmax_cross_entropy_loss, lambda model, pair: model(pair[0]), lambda pair: pair[1],
        devices=[options.device], micro_batch=16, n_iter=options.steps, seed=0, verbose=False,
        optimizer=lambda params: optim.AdamW(params, lr=5e-3),
        scheduler=lambda opt: optim.WarmupSchedule(opt, 20, after=optim.CosineSchedule(opt, T_max=options.steps)))
    first, last = result.loss_history[0], np.mean(result.loss_history[-10:])
    print(f"loss per character: {first:.3f} at first, {last:.3f} after {options.steps} steps\n")

    rng, written = np.random.default_rng(0), [ALPHABET.index(c) for c in "Shall I "]
    for _ in range(200):
        logits = result.model(np.array(written[-CONTEXT:])[:, None])[:, -1, 0].numpy()
        written.append(int(np.argmax(logits + 0.5 * rng.gumbel(size=logits.shape))))  # a draw at temperature 0.5
    print("".join(ALPHABET[i] for i in written))
    if last > first / 2:
        sys.exit("FAILED: the loss must fall below half of what it was")
