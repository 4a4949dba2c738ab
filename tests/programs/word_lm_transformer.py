"""Program 11, PyTorch's word language model: encoder layers under a mask of later words, trained by clipped SGD."""

from __future__ import annotations

from math import log, sqrt

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops

VOCABULARY, WIDTH, HEADS, HIDDEN, BLOCK = 30, 16, 2, 32, 6


class PositionalEncoding(ag.Layer):
    def __init__(self) -> None:
        rates = ops.exp(ops.arange(0, WIDTH, 2, dtype="f32") * (-log(10000.0) / WIDTH))
        angles = ops.outer(rates, ops.arange(BLOCK, dtype="f32"))
        self.pe = ops.stack([angles.sin(), angles.cos()], 1).reshape(WIDTH, BLOCK, 1)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return x + self.pe[:, : x.shape[1]]


class EncoderLayer(ag.Layer):
    def __init__(self) -> None:
        self.self_attn = nn.MultiheadAttention(WIDTH, HEADS, qkv_bias=True)
        self.linear1, self.linear2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: ag.Tensor, mask: ag.Tensor) -> ag.Tensor:
        x = self.norm1(x + self.self_attn(x, attn_bias=mask))
        return self.norm2(x + self.linear2(self.linear1(x).relu()))


class TransformerModel(ag.Layer):
    def __init__(self) -> None:
        self.input_emb, self.pos_encoder = nn.Embedding(VOCABULARY, WIDTH), PositionalEncoding()
        self.layers = [EncoderLayer(), EncoderLayer()]
        self.decoder = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: ag.Tensor) -> ag.Tensor:
        mask = ops.ones(BLOCK, BLOCK).tril().log()
        x = self.pos_encoder(self.input_emb(ids) * sqrt(WIDTH))
        for layer in self.layers:
            x = layer(x, mask)
        return self.decoder(x).log_softmax()


def program(draw: Draw) -> tuple[object, Batches]:
    model = TransformerModel()
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    text = draw.ids(VOCABULARY, 6 * BLOCK + 1, 4)

    def step(ids: ag.Tensor, targets: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.nll_loss(model(ids), targets)
        grads = ag.backward(loss)
        ag.clip_grad_norm(model, grads, 0.25)
        for p in model.parameters().values():
            p -= 2.0 * grads[p]
        return loss

    return step, [(text[i : i + BLOCK], text[i + 1 : i + 1 + BLOCK]) for i in range(0, 6 * BLOCK, BLOCK)]
