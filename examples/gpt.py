"""A GPT learns to write like a play, character by character, and writes with a cache of keys and values."""

import sys

import numpy as np

import ag
from ag import nn, ops, optim

TEXT = ag.data.load_shakespeare()
ALPHABET = sorted(set(TEXT))
IDS = np.array([ALPHABET.index(c) for c in TEXT])
WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 64, 4, 2, 64, 16  # as nanoGPT, but smaller


class Block(nn.Layer):
    def __init__(self, layer: int) -> None:
        self.layer, self.norm1, self.norm2 = layer, nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, cache):
        q, k, v = ops.chunk(self.qkv(self.norm1(x)), 3)
        k, v, mask = (k, v, None) if cache is None else cache.append(k, v, self.layer)
        x = x + self.out(ops.attention(q, k, v, causal=cache is None, heads=HEADS, attn_mask=mask))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Layer):  # from ids (time, batch) to logits (characters, time, batch) of the character that follows
    def __init__(self) -> None:
        self.characters, self.places = nn.Embedding(len(ALPHABET), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.norm = [Block(layer) for layer in range(LAYERS)], nn.LayerNorm(WIDTH)

    def forward(self, ids, cache=None):
        time = len(ids)
        x = self.characters(ids) + self.places(ops.arange(time)[:, None] if cache is None else cache.advance(time))
        for block in self.blocks:
            x = block(x, cache)
        return self.characters.weight.T @ self.norm(x)  # one table for what comes in and goes out


def step(model, optimizer, ids, following):
    with ag.with_grad_tape():
        loss = ops.cross_entropy(model(ids), following)
    ag.clip_grad_norm(model, grads := ag.backward(loss), 1.0)
    optimizer.step(grads)
    optimizer.zero_grad()
    return loss


def train(steps):
    ag.ag_seed(0)
    model, rng, losses = GPT(), np.random.default_rng(0), []
    for table in (model.characters, model.places):
        nn.init.normal_(table.weight, std=0.02)
    optimizer = optim.AdamW(model, lr=5e-3, beta2=0.95, weight_decay=0.1)
    schedule = optim.CosineSchedule(optimizer, T_max=steps)
    captured = ag.ag_capture(lambda *batch: step(model, optimizer, *batch))
    for _ in range(steps):
        at = rng.integers(len(IDS) - CONTEXT, size=BATCH) + np.arange(CONTEXT)[:, None]
        losses.append(captured(IDS[at], IDS[at + 1]).item())
        schedule.step()
    return model, losses


def write(model, begin, temperature=0.6):
    cache, ids = nn.StaticCache(LAYERS, WIDTH, CONTEXT), [ALPHABET.index(c) for c in begin]
    draw = ag.ag_capture(lambda ids: ops.multinomial(ops.softmax(model(ids, cache)[:, -1] / temperature), 1, True))
    new = np.array(ids)[:, None]
    while cache.positions + len(new) <= CONTEXT:  # after the beginning, one character at a time
        new = draw(new)
        ids.append(new.item())
    return "".join(ALPHABET[i] for i in ids)


if __name__ == "__main__":
    model, losses = train(int(sys.argv[1]) if sys.argv[1:] else 1000)
    print(f"loss per character: {losses[0]:.3f} at first, {np.mean(losses[-20:]):.3f} after {len(losses)} steps")
    print(*(write(model, begin) for begin in ("ROSALIND. I ", "ORLANDO. My ", "What is the ")), sep="\n---\n")
    sys.exit("FAILED: the loss must fall below half of what it was" if np.mean(losses[-20:]) > losses[0] / 2 else 0)
