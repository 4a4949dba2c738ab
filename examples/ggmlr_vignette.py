"""The vignette "Data-Parallel Training" of ggmlR, section by section; fails where a flower in ten is read wrongly."""

import sys

import numpy as np

import ag

print("1. Concept: one replica on each device, one set of weights")
print([info.name for info in ag.ag_vulkan_devices()] or "no Vulkan device: replicas run on the CPU")

print("\n2. Minimal example")
X, y = ag.data.load_iris()[:2]  # samples first, as in R's data frame
x = ((X - X.mean(0)) / X.std(0, ddof=1)).T.astype("f")  # t(scale(iris[, 1:4])): a flower is a column
targets = np.eye(3, dtype="f")[:, y]  # t(model.matrix(~ Species - 1, iris))
data = [{"x": x[:, [i]], "y": targets[:, [i]]} for i in range(150)]


def make_model():
    return ag.ag_sequential(ag.ag_linear(4, 16, activation="relu"), ag.ag_linear(16, 3))


def train(**options):
    return ag.dp_train(
        make_model=make_model, data=data,
        loss_fn=lambda out, target: ag.ag_softmax_cross_entropy_loss(out, target),
        forward_fn=lambda model, s: model.forward(ag.ag_tensor(s["x"])),
        target_fn=lambda s: s["y"], n_iter=1000, lr=5e-3, seed=42, verbose=False, **options)


def accuracy(model):
    return np.mean(ag.ag_eval(model)(x).numpy().argmax(0) == y)


found = {}
result = train(n_gpu=1)
found["one replica"] = accuracy(result.model)
print(f"loss {result.loss_history[:50].mean():.3f} -> {result.loss_history[-50:].mean():.3f}")

print("\n3. Several replicas")
found["two replicas"] = accuracy(train(n_gpu=2).model)

print("\n4. Gradient clipping")
found["clipped"] = accuracy(train(n_gpu=1, max_norm=1.0).model)

print("\n5. ag_dataloader: batches, and a loop of one's own")
model = make_model()
optimizer = ag.optimizer_adam(model.parameters(), lr=1e-2)
loader = ag.ag_dataloader(x, targets, batch_size=32, shuffle=True, seed=0)
for _ in range(60):
    for batch in loader.epoch():
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model.forward(batch.x), batch.y)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
found["batches"] = accuracy(model)
print("\n".join(f"{name}: accuracy {value:.3f}" for name, value in found.items()))
if min(found.values()) < 0.9:
    sys.exit("FAILED: every accuracy must be at least 0.9")
