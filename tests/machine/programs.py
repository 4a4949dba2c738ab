"""Random programs of ops and layers, run eager, captured, and captured with recompute.

Within a device all must be equal to the bit; between devices, and with PyTorch, to a tolerance.
The ops come from a library that is passed along: `ag`, or pytorch/programs.py.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import ag

Array = Any
SIZES = (0, 1, 1, 2, 3, 4, 5, 7)
OPTIMIZERS = {
    "sgd": lambda p: ag.optimizer_sgd(p, lr=0.1),
    "adam": lambda p: ag.optimizer_adam(p, lr=0.05),
    "momentum": lambda p: ag.optimizer_sgd(p, lr=0.05, momentum=0.5, weight_decay=0.1),
    "nesterov": lambda p: ag.optimizer_sgd(p, lr=0.05, momentum=0.5, nesterov=True),
    "adamw": lambda p: ag.optimizer_adamw(p, lr=0.05),
}
POINTWISE: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda lib, x: lib.ag_relu(x),
    "tanh": lambda lib, x: lib.ag_tanh(x),
    "sigmoid": lambda lib, x: lib.ag_sigmoid(x),
    "gelu": lambda lib, x: lib.ag_gelu(x),
    "silu": lambda lib, x: lib.ag_silu(x),
    "exp": lambda lib, x: lib.ag_exp(lib.ag_clamp(x, -2.0, 2.0)),
    "abs": lambda lib, x: lib.ag_abs(x),
    "square": lambda lib, x: lib.ag_clamp(x, -3, 3) ** 2,
    "clamp": lambda lib, x: lib.ag_clamp(x, -0.5, 0.75),
    "leaky": lambda lib, x: lib.ag_leaky_relu(x, 0.125),
    "neg": lambda lib, x: -x,
    "log": lambda lib, x: lib.ag_log(lib.ag_abs(x) + 0.5),
    "sqrt": lambda lib, x: lib.ag_sqrt(lib.ag_abs(x) + 0.25),
    "softmax": lambda lib, x: lib.ag_softmax(x, 0) if count(x) else x,
    "log softmax": lambda lib, x: lib.ag_log_softmax(x, -1) if count(x) else x,
    "ratio": lambda lib, x: x / (lib.ag_abs(x) + 1.0),
    "twice": lambda lib, x: x + x,
    "scale": lambda lib, x: lib.ag_scale(x, 0.5),
}


class Op(NamedTuple):
    """One op: its name, which earlier results it works on, and a number for its choices."""

    name: str
    first: int
    second: int
    choice: int


class Program(NamedTuple):
    """A computation: its parameters' shapes, ops, optimizer, element type and seed."""

    shapes: tuple[tuple[int, ...], ...]  # of the parameters; the argument has the first one
    ops: tuple[Op, ...]
    optimizer: str
    dtype: str
    seed: int

    @classmethod
    def drawn(cls, seed: int, random: bool = True) -> Program:
        """A random program; without `random` it draws no masks, so that devices and PyTorch can be compared."""
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        full = tuple(int(rng.choice(SIZES)) if rng.random() < 0.3 else int(rng.integers(1, 6)) for _ in range(rank))
        full = (*full, 1) if rank == 1 else full
        shapes = tuple(tuple(1 if rng.random() < 0.3 else n for n in full) for _ in range(3))
        names = [
            *POINTWISE,
            "add",
            "sub",
            "mul",
            "mul",
            "add",
            "matmul",
            "transpose",
            "reduce",
            "norm",
            "cut",
            "concat",
            "conv",
            "attention",
            "checkpoint",
            *["dropout"] * (2 * random),
        ]
        ops = tuple(
            Op(str(rng.choice(names)), *map(int, rng.integers(0, 1000, 3))) for _ in range(int(rng.integers(3, 26)))
        )
        dtype = str(rng.choice(["f32", "f32", "f32", "f16", "bf16"])) if random else "f32"
        return cls((full, *shapes), ops, str(rng.choice([*OPTIMIZERS])), dtype, seed)


def compute(program: Program, params: list[Any], x: Any, lib: Any = ag) -> Any:
    """The loss."""
    values = [x, *params]
    for op in program.ops:
        a, b = values[op.first % len(values)], values[op.second % len(values)]
        values.append(apply(lib, op, a, b))
    total = lib.ag_sum(lib.ag_tanh(params[0]) ** 2)
    for v in [*values[-3:], *params]:
        if count(v):
            total = total + lib.ag_mean(lib.ag_tanh(v))
    return total


