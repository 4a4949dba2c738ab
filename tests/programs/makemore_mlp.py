"""Program 2, makemore's MLP: the embeddings of the last characters, side by side, through a hidden layer of tanh."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops

VOCABULARY, BLOCK = 27, 4


class MLP(ag.Layer):
    def __init__(self) -> None:
        self.wte = nn.Embedding(VOCABULARY + 1, 8)  # the last is <BLANK>, before the beginning
        self.mlp = nn.Sequential(nn.Linear(8 * BLOCK, 32), nn.Tanh(), nn.Linear(32, VOCABULARY))

    def forward(self, ids: ag.Tensor) -> ag.Tensor:
        ids, embeddings = ag.ag_tensor(ids, dtype="i32"), []
        for _ in range(BLOCK):
            embeddings.append(self.wte(ids))
            ids = ops.concat([ops.full((1, ids.shape[1]), VOCABULARY, dtype="i32"), ids[:-1]])
        return self.mlp(ops.concat(embeddings))


def program(draw: Draw) -> tuple[object, Batches]:
    model = MLP()
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.AdamW(model, lr=5e-3, beta2=0.99)

    def step(ids: ag.Tensor, targets: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(ids), targets, ignore_index=-1)
        optimizer.step(ag.backward(loss))
        return loss

    words = [draw.ids(VOCABULARY + 1, 6, 8) - 1 for _ in range(6)]  # in targets, -1 is behind the end
    return step, [(abs(word), word) for word in words]
