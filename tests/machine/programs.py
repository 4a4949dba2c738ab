"""Random programs of ops and layers, and the same program run in several ways.

A program is a list of numbers that a generator draws; from them come shapes, ops, a loss and an optimizer.  `run` gives
losses and parameters of a few steps: eager, captured, captured with recompute.  Within a device all must be equal to
the bit; between devices, and with PyTorch, to a tolerance.  test_programs.py and its command compare them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import ag

__all__ = ["Program", "run"]

Array = Any
SIZES = (0, 1, 1, 2, 3, 4, 5, 7)
OPTIMIZERS = {
    "sgd": lambda p: ag.optimizer_sgd(p, lr=0.1),
    "adam": lambda p: ag.optimizer_adam(p, lr=0.05),
    "momentum": lambda p: ag.optimizer_sgd(p, lr=0.05, momentum=0.5, weight_decay=0.1),
    "nesterov": lambda p: ag.optimizer_sgd(p, lr=0.05, momentum=0.5, nesterov=True),
    "adamw": lambda p: ag.optimizer_adamw(p, lr=0.05),
}
POINTWISE: dict[str, Callable[[Any], Any]] = {
    "relu": ag.ag_relu,
    "tanh": ag.ag_tanh,
    "sigmoid": ag.ag_sigmoid,
    "gelu": ag.ag_gelu,
    "silu": ag.ag_silu,
    "exp": lambda x: ag.ag_exp(ag.ag_clamp(x, -2.0, 2.0)),
    "abs": ag.ag_abs,
    "square": lambda x: ag.ag_clamp(x, -3, 3) ** 2,
    "clamp": lambda x: ag.ag_clamp(x, -0.5, 0.75),
    "leaky": lambda x: ag.ag_leaky_relu(x, 0.125),
    "neg": lambda x: -x,
    "log": lambda x: ag.ag_log(ag.ag_abs(x) + 0.5),
    "sqrt": lambda x: ag.ag_sqrt(ag.ag_abs(x) + 0.25),
    "softmax": lambda x: ag.ag_softmax(x, 0) if x.size else x,
    "log softmax": lambda x: ag.ag_log_softmax(x, -1) if x.size else x,
    "ratio": lambda x: x / (ag.ag_abs(x) + 1.0),
    "twice": lambda x: x + x,
    "scale": lambda x: ag.ag_scale(x, 0.5),
}


class Op(NamedTuple):
    """One op: its name, which earlier results it works on, and a number for its choices."""

    name: str
    first: int
    second: int
    choice: int


class Program(NamedTuple):
    """What is computed.

    Attributes
    ----------
    shapes : tuple
        Of the parameters; the argument has the first one.
    ops : tuple of Op
    optimizer, dtype : str
    seed : int
    """

    shapes: tuple[tuple[int, ...], ...]
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


def compute(program: Program, params: list[Any], x: Any) -> Any:
    """The loss."""
    values = [x, *params]
    for op in program.ops:
        a, b = values[op.first % len(values)], values[op.second % len(values)]
        values.append(apply(op, a, b))
    total = ag.ag_sum(ag.ag_tanh(params[0]) ** 2)
    for v in [*values[-3:], *params]:
        if v.size:
            total = total + ag.ag_mean(ag.ag_tanh(v))
    return total


def apply(op: Op, a: Any, b: Any) -> Any:
    """An op, or something like it that fits the shapes."""
    if op.name in POINTWISE:
        return POINTWISE[op.name](a)
    if op.name in ("add", "sub", "mul"):
        b = b if fits(a.shape, b.shape) else ag.ag_sum(ag.ag_tanh(b)) * 0.125
        result = a + b if op.name == "add" else a - b if op.name == "sub" else a * b
        return ag.ag_clamp(result, -8.0, 8.0)
    if not a.size:
        return a + 1.0
    if op.name == "dropout":
        return ag.ag_dropout(0.25)(a)
    if op.name == "checkpoint":
        return ag.ag_checkpoint(lambda t: ag.ag_tanh(ag.ag_tanh(t) * 0.75), a)
    if op.name == "reduce":
        fn = (ag.ag_sum, ag.ag_mean, ag.ag_max)[op.choice % 3]
        return ag.ag_tanh(fn(a, op.choice % a.ndim, True)) if a.ndim else a
    if op.name == "transpose":
        return ag.ag_transpose(a)
    if op.name == "cut":
        return a[op.choice % a.shape[0] :] if a.ndim else a
    if op.name == "concat":
        return ag.ag_concat([a, a], op.choice % a.ndim) if a.ndim and a.size < 200 else a
    return _matrix_op(op, a)


def _matrix_op(op: Op, a: Any) -> Any:
    m = ag.ag_reshape(a, a.shape[0], -1) if a.ndim else ag.ag_reshape(a, 1, 1)
    if m.size > 400:
        return ag.ag_tanh(m)
    if op.name == "matmul":
        return ag.ag_tanh(m @ m.T)
    if op.name == "norm":
        ones, zeros = ag.ag_scale(m[:, :1], 0.0) + 1.0, ag.ag_scale(m[:, :1], 0.0)
        return (ag.ag_layer_norm_op if op.choice % 2 else ag.ag_batch_norm_op)(m, ones, zeros, 0.5)
    if op.name == "attention":
        return ag.ag_attention(m, m, m, causal=bool(op.choice % 2))
    image = ag.ag_reshape(m, 1, *m.shape, 1)
    return ag.ag_tanh(ag.ag_conv2d(image, ag.ag_reshape(m[:1, :1], 1, 1, 1, 1), padding=op.choice % 2))


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
