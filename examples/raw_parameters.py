"""A network without layers: parameters, arithmetic and gradients. Run it as `python examples/raw_parameters.py`.

The counterpart of section 9 of ggmlR's vignette: a two-layer network by hand learns exclusive or, which no single
layer can. `dp_train` then trains the same object on two replicas.
"""

import sys

import numpy as np

import ag

X = np.array([[0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]], np.float32)  # 2 features, 4 samples
Y = np.array([0, 1, 1, 0])  # the class of each sample


def network(p, x):
    """Logits (2, batch) for `x` (2, batch) and parameters by name."""
    hidden = ag.ag_tanh(p["W1"] @ x + p["b1"])
    return p["W2"] @ hidden + p["b2"]


class Xor:
    """A model of one's own needs no base class: `forward` and `parameters` are enough."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.p = {
            "W1": ag.ag_param(rng.normal(size=(8, 2))),
            "b1": ag.ag_param(np.zeros((8, 1))),
            "W2": ag.ag_param(rng.normal(size=(2, 8))),
            "b2": ag.ag_param(np.zeros((2, 1))),
        }

    def forward(self, x) -> ag.Tensor:
        return network(self.p, x)

    def parameters(self) -> dict[str, ag.Tensor]:
        return self.p


def right(model: Xor) -> int:
    """How many of the four samples the model classifies correctly."""
    return int(np.sum(model.forward(X).numpy().argmax(0) == Y))


print("1. Are the gradients right? Finite differences in float64 tell.")
model = Xor()
if not ag.ag_gradcheck(lambda p: ag.ag_softmax_cross_entropy_loss(network(p, X), Y), model.p):
    sys.exit("FAILED: a gradient is wrong")

print("\n2. A training loop by hand: gradient descent is one line per parameter.")
for step in range(200):
    with ag.with_grad_tape():
        loss = ag.ag_softmax_cross_entropy_loss(model.forward(X), Y)
    grads = ag.backward(loss)
    for p in model.parameters().values():
        p.data = p.data - 0.5 * grads[p].data
    if step % 50 == 0:
        print(f"step {step:3}: loss {loss.item():.4f}")
print(f"after it: loss {loss.item():.4f}, {right(model)} of 4 right")

print("\n3. The same class in dp_train: two replicas, two samples each per step, Adam.")
result = ag.dp_train(
    make_model=Xor,
    data=[(X[:, [i]], Y[[i]]) for i in range(4)],
    forward_fn=lambda model, sample: model.forward(sample[0]),
    target_fn=lambda sample: sample[1],
    loss_fn=ag.ag_softmax_cross_entropy_loss,
    devices=["cpu", "cpu:1"],
    micro_batch=2,
    n_iter=100,
    lr=0.05,
    verbose=25,
)
print(f"after it: loss {result.loss:.4f}, {right(result.model)} of 4 right")
if right(model) + right(result.model) < 8:
    sys.exit("FAILED: a sample is classified wrongly")