def count(x: Any) -> int:
    """Count the elements of a tensor."""
    return math.prod(x.shape)


def apply(lib: Any, op: Op, a: Any, b: Any) -> Any:
    """An op, or something like it that fits the shapes."""
    if op.name in POINTWISE:
        return POINTWISE[op.name](lib, a)
    if op.name in ("add", "sub", "mul"):
        b = b if fits(a.shape, b.shape) else lib.ag_sum(lib.ag_tanh(b)) * 0.125
        result = a + b if op.name == "add" else a - b if op.name == "sub" else a * b
        return lib.ag_clamp(result, -8.0, 8.0)
    if not count(a):
        return a + 1.0
    if op.name == "dropout":
        return lib.ag_dropout(0.25)(a)
    if op.name == "checkpoint":
        return lib.ag_checkpoint(lambda t: lib.ag_tanh(lib.ag_tanh(t) * 0.75), a)
    if op.name == "reduce":
        fn = (lib.ag_sum, lib.ag_mean, lib.ag_max)[op.choice % 3]
        return lib.ag_tanh(fn(a, op.choice % a.ndim, True)) if a.ndim else a
    if op.name == "transpose":
        return lib.ag_transpose(a)
    if op.name == "cut":
        return a[op.choice % a.shape[0] :] if a.ndim else a
    if op.name == "concat":
        return lib.ag_concat([a, a], op.choice % a.ndim) if a.ndim and count(a) < 200 else a
    return _matrix_op(lib, op, a)


def _matrix_op(lib: Any, op: Op, a: Any) -> Any:
    m = lib.ag_reshape(a, a.shape[0], -1) if a.ndim else lib.ag_reshape(a, 1, 1)
    if count(m) > 400:
        return lib.ag_tanh(m)
    if op.name == "matmul":
        return lib.ag_tanh(m @ m.T)
    if op.name == "norm":
        ones, zeros = lib.ag_scale(m[:, :1], 0.0) + 1.0, lib.ag_scale(m[:, :1], 0.0)
        if op.choice % 3 == 0:
            return lib.ag_rms_norm_op(m, ones, 0.5)
        return (lib.ag_layer_norm_op if op.choice % 2 else lib.ag_batch_norm_op)(m, ones, zeros, 0.5)
    if op.name == "attention":
        return lib.ag_attention(m, m, m, causal=bool(op.choice % 2))
    image = lib.ag_reshape(m, 1, *m.shape, 1)
    return lib.ag_tanh(lib.ag_conv2d(image, lib.ag_reshape(m[:1, :1], 1, 1, 1, 1), padding=op.choice % 2))


def fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return len(np.broadcast_shapes(a, b)) and int(np.prod(np.broadcast_shapes(a, b))) < 2000
    except ValueError:
        return False


def run(program: Program, device: str, way: str, steps: int = 4) -> list[Array]:
    """Losses, last gradients and parameters, when the program trains; `way` is eager, captured or recomputed."""
    gc.collect()  # an optimizer of 16-bit parameters that is garbage still scales the losses of its device
    previous = ag.ag_dtype(program.dtype)
    try:
        with ag.ag_device(device):
            ag.ag_seed(program.seed)
            rng = np.random.default_rng(program.seed)
            params = [ag.ag_param(rng.uniform(-1, 1, s)) for s in program.shapes[1:]]
            optimizer = OPTIMIZERS[program.optimizer](params)

            def step(x: Array) -> Any:
                with ag.with_grad_tape():
                    loss = compute(program, params, ag.ag_tensor(x))
                grads = ag.backward(loss)
                optimizer.step(grads)
                return loss, [grads[p] for p in params if p in grads]

            call = step if way == "eager" else ag.ag_capture(step, recompute=way == "recomputed")
            found = []
            for k in range(steps):
                loss, grads = call(rng.uniform(-1, 1, program.shapes[0]).astype(np.float32))
                if k == 1:
                    optimizer.lr = 0.025
                optimizer.zero_grad()
                found += [loss.numpy(), *(g.numpy() for g in grads)]
            return found + [p.numpy() for p in params]
    finally:
        ag.ag_dtype(previous)
