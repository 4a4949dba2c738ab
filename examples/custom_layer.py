"""A layer of one's own, GroupNorm, and ops of one's own, softplus among them, composed of those that are there."""

import sys

import numpy as np

import ag
from ag import nn, ops, training


def softplus(x):  # log(1 + exp(x)) without overflow; gradients follow from the ops
    return ops.relu(x) + ops.log(1 + ops.exp(-ops.abs(x)))


def normalised(x, groups: int, eps: float = 1e-5):
    """Images (channels, height, width, batch) of mean 0 and variance 1 in each group of channels of each sample."""
    grouped = x.reshape(groups, -1, x.shape[-1])  # channels are the first axis, so a group is a block
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    return (centred / ops.sqrt((centred * centred).mean(dim=1, keepdim=True) + eps)).reshape(*x.shape)


class GroupNorm(nn.Layer):
    def __init__(self, groups: int, channels: int) -> None:
        self.groups = groups
        self.gamma, self.beta = (ag.ag_param(np.full((channels, 1, 1, 1), value)) for value in (1.0, 0.0))

    def forward(self, x):
        return normalised(x, self.groups) * self.gamma + self.beta


class Net(nn.Layer):
    def __init__(self) -> None:
        self.conv, self.norm = nn.Conv2d(1, 16, 3, padding=1), GroupNorm(4, 16)
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x):
        return self.head(ops.flatten(ops.max_pool2d(softplus(self.norm(self.conv(x))), 2)))


if __name__ == "__main__":
    print("1. Are the gradients right? Difference quotients in float64 tell.")
    x = ag.ag_param(np.random.default_rng(0).normal(size=(4, 3, 3, 2)))
    if not ag.ag_gradcheck(lambda p: ops.sum(softplus(normalised(p["x"], 2)) * p["x"]), {"x": x}):
        sys.exit("FAILED: a gradient is wrong")

    print("\n2. The same results when captured, to the bit")
    pixels, digits = ag.data.load_digits()[:2]
    images = pixels.reshape(-1, 1, 8, 8).astype("f") / pixels.max()
    net, batch = Net(), ag.ag_tensor(np.moveaxis(images[:32], 0, -1))
    captured = ag.ag_capture(net)
    assert all(np.array_equal(captured(batch).numpy(), net(batch).numpy()) for _ in range(3))

    print("\n3. It learns")
    ag.ag_seed(0)
    net = Net()
    ag.fit(net, (images[360:], digits[360:]), epochs=5, batch_size=32, lr=3e-3, seed=0, verbose=False)
    found = training.evaluate(net, (images[:360], digits[:360]), metrics=["accuracy"])
    print(f"accuracy on 360 digits held out: {found['accuracy']:.3f}")
    if found["accuracy"] < 0.93:
        sys.exit("FAILED: the accuracy must be at least 0.93")
