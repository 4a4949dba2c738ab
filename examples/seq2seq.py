"""A decoder attends to what an encoder made of a word, and spells the word backwards (Bahdanau's attention)."""

import sys

import numpy as np

import ag
from ag import nn, ops, optim

WORDS = sorted({w for w in ag.data.load_shakespeare().lower().split() if w.isalpha() and 3 <= len(w) <= 10})
WORDS = np.random.default_rng(0).permutation(WORDS).tolist()  # the first 200 are held out
WIDTH, LONGEST, END, BATCH = 64, 11, 26, 64  # letters are 0 to 25


class AdditiveAttention(nn.Layer):
    def __init__(self) -> None:
        self.W_q, self.W_k, self.w_v = (nn.Linear(WIDTH, n, bias=False) for n in (WIDTH, WIDTH, 1))

    def forward(self, queries, keys, seen):  # (width, queries, batch), (width, keys, batch), a mask (keys, 1, batch)
        scores = self.w_v(ops.tanh(self.W_k(keys)[:, :, None] + self.W_q(queries)[:, None]))[0]
        weights = ops.softmax(ops.where(seen, scores, -1e6))  # (keys, queries, batch)
        return ops.einsum("wkb,kqb->wqb", keys, weights)


class Seq2Seq(nn.Layer):  # from letters, and the answer so far, (time, batch), to logits (letters, time, batch)
    def __init__(self) -> None:
        self.read, self.written, self.places = (nn.Embedding(n, WIDTH) for n in (END + 1, END + 1, LONGEST))
        self.encoder = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.attention = AdditiveAttention()
        self.decoder = nn.Sequential(nn.Linear(2 * WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, END + 1))

    def forward(self, word, lengths, so_far):
        places = self.places.weight[:, :, None]
        seen = ops.arange(LONGEST, dtype="f32")[:, None, None] < lengths
        keys = self.encoder(self.read(word) + places)
        whole = ops.sum(keys * seen[:, 0], 1, keepdim=True) / lengths  # the state that the decoder begins with
        queries = self.written(so_far) + places + whole
        return self.decoder(ops.concat([queries, self.attention(queries, keys, seen)]))


def step(model, optimizer, word, lengths, so_far, following):
    with ag.with_grad_tape():
        loss = ops.cross_entropy(model(word, lengths, so_far), following)  # -100 does not count
    optimizer.step(ag.backward(loss))
    optimizer.zero_grad()
    return loss


def batch_of(words):
    """Letters of words and of their answers, each (time, batch): an end, and then what fills the rest."""
    rows = [([ord(c) - 97 for c in w], LONGEST - len(w)) for w in words]
    word, answer = (np.array([a[::way] + [END] * n for a, n in rows]).T for way in (1, -1))
    following = np.array([a[::-1] + [END] + [-100] * (n - 1) for a, n in rows]).T
    return word, np.array([[len(w) for w in words]], "f"), np.roll(answer, 1, 0), following


def spell(model, words):  # letter by letter, each the likeliest one
    word, lengths, so_far, _ = batch_of(words)
    for t in range(LONGEST - 1):
        so_far[t + 1] = model(word, lengths, so_far).argmax(0).numpy()[t]
    return ["".join(chr(97 + i) for i in ids[1:]).partition("{")[0] for ids in so_far.T]


def train(steps):
    ag.ag_seed(0)
    model, rng, losses = Seq2Seq(), np.random.default_rng(0), []
    optimizer = optim.Adam(model, lr=3e-3)
    captured = ag.ag_capture(lambda *batch: step(model, optimizer, *batch))
    for _ in range(steps):
        losses.append(captured(*batch_of([WORDS[i] for i in rng.integers(200, len(WORDS), BATCH)])).item())
    return model, losses


if __name__ == "__main__":
    model, losses = train(int(sys.argv[1]) if sys.argv[1:] else 1000)
    found = spell(model, WORDS[:200])
    right = np.mean([a == b[::-1] for a, b in zip(found, WORDS, strict=False)])
    print(f"loss per letter: {losses[0]:.3f} at first, {np.mean(losses[-20:]):.3f} after {len(losses)} steps")
    print(f"{right:.0%} of 200 words held out are right, such as {', '.join(found[:5])}")
    sys.exit("FAILED: 90 % must be right" if right < 0.9 else 0)
