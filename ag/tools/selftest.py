"""Compare what each device computes with numpy in float64, and say what is wrong.

Each check runs some operations and their gradients between guard words, then as a program does, then captured.  A
captured call must have the same bits as an uncaptured one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ag import nn, ops
from ag.autograd.operands import to_buffer
from ag.autograd.tape import backward, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.capture.step import ag_capture
from ag.data import DataLoader
from ag.engine.backend import Backend
from ag.engine.device import ag_device, ag_dtype, backend_of, canonical, family_and_index
from ag.engine.dtype import F32, F64, DType
from ag.engine.primitive import Array
from ag.errors import AgError
from ag.parallel import dp_train

_ROUNDING = 1e-4  # of the largest number: float32 rounds to 6e-8, and sums here have up to 40,000 terms
_TRAINED = 1e-3  # after some steps, in which rounding grows
_CALLS = 4  # of a captured step: one is recorded, one compared, two are replayed


class Outcome(NamedTuple):
    """The result of a check on a device; `fault` is empty where it passed."""

    device: str
    check: str
    fault: str
    seconds: float


# Operations and their operands: shapes of numbers, or how many class ids.  Sizes are odd, larger than a workgroup of
# invocations, or large enough for the CPU to fuse launches.
CHECKS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...] | int]]] = {
    "arithmetic": (lambda a, b: (a + b) * (a - b) / (b * b + 1.5) - 0.5 * a, [(33, 1031), (33, 1)]),
    "functions": (lambda x: ops.ag_exp(ops.ag_tanh(x)) + ops.ag_log(x * x + 1.0) + ops.ag_sqrt(x * x + 0.5) + x**3
                  + ops.ag_abs(x) + ops.ag_clamp(x, -1.0, 1.0), [(33, 1031)]),
    "activations": (lambda x: ops.ag_relu(x) + ops.ag_leaky_relu(x) + ops.ag_gelu(x) + ops.ag_silu(x)
                    + ops.ag_sigmoid(x), [(33, 1031)]),
    "softmax": (lambda x: ops.ag_softmax(x) + ops.ag_log_softmax(x, 1), [(33, 65)]),
    "sums": (lambda x: ops.ag_sum(x, 0) + ops.ag_mean(x, 0) + ops.ag_max(x, 0) + ops.ag_sum(x) / 1000.0, [(70, 600)]),
    "matrix products": (ops.ag_matmul, [(130, 70), (70, 100)]),
    "long products": (ops.ag_matmul, [(3, 5000), (5000, 2)]),
    "convolution": (partial(ops.ag_conv2d, stride=2, padding=1), [(3, 13, 11, 5), (7, 3, 3, 3), (7, 1)]),
    "grouped convolution": (partial(ops.ag_conv2d, dilation=2, groups=2), [(4, 9, 9, 3), (6, 2, 3, 3)]),
    "pooling": (lambda x: ops.ag_max_pool2d(x, 2) + ops.ag_avg_pool2d(x, 2), [(3, 10, 8, 5)]),
    "norms": (lambda x, w, b: ops.ag_layer_norm_op(x, w, b) + ops.ag_rms_norm_op(x, w)
              + ops.ag_batch_norm_op(x, w, b)[0], [(33, 65), (33, 1), (33, 1)]),
    "attention": (partial(ops.ag_attention, causal=True), [(16, 33, 2), (16, 33, 2), (16, 33, 2)]),
    "indexing": (lambda x, y, ids: ops.ag_concat([ops.ag_transpose(x)[1:9:2], y[:, 2:35], ops.ag_embedding_lookup(
        y, ids)[:5]]), [(33, 65), (5, 65), 33]),
    "losses": (lambda x, y, ids: ops.ag_mse_loss(x, y) + ops.ag_softmax_cross_entropy_loss(x, ids)
               + ops.ag_cross_entropy_loss(ops.ag_softmax(x), ops.ag_softmax(y)), [(10, 65), (10, 65), 65]),
}


def selftest(devices: Sequence[str]) -> Iterator[Outcome]:
    """Make every check on each device, and yield its outcome when it is known."""
    for name in devices:
        begin, fault = perf_counter(), ""
        try:
            usual, (family, index) = backend_of(name), family_and_index(canonical(name))
            guarded = family.guarded(index) if family.guarded else usual
        except AgError as error:
            fault = str(error)
        yield Outcome(name, "opening", fault, perf_counter() - begin)
        for check in [*CHECKS, "dp_train"] if not fault else ():
            begin = perf_counter()
            try:
                fault = _computes(*CHECKS[check], usual, guarded) if check in CHECKS else _trains(name)
            except AgError as error:
                fault = f"{type(error).__name__}: {error}"
            yield Outcome(name, check, fault, perf_counter() - begin)


def _computes(compute: Callable[..., Tensor], operands: list[tuple[int, ...] | int], usual: Backend,
              guarded: Backend) -> str:
    rng = np.random.default_rng(0)
    ids = [np.arange(n) % 5 for n in operands if isinstance(n, int)]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in operands if not isinstance(shape, int)]

    def values(backend: Backend, dtype: DType, captured: bool = False) -> list[list[Array]]:
        tensors = [Tensor(to_buffer(x, backend, dtype), True) for x in arrays]
        check = backend.check_guards if backend.arena.guard else lambda: None  # those of the buffers that are alive

        def step(*ids: Array) -> list[Tensor]:
            with with_grad_tape():
                out = compute(*tensors, *ids)
                loss = ops.ag_sum(out * out * out)
            check()
            grads = backward(loss)
            check()
            return [out, *(grads[x] for x in tensors)]

        call: Callable[..., list[Tensor]] = ag_capture(step) if captured else step
        return [[t.numpy() for t in call(*ids)] for _ in range(_CALLS if captured else 1)]

    (exact,), (found,) = values(backend_of("cpu"), F64), values(guarded, F32)
    (eager,), replayed = values(usual, F32), values(usual, F32, captured=True)
    if fault := _difference(found, exact, _ROUNDING) or _difference(eager, exact, _ROUNDING):
        return fault
    for call, others in enumerate(replayed, 1):
        if any(x.tobytes() != y.tobytes() for x, y in zip(others, eager, strict=True)):
            return f"call {call} of the captured step has other bits than the uncaptured step"
    return ""


def _difference(found: list[Array], exact: list[Array], allowed: float) -> str:
    """Say which number is too far from the exact one; "" where rounding explains all."""
    for i, (x, right) in enumerate(zip(found, exact, strict=True)):
        with np.errstate(all="ignore"):
            off = np.nan_to_num(np.abs(x - right), nan=np.inf)
        if off.max(initial=0.0) > allowed * max(1e-3, np.abs(right).max(initial=0.0)):
            at = tuple(map(int, np.unravel_index(off.argmax(), off.shape)))
            return f"output {i}{list(at)} of shape {x.shape} is {x[at]:.7g}, and {right[at]:.7g} in float64"
    return ""


def _trains(name: str) -> str:
    """Train a small convolutional network with one replica on the device and one on the CPU."""
    images, labels = np.random.default_rng(0).standard_normal((3, 8, 8, 32)), np.arange(32) % 5

    def model() -> nn.Layer:
        return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm(6), nn.MaxPool(2), nn.Flatten(),
                             nn.Linear(96, 5))

    def trained(device: str, dtype: str) -> list[Array]:
        with ag_device("cpu"), ag_dtype(dtype):
            result: Any = dp_train(make_model=model, data=DataLoader(images, labels, batch_size=8, shuffle=False),
                                   loss_fn=ops.ag_softmax_cross_entropy_loss, devices=[device, "cpu:1"],
                                   n_iter=_CALLS, lr=1e-2, seed=1, verbose=False)
            return [np.asarray(result.loss_history), *(p.numpy() for p in result.model.parameters().values())]

    return _difference(trained(name, "f32"), trained("cpu", "f64"), _TRAINED)
