"""Devices of different makers train one model. Run it as `python examples/parallel_vendors.py`.

With every Vulkan device that there is, and the CPU; after every step all replicas have the same SHA-256.  A step takes
12 samples, however many devices there are of 1, 2, 3, 4 and 6.
"""

from hashlib import sha256

from parallel_common import X, Y, check, devices, make_model

import ag

data = [(X[:, i : i + 1], Y[:, i : i + 1]) for i in range(X.shape[1])]
digests = []


def equal(step: ag.DPStep) -> None:
    hashes = {sha256(b"".join(p.numpy().tobytes() for p in model.parameters().values())).hexdigest()
              for model in step.models}
    assert len(hashes) == 1, f"after step {step.step} the replicas differ"
    digests.append(hashes.pop())


def train(used: list[str]) -> ag.DPResult:
    return ag.dp_train(make_model, data, ag.ag_mse_loss, lambda model, sample: model(sample[0]),
                       lambda sample: sample[1], devices=used, micro_batch=12 // len(used), n_iter=60, lr=2e-2, seed=1,
                       verbose=False, callback=equal)


one = train(["cpu"])
used = devices(__doc__, ",".join(["cpu", *(info.name for info in ag.ag_vulkan_devices())]))
several = train(used)
for replica in several.report:
    print(f"{replica['device']}: {replica['samples']} samples")
print(f"replicas equal after each of {len(several.loss_history)} steps; at the end {digests[-1][:16]}…")
check(f"data parallel on {', '.join(used)}", list(several.loss_history), list(one.loss_history))
