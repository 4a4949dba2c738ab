from __future__ import annotations

from math import log, sqrt

import torch
from programs.drawn import Batches, Draw
from programs.word_lm_transformer import BLOCK, HEADS, HIDDEN, VOCABULARY, WIDTH
from torch import nn


class PositionalEncoding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(BLOCK).unsqueeze(1) * torch.exp(torch.arange(0, WIDTH, 2) * (-log(10000.0) / WIDTH))
        self.register_buffer("pe", torch.stack([angles.sin(), angles.cos()], 2).view(BLOCK, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.pe[: x.shape[1]]


class TransformerModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_emb, self.pos_encoder = nn.Embedding(VOCABULARY, WIDTH), PositionalEncoding()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(BLOCK, BLOCK).tril().log()
        x = self.pos_encoder(self.input_emb(ids) * sqrt(WIDTH))
        return self.decoder(self.encoder(x, mask)).log_softmax(-1)


def program(draw: Draw) -> tuple[object, Batches]:
    model = TransformerModel()
    state = model.state_dict()
    state["input_emb.weight"][:] = torch.tensor(draw(WIDTH, VOCABULARY).T)
    for i in range(2):
        q, k, v, out = (draw(WIDTH, WIDTH) for _ in range(4))
        weights = {"in_proj_weight": [q, k, v], "in_proj_bias": [draw(WIDTH) for _ in range(3)],
                   "out_proj.weight": [out], "out_proj.bias": [draw(WIDTH)]}
        for name, parts in weights.items():
            state[f"encoder.layers.{i}.self_attn.{name}"][:] = torch.cat([torch.tensor(part) for part in parts])
        for name in ("linear1", "linear2", "norm1", "norm2"):
            for p in (state[f"encoder.layers.{i}.{name}.weight"], state[f"encoder.layers.{i}.{name}.bias"]):
                p[:] = torch.tensor(draw(*p.shape))
    for p in (state["decoder.weight"], state["decoder.bias"]):
        p[:] = torch.tensor(draw(*p.shape))
    text = draw.ids(VOCABULARY, 6 * BLOCK + 1, 4)

    def step(ids: object, targets: object) -> float:
        scores, targets = model(torch.tensor(ids).T), torch.tensor(targets).T
        loss = nn.functional.nll_loss(scores.reshape(-1, VOCABULARY), targets.reshape(-1))
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-2.0)
        return loss.item()

    return step, [(text[i : i + BLOCK], text[i + 1 : i + 1 + BLOCK]) for i in range(0, 6 * BLOCK, BLOCK)]
