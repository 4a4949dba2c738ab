"""Writes torchvision.npz: what torchvision's ResNets compute, for test_resnet.py and for the test of docs/interop.md.

Run it as ``python tests/nn/resnet/make.py`` where torch and torchvision are installed, which neither `ag` nor its tests
need.  For each depth: names and shapes of all tensors, logits in eval mode, and of a step in train mode the loss, the
running statistics and the gradients, a few elements of each (`weights.kept`).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import torchvision
from weights import CLASSES, images, kept, labels, state

found: dict[str, np.ndarray] = {}
torch.set_num_threads(1)
for depth in (18, 34, 50):
    model = getattr(torchvision.models, f"resnet{depth}")(num_classes=CLASSES)
    counted = {name: x for name, x in model.state_dict().items() if name.endswith("num_batches_tracked")}
    shapes = {name: list(x.shape) for name, x in model.state_dict().items() if name not in counted}
    model.load_state_dict({**{k: torch.from_numpy(x) for k, x in state(shapes).items()}, **counted})
    x, y = torch.from_numpy(images()), torch.from_numpy(labels())
    with torch.no_grad():
        logits = model.eval()(x).numpy()
    loss = torch.nn.functional.cross_entropy(model.train()(x), y)
    loss.backward()
    gradients = {name: kept(p.grad.numpy()) for name, p in model.named_parameters()}
    statistics = {name: kept(b.numpy()) for name, b in model.named_buffers() if name not in counted}
    parts = {"logits": logits[:, ::10], "loss": np.float32(loss.item()), "gradients": np.stack([*gradients.values()]),
             "statistics": np.stack([*statistics.values()])}
    found |= {f"{name}{depth}": array for name, array in parts.items()}
    text = json.dumps({"shapes": shapes, "counted": [*counted], "gradients": [*gradients],
                       "statistics": [*statistics]})
    found[f"names{depth}"] = np.frombuffer(text.encode(), np.uint8)
    print(f"resnet{depth}: {sum(p.numel() for p in model.parameters())} parameters, loss {loss.item():.6f}, "
          f"logits from {logits.min():.3f} to {logits.max():.3f}")
versions = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
np.savez_compressed(Path(__file__).with_name("torchvision.npz"), versions=np.array(versions), **found)
