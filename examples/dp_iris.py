"""Data-parallel training on the iris flowers: the five sections of ggmlR's vignette "Data-Parallel Training".

Run it as `python examples/dp_iris.py`, or as `make demo`. It uses every Vulkan device it finds, the CPU where there is
none, and fails when a model classifies less than 95 % of the flowers correctly or when replicas ever differ.
"""

from __future__ import annotations

import argparse
import sys
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import numpy as np

import ag

HERE = Path(__file__).parent
PICTURE = HERE / "loss_curve.png"
ENOUGH = 0.95
LEARNING_RATE = 1e-2
SAMPLES_PER_REPLICA = 4  # and step; the vignette takes 1, and 2000 steps of a tenth of the learning rate


def load_iris() -> tuple[np.ndarray, np.ndarray]:
    """Standardised measurements (4, 150) and one-hot species (3, 150), in one fixed random order."""
    x, species = ag.data.load_iris()
    x = x.T.astype(float)
    x = (x - x.mean(1, keepdims=True)) / x.std(1, ddof=1, keepdims=True)
    y = np.eye(3)[:, species]
    order = np.random.default_rng(42).permutation(len(species))  # the flowers are sorted by species
    return x[:, order].astype(np.float32), y[:, order].astype(np.float32)


def make_model() -> ag.Layer:
    """A new model; `dp_train` calls this once per replica."""
    return ag.ag_sequential(ag.ag_linear(4, 32, activation="relu"), ag.ag_linear(32, 3))


