"""The cases of `ops` in this library, and the device's roofs.

An op's launches are recorded without the tape and replayed inside `ag.profile`, so that a figure is what the device
itself measured: neither the host nor the submission is in it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from common import THREADS, emit, limit_threads
from ops import SIZES, Case

from ag.engine.compile.pipeline import record

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--seconds", type=float, default=1.0)
parser.add_argument("--sizes", choices=list(SIZES), required=True)
args = parser.parse_args()
limit_threads(1 if "quick" in args.sizes else THREADS)

import numpy as np  # noqa: E402 - after the thread pools are limited
import roofs  # noqa: E402

import ag  # noqa: E402
from ag.engine.device import backend_of  # noqa: E402
from ag.engine.kernels.optimizer import adam_update  # noqa: E402
from ag.optim.flat import DeviceState, FlatGroup  # noqa: E402

backend: Any = backend_of(args.device)
Work = Callable[[], Any]  # launches, and returns what must stay alive
rng = np.random.default_rng(1)


drawn = rng.standard_normal(1 << 20, np.float32)


def tensor(*shape: int) -> ag.Tensor:
    """Random numbers, a million of them again and again: to draw them all takes longer than what is measured."""
    return ag.ag_tensor(np.resize(drawn, shape))


def gradient(y: ag.Tensor, *inputs: int) -> Work:
    """The gradient rule of the op that made `y`, for some of its inputs, given a cotangent."""
    node, g = y.node, tensor(*y.shape)
    if node is None:
        raise SystemExit("bench_ops: the result of an op has no node; its operands need requires_grad.")
    need = tuple(i in inputs for i in range(len(node.inputs)))
    return lambda: (node, g, node.vjp(backend.launch, g.buffer, node.saved, need, *node.params))


def recorded(op: Callable[..., ag.Tensor], *operands: ag.Tensor, **params: Any) -> ag.Tensor:
    """The result of an op with its node."""
    for x in operands:
        x.requires_grad = True
    with ag.with_grad_tape():
        return op(*operands, **params)


def step(op: Callable[..., ag.Tensor], *operands: ag.Tensor) -> Work:
    """The op and the gradients of its operands."""
    weights = tensor(*op(*operands).shape)
    for x in operands:
        x.requires_grad = True

    def both() -> Any:
        with ag.with_grad_tape():
            y = op(*operands)
            loss = ag.ag_sum(ag.ag_mul(y, weights)) if y.ndim else y
        return ag.backward(loss), loss

    return both


def work(case: Case) -> Work:
    """The launches of a case, with data of their own."""
    s, both = case.sizes, case.op.endswith(" step")

    def made(op: Callable[..., ag.Tensor], *operands: ag.Tensor) -> Work:
        return step(op, *operands) if both else lambda: op(*operands)

    if case.op.startswith("matmul"):
        m, k, n = s
        a, b = {"matmul dW": ((m, n), (n, k)), "matmul dX": ((k, m), (m, n))}.get(case.op, ((m, k), (k, n)))
        x, y = tensor(*a), tensor(*b)
        if case.op not in ("matmul dW", "matmul dX"):
            return lambda: ag.ag_matmul(x, y)
        # dA of a product [m, n] @ [n, k] is g @ B.T, and dB of [k, m] @ [m, n] is A.T @ g: both are m k n products
        return gradient(recorded(ag.ag_matmul, x, y), 0 if case.op == "matmul dW" else 1)
    if case.op.startswith("conv"):
        batch, into, out, side, kernel = s
        x, w = tensor(into, side, side, batch), tensor(out, into, kernel, kernel)
        if case.op == "conv":
            return lambda: ag.ag_conv2d(x, w, padding=kernel // 2)
        if case.op.startswith("conv transposed"):
            turned = tensor(into, out, kernel, kernel)
            return made(lambda x, w: ag.ops.conv_transpose2d(x, w, padding=kernel // 2), x, turned)
        y = recorded(lambda x, w: ag.ag_conv2d(x, w, padding=kernel // 2), x, w)
        return gradient(y, 0 if case.op == "conv dgrad" else 1)
    if case.op.startswith("attention"):
        matrices, length, features = s
        q, k, v = (tensor(features, length, matrices) for _ in range(3))
        if case.op == "attention":
            return lambda: ag.ag_attention(q, k, v)
        if case.op.startswith("attention masked"):
            mask = ag.ag_tensor(rng.random((length, matrices)) < 0.9) > 0
            mask = mask.reshape(1, 1, length, matrices)
            return made(lambda q, k, v: ag.ops.attention(q, k, v, attn_mask=mask), q, k, v)
        return gradient(recorded(ag.ag_attention, q, k, v), 0, 1, 2)
    if case.op.startswith("einsum"):
        samples, side, inner = s
        return made(lambda x, y: ag.ops.einsum("mkb,knb->mnb", x, y), tensor(side, inner, samples),
                    tensor(inner, side, samples))
    if case.op == "AdamW":
        state = DeviceState(FlatGroup({"p": ag.ag_param(tensor(s[0]))}), ("m", "v"), 3, True,
                            (1e-3, 0.1, 0.001, 1e-8, 0.01, 0.9, 0.999))
        backend.upload(rng.normal(size=s).astype(np.float32), state.grads)
        return lambda: backend.launch(adam_update, *state.flats, *state.numbers, state.grads, state.one, state.zero,
                                      state.group.stored, start=0, first=0, count=1, last=True)
    x = tensor(*s)
    if case.op == "add":
        y = tensor(*s)
        return lambda: ag.ag_add(x, y)
    if case.op == "sum":
        return lambda: ag.ag_sum(x)
    if case.op.startswith("where"):
        mask = x > 0
        return made(lambda x, y: ag.ops.where(mask, x, y), x, tensor(*s))
    if case.op.startswith("bce"):
        y = ag.ops.sigmoid(tensor(*s))
        return made(lambda x: ag.ops.binary_cross_entropy_with_logits(x, y), x)
    if case.op.startswith("gather"):
        ids = ag.ag_tensor(rng.integers(0, s[0], s), dtype="i32")
        return made(lambda x: ag.ops.gather(x, 0, ids), x)
    if case.op == "softmax":
        return lambda: ag.ag_softmax(x)
    if case.op == "softmax-CE":
        one_hot = np.zeros(s, np.float32)
        one_hot[rng.integers(0, s[0], s[1]), np.arange(s[1])] = 1
        target = ag.ag_tensor(one_hot)
        return lambda: ag.ag_softmax_cross_entropy_loss(x, target)
    rms = case.op.startswith("RMS")
    vectors = [tensor(s[0], 1) for _ in range(1 if rms else 2)]  # gamma, and beta
    norm = ag.ag_rms_norm_op if rms else ag.ag_layer_norm_op
    if not case.op.endswith("backward"):
        return lambda: norm(x, *vectors)
    return gradient(recorded(norm, x, *vectors), *range(1 + len(vectors)))


def measured(launches: Work) -> tuple[float, int, list[str]]:
    """Median seconds of a replay on the device, the number of its launches, and the kernels that ran.

    The device is kept busy while it is measured, and before: a card that rests between launches lowers its clock to a
    sixth.
    """
    with record(backend) as recording:
        kept = launches()
    program = recording.finished()
    per_run = program.launches
    program.run()
    backend.synchronize()  # a driver may compile at the first run
    begin, runs = time.perf_counter(), 0
    while not runs or time.perf_counter() - begin < args.seconds:
        program.run()
        runs += 1
        if runs % 50 == 0:
            backend.synchronize()
    backend.synchronize()
    count = min(max(3, round(runs * args.seconds / (time.perf_counter() - begin))), 300)
    with ag.profile() as seen:
        for _ in range(count):
            program.run()
        backend.synchronize()
    events = [e for e in seen.events if e.kernel != "transfer"]
    parts = len(events) // count  # long launches are made in several
    seconds = [sum(e.end - e.begin for e in events[i : i + parts]) / 1e9 for i in range(0, len(events), parts)]
    program.close()
    del kept
    return statistics.median(seconds), per_run, sorted({event.kernel for event in events})


with ag.ag_device(args.device):
    emit(case="roofs", sizes=args.sizes, **roofs.measure(backend, quick="quick" in args.sizes))
    for case in SIZES[args.sizes]:
        with ag.ag_matmul_precision(case.precision):
            seconds, launches, kernels = measured(work(case))
        emit(case=case.name, us=1e6 * seconds, launches=launches, kernels=kernels)
