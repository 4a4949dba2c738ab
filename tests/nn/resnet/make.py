"""Write torchvision.npz: what torchvision's ResNets compute, for test_resnet.py and for the test of docs/interop.md.

Run it as ``python tests/nn/resnet/make.py`` where torch and torchvision are installed, which neither `ag` nor its tests
need.  Each depth has names and shapes of all tensors, and logits in eval mode.  A step in eval and one in train mode
add the loss and a few elements of each gradient (`weights.kept`), in train mode also the running statistics.  All is in
float64, as gradients in train mode are ill-conditioned: those of ResNet-50 in float32 differ by 2 % from these.
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
for depth in (18, 34, 50, 101, 152):
    model = getattr(torchvision.models, f"resnet{depth}")(num_classes=CLASSES)
    counted = {name: x for name, x in model.state_dict().items() if name.endswith("num_batches_tracked")}
    shapes = {name: list(x.shape) for name, x in model.state_dict().items() if name not in counted}
    model.load_state_dict({**{k: torch.from_numpy(x) for k, x in state(shapes).items()}, **counted})
    model.double()
    x, y = torch.from_numpy(images()).double(), torch.from_numpy(labels())
    for mode in ("eval", "train"):
        logits = model.train(mode == "train")(x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        model.zero_grad()
        loss.backward()
        gradients = np.stack([kept(p.grad.numpy()) for p in model.parameters()])
        found |= {f"loss_{mode}{depth}": np.float64(loss.item()), f"gradients_{mode}{depth}": gradients}
        if mode == "eval":
            found[f"logits{depth}"] = logits[:, ::10].detach().numpy().astype(np.float32)
    statistics = {name: kept(b.numpy()) for name, b in model.named_buffers() if name not in counted}
    found[f"statistics{depth}"] = np.stack([*statistics.values()])
    text = json.dumps({"shapes": shapes, "counted": [*counted],
                       "gradients": [name for name, _ in model.named_parameters()], "statistics": [*statistics]})
    found[f"names{depth}"] = np.frombuffer(text.encode(), np.uint8)
    print(f"resnet{depth}: {sum(p.numel() for p in model.parameters())} parameters, loss {loss.item():.6f}")
versions = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
np.savez_compressed(Path(__file__).with_name("torchvision.npz"), versions=np.array(versions), **found)