def train(data: list[dict[str, np.ndarray]], devices: list[str], n_iter: int, **options) -> ag.DPResult:
    """The vignette's call of `dp_train`."""
    return ag.dp_train(
        make_model=make_model,
        data=data,
        loss_fn=lambda out, target: ag.ag_softmax_cross_entropy_loss(out, target),
        forward_fn=lambda model, sample: model.forward(ag.ag_tensor(sample["x"])),
        target_fn=lambda sample: sample["y"],
        devices=devices,
        n_iter=n_iter,
        lr=LEARNING_RATE,
        micro_batch=SAMPLES_PER_REPLICA,
        verbose=max(1, n_iter // 4),
        seed=42,
        **options,
    )


def accuracy(model: ag.Layer, device: str, x: np.ndarray, y: np.ndarray) -> float:
    """Share of the samples whose largest output is their species."""
    logits = ag.ag_eval(model)(ag.ag_tensor(x, device=device)).numpy()
    return float((logits.argmax(0) == y.argmax(0)).mean())


def digest(model: ag.Layer) -> str:
    """SHA-256 of all parameters."""
    return sha256(b"".join(p.numpy().tobytes() for p in model.parameters().values())).hexdigest()


class ReplicaCheck:
    """A callback of `dp_train`: after every step, every replica must have the same parameters, to the bit."""

    def __init__(self) -> None:
        self.steps = 0
        self.sha256 = ""

    def __call__(self, step: ag.DPStep) -> None:
        digests = [digest(model) for model in step.models]
        if len(set(digests)) != 1:
            sys.exit(f"dp_iris: after step {step.step + 1} the replicas differ: {digests}")
        self.steps, self.sha256 = step.step + 1, digests[0]


def train_in_batches(x: np.ndarray, y: np.ndarray, device: str, epochs: int = 100) -> ag.Layer:
    """An ordinary training loop on one device."""
    with ag.ag_device(device):
        ag.ag_seed(42)
        loader = ag.ag_dataloader(x, y, batch_size=32, shuffle=True)
        model = ag.ag_train(make_model())
        optimizer = ag.optimizer_adam(model.parameters(), lr=LEARNING_RATE)
        for _ in range(epochs):
            for batch in loader.epoch():
                with ag.with_grad_tape():
                    loss = ag.ag_softmax_cross_entropy_loss(model.forward(batch.x), batch.y)
                optimizer.step(ag.backward(loss))
                optimizer.zero_grad()
    return model


def plot(curves: dict[str, np.ndarray]) -> str:
    """Draw the loss curves into a file; what happened, in one line."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no picture of the loss: matplotlib is not installed (pip install matplotlib)"
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for label, losses in curves.items():
        width = min(38, losses.size)  # about one pass over the 150 flowers with one replica
        mean = np.convolve(losses, np.ones(width) / width, mode="valid")
        axes.plot(np.arange(width, losses.size + 1), mean, label=label)
    axes.set(title="dp_train on iris", xlabel="optimizer step", ylabel=f"loss, mean of the last {width} steps",
             yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(PICTURE, dpi=120)
    return f"loss curves: {PICTURE}"


def replica_devices(names: str | None, replicas: int | None) -> list[str]:
    """The device of every replica: those named, or all Vulkan devices, or the CPU; at least two replicas."""
    found = ag.ag_vulkan_devices()
    cards = [info for info in found if info.kind != "cpu"] or found  # without one, software drivers stand for cards
    devices = names.split(",") if names else [info.name for info in cards]
    if not devices:
        print("No Vulkan device was found, so this runs on the CPU; `python -m ag devices` says what is missing.\n")
        devices = ["cpu", "cpu:1"]
    count = replicas if replicas is not None else max(2, len(devices))
    return [devices[i % len(devices)] for i in range(count)]


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} was given; at least 1 is required")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description="Train an iris classifier data-parallel.")
    parser.add_argument("--devices", metavar="NAME,NAME", help="such as cpu,cpu:1 or vulkan:0,vulkan:1; "
                        "default: every Vulkan device, or the CPU")
    parser.add_argument("--replicas", type=at_least_one, metavar="N", help="default: one per device, at least 2")
    parser.add_argument("--n-iter", type=at_least_one, default=500, metavar="N",
                        help="optimizer steps per run of dp_train (default: %(default)s)")
    parser.add_argument("--no-plot", action="store_true", help="draw no loss curves")
    options = parser.parse_args()
    devices = replica_devices(options.devices, options.replicas)
    replicas = f"{len(devices)} replica{'s' if len(devices) > 1 else ''}"

    x, y = load_iris()
    data = [{"x": x[:, i : i + 1], "y": y[:, i : i + 1]} for i in range(x.shape[1])]
    reached: dict[str, float] = {}

    def report(name: str, model: ag.Layer, device: str, seconds: float) -> None:
        reached[name] = accuracy(model, device, x, y)
        print(f"accuracy {reached[name]:.3f} after {seconds:.1f} s\n")

    print("1. Concept")
    print("""\
   for each step:
     each replica:  forward(its own samples) -> loss -> backward
     add up the gradients of all replicas, divide by the number of samples
     one optimizer step
     send the new weights to every replica""")
    print(f"   Replicas here: {', '.join(devices)}\n")

    print(f"2. Minimal example: one replica on {devices[0]}")
    begin = perf_counter()
    one = train(data, devices[:1], options.n_iter)
    report("one replica", one.model, one.devices[0], perf_counter() - begin)

    print(f"3. Data-parallel: {replicas} on {', '.join(devices)}, "
          f"{SAMPLES_PER_REPLICA} samples each per step")
    check = ReplicaCheck()
    begin = perf_counter()
    many = train(data, devices, options.n_iter, max_norm=5.0, callback=check)
    print(f"parameters equal on {replicas} after each of {check.steps} steps; "
          f"SHA-256 at the end:\n  {check.sha256}")
    report("data-parallel", many.model, many.devices[0], perf_counter() - begin)

    print("4. Gradient clipping: the same as 2 with max_norm=1")
    begin = perf_counter()
    clipped = train(data, devices[:1], options.n_iter, max_norm=1.0)
    report("clipped", clipped.model, clipped.devices[0], perf_counter() - begin)

    print(f"5. ag_dataloader: batches of 32 on {devices[0]}, 120 flowers to train on")
    begin = perf_counter()
    batched = train_in_batches(x[:, :120], y[:, :120], devices[0])
    seconds = perf_counter() - begin
    print(f"accuracy on the 30 flowers not trained on: {accuracy(batched, devices[0], x[:, 120:], y[:, 120:]):.3f}")
    report("ag_dataloader", batched, devices[0], seconds)

    if not options.no_plot:
        print(plot({"1 replica": one.loss_history, f"{replicas}, max_norm=5": many.loss_history,
                    "1 replica, max_norm=1": clipped.loss_history}))
    print("final accuracy: " + ", ".join(f"{name} {value:.3f}" for name, value in reached.items()))
    if min(reached.values()) < ENOUGH:
        print(f"FAILED: every accuracy must be at least {ENOUGH}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ag.AgError as error:
        sys.exit(f"dp_iris: {error}")
