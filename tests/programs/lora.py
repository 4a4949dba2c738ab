"""Program 26, LoRA (mlx-examples lora): a frozen transformer whose queries and values learn products of low rank."""

from __future__ import annotations

from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops

WORDS, WIDTH, HEADS = 24, 16, 2


class LoRALinear(ag.Layer):
    def __init__(self, linear: nn.Linear, rank: int = 4, scale: float = 2.0) -> None:
        self.linear, self.scale = linear, scale
        self.lora_a = nn.Linear(linear.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, linear.out_features, bias=False)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return self.linear(x) + self.scale * self.lora_b(self.lora_a(x))


class Block(ag.Layer):
    def __init__(self) -> None:
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 32, bias=False), nn.Linear(32, WIDTH, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        y = self.norm1(x)
        y = ops.attention(self.q_proj(y), self.k_proj(y), self.v_proj(y), causal=True, heads=HEADS)
        x = x + self.o_proj(y)
        return x + self.down(ops.silu(self.up(self.norm2(x))))


def program(draw: Draw) -> tuple[object, Batches]:
    blocks = [Block(), Block()]
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.RMSNorm(WIDTH, eps=1e-5), nn.Linear(WIDTH, WORDS))
    fill(model, draw)
    model.freeze()
    for block in blocks:
        block.q_proj, block.v_proj = LoRALinear(block.q_proj), LoRALinear(block.v_proj)
        for lora in (block.q_proj, block.v_proj):
            fill(lora, draw)
            nn.init.zeros_(lora.lora_b.W)
    assert len(model.parameters()) == 8
    optimizer = ag.optim.Adam(model.parameters(), lr=1e-2)
    words, lengths = draw.ids(WORDS, 6, 9, 4), draw.ids(5, 6, 1, 4) + 4

    def step(words: Array, following: Array, lengths: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            counts = ops.arange(following.shape[0], dtype="f32")[:, None] < lengths
            losses = ops.cross_entropy(model(words), following, reduction="none") * counts
            loss = ops.sum(losses) / ops.sum(counts)
        optimizer.step(ag.backward(loss))
        return loss

    return step, list(zip(words[:, :-1], words[:, 1:], lengths, strict=True))
