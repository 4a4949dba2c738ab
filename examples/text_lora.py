"""A small GPT learns to write like the sonnets; LoRA by hand then fits it to another text; the base stays as it is."""

import sys

import numpy as np

import ag
from ag import nn, ops

TEXT = ag.data.load_sonnets()
ALPHABET = sorted(set(TEXT + TEXT.upper()))
WIDTH, CONTEXT, RANK = 64, 32, 8


class LoRA(nn.Layer):  # a linear layer that stays as it is, plus a product of two small matrices that learns
    def __init__(self, base: nn.Layer) -> None:
        self.base, self.A = base, nn.Linear(base.W.shape[1], RANK, bias=False)
        self.B = ag.ag_param(np.zeros((base.W.shape[0], RANK)))

    def forward(self, x):
        return self.base(x) + self.B @ self.A(x)


class Block(nn.Layer):
    def __init__(self) -> None:
        self.norms, self.attention = [nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)], nn.MultiheadAttention(WIDTH, 4)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x), causal_mask=True)
        return x + self.down(ops.gelu(self.up(self.norms[1](x))))


class GPT(nn.Layer):  # ids (time, batch) -> logits (characters, time, batch)
    def __init__(self) -> None:
        self.characters, self.head = nn.Embedding(len(ALPHABET), WIDTH), nn.Linear(WIDTH, len(ALPHABET))
        self.places, self.layers = ag.ag_param(np.zeros((WIDTH, CONTEXT, 1))), nn.Sequential(Block(), Block())

    def forward(self, ids):
        return self.head(self.layers(self.characters(ids) + self.places[:, : len(ids)]))


def train(model: nn.Layer, text: str, lr: float) -> list[float]:  # losses per character, by epoch
    windows = np.lib.stride_tricks.sliding_window_view([ALPHABET.index(c) for c in text], CONTEXT + 1)
    return ag.fit(model, (windows[:, :-1], windows[:, 1:]), epochs=2, batch_size=32, lr=lr, verbose=False)["loss"]


if __name__ == "__main__":
    ag.ag_seed(0)
    model = GPT()
    print("trained, loss per character by epoch:", np.round(train(model, TEXT, 3e-3), 2))
    model.freeze()
    base = [(p, p.numpy()) for p in model.parameters().values()]
    model.head = LoRA(model.head)
    for block in model.layers:
        block.up, block.down = LoRA(block.up), LoRA(block.down)
    losses = train(model, TEXT.upper(), 1e-2)  # to write in capitals
    print(sum(p.size for p in model.parameters().values() if p.requires_grad), "numbers adapted:", np.round(losses, 2))
    if losses[1] > 2.5 or not all(np.array_equal(p.numpy(), before) for p, before in base):
        sys.exit("FAILED: the loss must fall below 2.5, and the base stay as it is")
