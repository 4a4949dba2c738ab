"""Words become vectors by the words around them: skip-grams with negative sampling (word2vec)."""

import re
import sys
from collections import Counter

import numpy as np

import ag
from ag import nn, ops, optim

WORDS = re.findall(r"[a-z]+", ag.data.load_shakespeare().lower())
COUNTS = Counter(WORDS).most_common(500)
VOCABULARY = [word for word, _ in COUNTS]
WIDTH, WINDOW, NEGATIVES, BATCH = 32, 2, 8, 256


class SkipGram(nn.Layer):
    """From centers (1, batch) and others (n, batch) to logits (n, batch) of whether they are neighbours."""

    def __init__(self) -> None:
        self.centers, self.others = nn.Embedding(len(VOCABULARY), WIDTH), nn.Embedding(len(VOCABULARY), WIDTH)

    def forward(self, centers, others):
        return ops.sum(self.centers(centers) * self.others(others), 0)


def step(model, optimizer, centers, others, neighbours):
    with ag.with_grad_tape():
        loss = ops.binary_cross_entropy_with_logits(model(centers, others), neighbours)
    optimizer.step(ag.backward(loss))
    optimizer.zero_grad()
    return loss


def pairs():
    """Words and their neighbours, both (n,), of the text without its rare words and most of its most frequent ones."""
    rng, number = np.random.default_rng(0), {word: i for i, word in enumerate(VOCABULARY)}
    ids = np.array([number[w] for w in WORDS if w in number])
    frequency = np.array([count for _, count in COUNTS]) / len(WORDS)
    ids = ids[rng.random(len(ids)) < np.sqrt(2e-3 / frequency[ids])]
    steps = [k for k in range(-WINDOW, WINDOW + 1) if k]
    inside = ids[WINDOW:-WINDOW]
    return np.tile(inside, len(steps)), np.concatenate([np.roll(ids, -k)[WINDOW:-WINDOW] for k in steps])


def train(steps):
    ag.ag_seed(0)
    model, rng, losses = SkipGram(), np.random.default_rng(0), []
    words, around = pairs()
    often = np.array([count for _, count in COUNTS]) ** 0.75
    optimizer = optim.Adam(model, lr=5e-3)
    captured = ag.ag_capture(lambda *batch: step(model, optimizer, *batch))
    neighbours = np.array([[1.0]] + [[0.0]] * NEGATIVES, "f").repeat(BATCH, 1)
    for _ in range(steps):
        at = rng.integers(len(words), size=BATCH)
        drawn = rng.choice(len(often), (NEGATIVES, BATCH), p=often / often.sum())
        losses.append(captured(words[None, at], np.concatenate([around[None, at], drawn]), neighbours).item())
    return model, losses


if __name__ == "__main__":
    model, losses = train(int(sys.argv[1]) if sys.argv[1:] else 3000)
    print(f"loss: {losses[0]:.3f} at first, {np.mean(losses[-100:]):.3f} after {len(losses)} steps")
    vectors = ops.normalize(model.centers.weight).numpy()
    for word in ("father", "love", "she", "thou", "we", "court", "duke", "is"):
        nearest = np.argsort(-vectors.T @ vectors[:, VOCABULARY.index(word)])[1:5]
        print(f"{word:8} {', '.join(VOCABULARY[i] for i in nearest)}")
    if np.mean(losses[-100:]) > losses[0] / 4:
        sys.exit("FAILED: the loss must fall below a quarter of what it was")
