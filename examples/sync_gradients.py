"""Gradients averaged by hand with `syncgrads`, between threads as between ranks; and `start`, which does it all. Run it
as `python examples/sync_gradients.py`.

Two workers have a model each and share out samples unevenly; weighted by samples, the average is the gradient of all.
`syncgrads` averages weights as well, of models that were trained apart.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import ag
from ag.parallel.comm.comm import Comm
from ag.parallel.comm.threads import thread_comms

RNG = np.random.default_rng(0)
TRUE = np.array([[2.0, -1.0, 0.5]], np.float32)
X = RNG.standard_normal((3, 48)).astype(np.float32)
Y = TRUE @ X
SHARES = [slice(0, 32), slice(32, 48)]


def worker(world: Comm) -> np.ndarray:
    """Train a model on this worker's share; all workers make the same steps."""
    mine = SHARES[world.rank]
    x, y = X[:, mine], Y[:, mine]
    W = ag.ag_param(np.zeros((1, 3), np.float32), device=f"cpu:{world.rank}")
    optimizer = ag.optimizer_sgd({"W": W}, lr=0.3)
    for _ in range(60):
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(W @ x, y)
        grads = ag.backward(loss)
        optimizer.step(ag.syncgrads([{"W": grads[W]}], weights=[x.shape[1]], world=world))
    return W.numpy()


def apart() -> np.ndarray:
    """Train a model on each share, and average their weights."""
    models = [ag.ag_linear(3, 1) for _ in SHARES]
    for model, mine in zip(models, SHARES, strict=True):
        optimizer = ag.optimizer_sgd(model.parameters(), lr=0.3)
        for _ in range(60):
            with ag.with_grad_tape():
                loss = ag.ag_mse_loss(model(ag.ag_tensor(X[:, mine])), Y[:, mine])
            optimizer.step(ag.backward(loss))
            optimizer.zero_grad()
    mean = ag.syncgrads([model.state_dict() for model in models], weights=[32, 16])
    models[0].load_state_dict({name: x.numpy() for name, x in mean.items()})
    return models[0].W.numpy()


def main() -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(worker, thread_comms(2))
    print(f"by hand:  weights {first.round(4).tolist()}, equal on both workers: {np.array_equal(first, second)}")

    pairs = [(X[:, i : i + 1], Y[:, i : i + 1]) for i in range(X.shape[1])]
    done = ag.start(ag.ag_mse_loss, pairs, lambda: ag.ag_linear(3, 1), cycles=60, batchsize=24,
                    opt=lambda params: ag.optimizer_sgd(params, lr=0.3), devices=["cpu", "cpu:1"], seed=0)
    print(f"by start: weights {done.model.W.numpy().round(4).tolist()}, {len(done.loss_history)} steps")
    averaged = apart()
    print(f"trained apart and averaged: weights {averaged.round(4).tolist()}")
    if not (np.array_equal(first, second) and np.allclose(first, TRUE, atol=1e-3)
            and np.allclose(averaged, TRUE, atol=1e-2) and np.allclose(done.model.W.numpy(), TRUE, atol=1e-3)):
        sys.exit("FAILED: both must find the weights, the same on all workers")


if __name__ == "__main__":
    main()
