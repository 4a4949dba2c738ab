from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional

CLASSES, SHAPES = 2, [(s, r) for s, r in ((0.3, 1.0), (0.45, 1.0), (0.3, 2.0), (0.3, 0.5))]


def anchors_of(side: int) -> np.ndarray:
    at = (np.arange(side) + 0.5) / side
    return np.array([(x, y, s * sqrt(r), s / sqrt(r)) for y in at for x in at for s, r in SHAPES], "f")


def corners(boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2


def targets(anchors: torch.Tensor, boxes: torch.Tensor, classes: torch.Tensor) -> tuple[torch.Tensor, ...]:
    (low_a, high_a), (low_b, high_b) = corners(anchors[:, None]), corners(boxes[:, None, 1:])
    both = (torch.minimum(high_a, high_b) - torch.maximum(low_a, low_b)).clamp(0).prod(-1)
    overlap = both / ((high_a - low_a).prod(-1) + (high_b - low_b).prod(-1) - both)
    overlap = overlap + functional.one_hot(overlap.argmax(1), overlap.shape[1]).mT
    box = torch.cat([torch.full((*overlap.shape[:2], 1), 0.5), overlap], 2).argmax(2)
    own = torch.take_along_dim(boxes, box[..., None], 1)
    offsets = torch.cat([10 * (own[..., :2] - anchors[:, :2]) / anchors[:, 2:],
                         5 * (own[..., 2:] / anchors[:, 2:]).log()], -1)
    labels = classes.gather(1, box)
    return labels, offsets, labels[..., None] > 0


def down_sample(into: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(),
                         nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2))


class TinySSD(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ModuleList([nn.Sequential(down_sample(3, 8), down_sample(8, 16)), down_sample(16, 16),
                                     nn.AdaptiveMaxPool2d(1)])
        self.classes = nn.ModuleList([nn.Conv2d(16, len(SHAPES) * (CLASSES + 1), 3, padding=1) for _ in range(3)])
        self.boxes = nn.ModuleList([nn.Conv2d(16, len(SHAPES) * 4, 3, padding=1) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[list[torch.Tensor], ...] = ([], [])
        for scale, *heads in zip(self.scales, self.classes, self.boxes, strict=True):
            x = scale(x)
            for parts, head, numbers in zip(found, heads, (CLASSES + 1, 4), strict=True):
                parts.append(head(x).permute(0, 2, 3, 1).reshape(len(x), -1, numbers))
        return torch.cat(found[0], 1), torch.cat(found[1], 1)


def program(draw: Draw) -> tuple[object, Batches]:
    model = TinySSD()
    for p in model.parameters():
        p.data = torch.tensor(draw(*p.shape, scale=0.3) if p.ndim > 1 else draw(*p.shape, 1, scale=0.3)[:, 0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, weight_decay=5e-4)
    anchors = torch.tensor(np.concatenate([anchors_of(side) for side in (4, 2, 1)]))

    def step(images: object, boxes: object, classes: object) -> float:
        labels, offsets, taken = targets(anchors, torch.tensor(boxes).permute(2, 1, 0), torch.tensor(classes).T)
        logits, found = model(torch.tensor(images).movedim(-1, 0))
        loss = functional.cross_entropy(logits.mT, labels, reduction="none").mean(1)
        near = functional.smooth_l1_loss(found * taken, offsets * taken, reduction="none").mean((1, 2))
        loss = (loss + near).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    boxes = np.concatenate([draw.uniform(2, 4, 4) * 0.6 + 0.2, draw.uniform(2, 4, 4) * 0.3 + 0.2])
    classes = np.concatenate([np.zeros((1, 4), int), draw.ids(CLASSES, 3, 4) + 1])
    return step, [(draw(3, 16, 16, 4, scale=1.0), boxes, classes)] * 6
