"""Program 43, a single-shot detector (d2l chapter_computer-vision/ssd.md): classes and offsets of anchors.

An anchor is of the box that it overlaps most, by half at least, or that overlaps no other anchor more.  The first box
of each image is the background.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from programs.drawn import Batches, Draw

import ag
from ag import nn, ops

CLASSES, SHAPES = 2, [(s, r) for s, r in ((0.3, 1.0), (0.45, 1.0), (0.3, 2.0), (0.3, 0.5))]  # sizes and ratios


def anchors_of(side: int) -> np.ndarray:
    """Return centers, widths and heights, of shape (4, anchors)."""
    at = (np.arange(side) + 0.5) / side
    return np.array([(x, y, s * sqrt(r), s / sqrt(r)) for y in at for x in at for s, r in SHAPES], "f").T


def corners(boxes: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
    return boxes[:2] - boxes[2:] / 2, boxes[:2] + boxes[2:] / 2


def targets(anchors: ag.Tensor, boxes: ag.Tensor, classes: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor, ag.Tensor]:
    """Return the class of each anchor, 0 for none, its offsets, and whether it has a box."""
    (low_a, high_a), (low_b, high_b) = corners(anchors[:, :, None, None]), corners(boxes[:, None, 1:])
    both = ops.clamp(ops.minimum(high_a, high_b) - ops.maximum(low_a, low_b), 0.0).prod(0)
    overlap = both / ((high_a - low_a).prod(0) + (high_b - low_b).prod(0) - both)  # (anchors, boxes, batch)
    overlap = overlap + ops.one_hot(overlap.argmax(0), overlap.shape[0])
    box = ops.concat([ops.full((overlap.shape[0], 1, overlap.shape[2]), 0.5), overlap], dim=1).argmax(1)
    own = ops.take_along_dim(boxes, box[None], 1)
    offsets = ops.concat([10.0 * (own[:2] - anchors[:2, :, None]) / anchors[2:, :, None],
                          5.0 * ops.log(own[2:] / anchors[2:, :, None])])
    labels = ops.gather(ag.ag_tensor(classes, dtype="i32"), 0, box)
    return labels, offsets, labels.astype("f32") > 0.0


def down_sample(into: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(),
                         nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2))


class TinySSD(ag.Layer):
    def __init__(self) -> None:
        self.scales = [nn.Sequential(down_sample(3, 8), down_sample(8, 16)), down_sample(16, 16),
                       nn.AdaptiveMaxPool2d(1)]
        self.classes = [nn.Conv2d(16, len(SHAPES) * (CLASSES + 1), 3, padding=1) for _ in self.scales]
        self.boxes = [nn.Conv2d(16, len(SHAPES) * 4, 3, padding=1) for _ in self.scales]

    def forward(self, x: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
        found: tuple[list[ag.Tensor], ...] = ([], [])
        for scale, *heads in zip(self.scales, self.classes, self.boxes, strict=True):
            x = scale(x)
            for parts, head in zip(found, heads, strict=True):
                y = head(x)  # (shapes * numbers, height, width, batch)
                y = y.reshape(len(SHAPES), -1, *y.shape[1:]).permute(1, 2, 3, 0, 4)
                parts.append(y.reshape(y.shape[0], -1, y.shape[-1]))
        return ops.concat(found[0], dim=1), ops.concat(found[1], dim=1)


def program(draw: Draw) -> tuple[object, Batches]:
    model = TinySSD()
    for p in model.parameters().values():
        p.data = draw(*p.shape, scale=0.3)
    optimizer = ag.optim.SGD(model.parameters(), lr=0.2, weight_decay=5e-4)
    anchors = ag.ag_tensor(np.concatenate([anchors_of(side) for side in (4, 2, 1)], 1))

    def step(images: ag.Tensor, boxes: ag.Tensor, classes: ag.Tensor) -> ag.Tensor:
        labels, offsets, taken = targets(anchors, boxes, classes)
        with ag.with_grad_tape():
            logits, found = model(images)
            loss = ops.cross_entropy(logits, labels, reduction="none").mean(0)
            near = ops.smooth_l1_loss(found * taken, offsets * taken, reduction="none").mean((0, 1))
            loss = (loss + near).mean()
        optimizer.step(ag.backward(loss))
        return loss

    boxes = np.concatenate([draw.uniform(2, 4, 4) * 0.6 + 0.2, draw.uniform(2, 4, 4) * 0.3 + 0.2])
    classes = np.concatenate([np.zeros((1, 4), int), draw.ids(CLASSES, 3, 4) + 1])
    return step, [(draw(3, 16, 16, 4, scale=1.0), boxes, classes)] * 6
