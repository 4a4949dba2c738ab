"""Compare what each device computes with numpy in float64, and say what is wrong; report it with a short benchmark."""

from __future__ import annotations

import getpass
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ag import nn, ops, optim
from ag.autograd.create import ag_tensor
from ag.autograd.operands import to_buffer
from ag.autograd.tape import backward, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.capture.step import ag_capture
from ag.data import DataLoader
from ag.engine.backend import Backend
from ag.engine.device import ag_device, ag_dtype, ag_synchronize, backend_of, canonical, family_and_index
from ag.engine.dtype import F32, F64, DType
from ag.engine.primitive import Array
from ag.engine.registry import list_devices
from ag.errors import AgError
from ag.parallel import dp_train
from ag.tools.doctor import doctor
from ag.version import __version__

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
# invocations, or large enough for the CPU to fuse launches.  Operations and gradients run between guard words, then as
# a program does, then captured, with the same bits.
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


SCHEMA = 1  # of the file; raise it when a field goes or gets another meaning
_SECONDS = 0.5  # of a measurement, unless one call takes longer
_SIDES, _QUICK = (256, 1024, 4096), 2e-3  # of matrices: larger ones only if a product takes fewer seconds
_COPIED = 1 << 24  # numbers
# Absolute paths, but for those of the system's own folders.
_PATH = re.compile(r"(?<![\w.~])(?:~|/|[A-Za-z]:\\)(?!(?:dev|etc|proc|sys|usr)/)[^\s,;:'\")]{2,}")


def report(say: Callable[[Outcome], Outcome]) -> Any:
    """Examine all devices, measure those that compute right, and return what `json.dumps` takes."""
    names = [info.name for info in list_devices()]
    checks = [say(outcome)._asdict() for outcome in selftest(names)]
    speed, wrong = {}, {check["device"] for check in checks if check["fault"]}
    for name in names:
        with suppress(AgError):  # such as of a device with little memory
            if name not in wrong:
                speed[name] = _speed(name)
    return without_names({"schema": SCHEMA, "ag": __version__, "system": f"{sys.platform} {platform.machine()}",
                          "selftest": checks, "doctor": doctor().as_dict(), "speed": speed})


def without_names(found: Any) -> Any:
    """Replace the user, the host and paths in all texts, and leave out numbers of single devices and of kernels."""
    if isinstance(found, dict):
        return {key: without_names(value) for key, value in found.items() if key not in ("uuid", sys.platform)}
    if isinstance(found, (list, tuple)):
        return [without_names(value) for value in found]
    if not isinstance(found, str):
        return found
    for place in sorted({str(Path.home()), os.getcwd(), sys.prefix} - {"/", "/usr"}, key=len)[::-1]:
        found = found.replace(place, "~")  # it may have blanks in it
    found = _PATH.sub("<path>", found)
    names = {platform.node(), platform.node().partition(".")[0]}
    with suppress(OSError, KeyError, ImportError):  # a user without a name
        names.add(getpass.getuser())
    for name in sorted(names - {"", "root", "localhost"}, key=len)[::-1]:
        found = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "<name>", found)
    return found


def _speed(name: str) -> dict[str, float]:
    """Measure a device; the unit of a number is in its key."""
    rng = np.random.default_rng(0)
    with ag_device(name):
        for side in _SIDES:
            a = ag_tensor(rng.standard_normal((side, side), np.float32))
            product = _seconds(name, partial(ops.ag_matmul, a, a))
            if product > _QUICK:
                break
        x, rows, images = (ag_tensor(rng.standard_normal(shape, np.float32)) for shape in (
            (_COPIED, 1), (784, 128), (3, 32, 32, 32)))
        perceptron = nn.Sequential(nn.Linear(784, 256, activation="relu"), nn.Linear(256, 10))
        network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, activation="relu"), nn.MaxPool(2), nn.Flatten(),
                                nn.Linear(4096, 10))
        return {"matmul_side": side, "matmul_gflops": 2e-9 * side**3 / product,
                "copy_gb_per_s": 8e-9 * _COPIED / _seconds(name, lambda: ops.ag_scale(x, 2.0)),
                "perceptron_step_us": 1e6 * _seconds(name, _step(perceptron, rows)),
                "convolution_step_us": 1e6 * _seconds(name, _step(network, images))}


def _step(model: nn.Layer, x: Tensor) -> Callable[[], object]:
    optimizer, labels = optim.Adam(model.parameters()), np.arange(x.shape[-1]) % 10

    def step(x: Tensor, labels: Array) -> None:
        with with_grad_tape():
            loss = ops.ag_softmax_cross_entropy_loss(model(x), labels)
        optimizer.step(backward(loss))
        optimizer.zero_grad()

    return partial(ag_capture(step), x, labels)


def _seconds(name: str, call: Callable[[], object]) -> float:
    """Return the least mean time of a call in up to three runs, after three calls."""
    means: list[float] = []
    calls, end = 3, perf_counter() + _SECONDS
    while len(means) < 2 or (len(means) < 4 and perf_counter() < end):
        begin = perf_counter()
        for _ in range(calls):
            call()
        ag_synchronize(name)
        means.append((perf_counter() - begin) / calls)
        calls = max(1, int(_SECONDS / 4 / means[-1]))
    return min(means[1:])
