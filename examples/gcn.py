"""A graph network tells the communities of a network's members, of which it is told four per community (GCN)."""

import sys

import numpy as np

import ag
from ag import nn, ops, optim

GROUPS, MEMBERS, FEATURES, HIDDEN = 4, 300, 32, 16


def made_up_graph(seed=0):
    """Features (features, nodes), the normalised adjacency matrix, and the community of each node."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(GROUPS, size=MEMBERS)
    likely = np.where(groups[:, None] == groups, 0.08, 0.01)  # members of one community know each other rather
    edges = np.triu(rng.random(likely.shape) < likely, 1)
    adjacency = (edges | edges.T) + np.eye(MEMBERS)
    degrees = adjacency.sum(0)
    features = rng.standard_normal((FEATURES, GROUPS))[:, groups] * 0.3 + rng.standard_normal((FEATURES, MEMBERS))
    return features.astype("f"), (adjacency / np.sqrt(np.outer(degrees, degrees))).astype("f"), groups


class GraphConvolution(nn.Layer):
    def __init__(self, inputs: int, outputs: int) -> None:
        self.linear = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x, adjacency):  # each node gets the mean of its own and its neighbours' features
        return self.linear(x) @ adjacency


class GCN(nn.Layer):
    def __init__(self) -> None:
        self.gc1, self.gc2 = GraphConvolution(FEATURES, HIDDEN), GraphConvolution(HIDDEN, GROUPS)

    def forward(self, x, adjacency, kept=1.0):
        hidden = ops.relu(self.gc1(x, adjacency))
        return ops.log_softmax(self.gc2(hidden * kept, adjacency))


def step(model, optimizer, x, adjacency, known, groups, kept):
    with ag.with_grad_tape():
        found = model(x, adjacency, kept)
        loss = ops.nll_loss(ops.index_select(found, 1, known), groups)
    optimizer.step(ag.backward(loss))
    optimizer.zero_grad()
    return loss


def train(steps):
    ag.ag_seed(0)
    model, rng, losses = GCN(), np.random.default_rng(0), []
    x, adjacency, groups = made_up_graph()
    known = np.concatenate([np.flatnonzero(groups == group)[:4] for group in range(GROUPS)])
    graph = ag.ag_tensor(x), ag.ag_tensor(adjacency)
    optimizer = optim.AdamW(model, lr=1e-2, weight_decay=5e-2)
    captured = ag.ag_capture(lambda *batch: step(model, optimizer, *batch))
    for _ in range(steps):
        kept = 2.0 * rng.integers(2, size=(HIDDEN, MEMBERS)).astype("f")  # dropout of half
        losses.append(captured(*graph, known, groups[known], kept).item())
    return model, losses


if __name__ == "__main__":
    model, losses = train(int(sys.argv[1]) if sys.argv[1:] else 200)
    x, adjacency, groups = made_up_graph()
    accuracy = np.mean(model(x, adjacency).argmax(0).numpy() == groups)
    print(f"loss: {losses[0]:.3f} at first, {np.mean(losses[-20:]):.3f} after {len(losses)} steps")
    print(f"accuracy on {MEMBERS} members, of which it was told {4 * GROUPS}: {accuracy:.3f}")
    if accuracy < 0.8:
        sys.exit("FAILED: the accuracy must be at least 0.8")
