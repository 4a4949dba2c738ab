#!/usr/bin/env python3
"""Compare ag with PyTorch on PyTorch's own samples, `op_db`: values, gradients, and inputs that must be refused.
Print, per op that both have, the samples compared, what is not expressed and why, and failures (exit status 1).

    python -m venv --system-site-packages /tmp/torch && /tmp/torch/bin/pip install torch expecttest
    PYTHONPATH=.:tests:.venv/lib/python3.11/site-packages /tmp/torch/bin/python tests/machine/pytorch/op_db.py
    ... tests/machine/pytorch/op_db.py --device vulkan:0 --dtype f32 --ops softmax,nn.functional.conv2d
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2])]

import machine.pytorch.layers  # noqa: F401  (its functions)
import numpy as np
import torch
from machine.pytorch.ops import EXPRESSED, Inexpressible
from torch.testing._internal.common_methods_invocations import op_db

import ag

DTYPES = {"f32": torch.float32, "f64": torch.float64}
NEAR = {("cpu", "f64"): 1e-9, ("cpu", "f32"): 2e-5}  # of the largest element, and of each
REFUSALS = (ag.AgError, ValueError, TypeError, IndexError, NotImplementedError)


class Count:
    """The numbers of samples of one op by their outcome, and the failures."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.compared = self.gradients = self.refused = 0
        self.inexpressible: Counter[str] = Counter()
        self.failures: list[str] = []


def shared_ops() -> list[Any]:
    """The entries of `op_db` that can be expressed, one for each name and variant."""
    return [op for op in op_db if op.name in EXPRESSED and not (op.name == "max" and "binary" in op.variant_test_name)]


class Leaves:
    """ag's tensors for those of a sample."""

    def __init__(self, device: str, dtype: str) -> None:
        self.device, self.dtype, self.pairs = device, dtype, []

    def of(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self._tensor(x)
        if isinstance(x, (list, tuple)) and type(x) in (list, tuple):
            return type(x)(self.of(item) for item in x)
        if isinstance(x, torch.Size):
            return tuple(x)
        if isinstance(x, (complex, torch.dtype)):
            raise Inexpressible(f"a {type(x).__name__}")
        return x

    def _tensor(self, x: Any) -> Any:
        if x.is_sparse or x.is_complex():
            raise Inexpressible("sparse or complex")
        array = x.detach().numpy()
        if x.dtype != DTYPES[self.dtype]:
            if x.is_floating_point():
                raise Inexpressible("another type of float")
            return array
        make = ag.ag_param if x.requires_grad else ag.ag_tensor
        leaf = make(array.reshape(-1, 1) if array.ndim == 1 else array, device=self.device, dtype=self.dtype)
        if x.requires_grad:
            self.pairs.append((x, leaf))
        return leaf.reshape(*array.shape) if array.ndim == 1 else leaf


def differs(mine: Any, theirs: Any, near: float, exact: Any = None) -> str:
    """Say how two arrays differ, or nothing; given the exact one, mine may be off four times as much as theirs."""
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    if mine.shape != theirs.shape:
        return f"shape {mine.shape} instead of {theirs.shape}"
    if mine.dtype.kind != theirs.dtype.kind:
        return f"type {mine.dtype} instead of {theirs.dtype}"
    if mine.dtype.kind == "b":
        return "" if (mine == theirs).all() else f"{(mine != theirs).sum()} truth values differ"
    with np.errstate(all="ignore"):
        finite = np.isfinite(theirs)
        scale = np.abs(theirs[finite]).max(initial=0.0)
        same = np.where(finite, np.abs(mine - theirs) <= near * (np.abs(theirs) + scale + 1e-3), mine == theirs)
        same |= np.isnan(mine) & np.isnan(theirs)
        if exact is not None:
            off = np.abs(theirs - exact)
            same |= np.abs(mine - exact) <= 4 * np.maximum(off, off[np.isfinite(off)].max(initial=0.0)) + near * np.abs(
                exact
            )
    if same.all():
        return ""
    k = np.unravel_index(np.argmin(same), same.shape)
    return f"{(~same).sum()} of {same.size} differ, at {tuple(map(int, k))} {mine[k]!r} instead of {theirs[k]!r}"


def compare_op(op: Any, device: str, dtype: str, limit: int | None = None) -> Count:
    """Compare all samples of an op, or the first ones."""
    count = Count(op.formatted_name)
    near = NEAR.get((device, dtype), 1e-4)
    for k, sample in enumerate(_samples(op, dtype)):
        if limit is not None and k >= limit:
            break
        try:
            wrong = _compare(op, sample, device, dtype, near, count)
        except Inexpressible as reason:
            count.inexpressible[str(reason)] += 1
            continue
        if wrong:
            count.failures.append(f"{op.formatted_name} sample {k} {_brief(sample)}: {wrong}")
    for error in _error_inputs(op):
        _refuse(op, error, device, count)
    return count


def _samples(op: Any, dtype: str) -> Iterator[Any]:
    wanted = DTYPES[dtype]
    if wanted not in op.dtypes:
        return
    grad = op.supports_autograd and wanted in op.backward_dtypes
    for seed, make in enumerate((op.sample_inputs, op.reference_inputs)):
        torch.manual_seed(seed)
        try:
            yield from make("cpu", wanted, requires_grad=grad)
        except ValueError as error:  # a few generators ask for gradients of integers
            if "requires_grad=True" not in str(error):
                raise
            yield from make("cpu", wanted, requires_grad=False)


def _compare(op: Any, sample: Any, device: str, dtype: str, near: float, count: Count) -> str:
    sample = sample.transform(
        lambda t: t.detach().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
    )
    leaves = Leaves(device, dtype)
    if not isinstance(sample.input, (torch.Tensor, list, tuple)):
        raise Inexpressible("numbers only")
    try:
        with ag.with_grad_tape():
            given = [leaves.of(x) for x in (sample.input, *sample.args)]
            named = {k: leaves.of(v) for k, v in sample.kwargs.items()}
            mine = EXPRESSED[op.name](*given, **named)
            loss, weights = _weighted(mine) if isinstance(mine, ag.Tensor) else (None, None)
    except REFUSALS as error:
        if "one has one axis and the other is a column" in str(error):
            raise Inexpressible("a vector beside a column") from None
        return f"{type(error).__name__}: {error}"
    inputs = [x for x, _ in leaves.pairs]
    theirs, wanted = _theirs(op, sample, inputs, weights)
    count.compared += 1
    wrong = differs(np.asarray(mine), theirs, near)
    if wrong and dtype == "f32":
        exact, _ = _theirs(op, *_wide(sample, inputs), weights)
        wrong = differs(np.asarray(mine), theirs, near, exact)
    if wrong or wanted is None or loss.node is None:
        return wrong
    found = ag.backward(loss)
    count.gradients += 1
    for k, (x, leaf) in enumerate(leaves.pairs):
        g = found[leaf].numpy().reshape(x.shape) if leaf in found else np.zeros(x.shape, "f4")
        g = np.where(np.isnan(x.detach().numpy()), wanted[k], g)  # at NaN each has a convention of its own
        wrong = differs(g, wanted[k], 10 * near)
        if wrong and dtype == "f32":
            _, exact = _theirs(op, *_wide(sample, inputs), weights)
            wrong = differs(g, wanted[k], 10 * near, exact[k])
        if wrong:
            return f"gradient of {tuple(x.shape)}: {wrong}"
    return ""


def _weighted(out: Any) -> tuple[Any, Any]:
    """A sum of the elements with weights of their own, and the weights."""
    weights = np.random.default_rng(0).uniform(0.5, 1.5, out.shape).astype(out.numpy().dtype)
    column = ag.ag_tensor(weights.reshape(-1, 1), device=out.device, dtype=out.dtype)
    return ag.ag_sum(out.reshape(-1, 1) * column), weights


def _theirs(op: Any, sample: Any, inputs: list[Any], weights: Any) -> tuple[Any, Any]:
    """PyTorch's result, and its gradients of the weighted sum, if it has some."""
    out = op(sample.input, *sample.args, **sample.kwargs)
    if not isinstance(out, torch.Tensor):
        raise Inexpressible(f"PyTorch gives a {type(out).__name__}")
    if not inputs or not out.requires_grad or weights is None or weights.shape != tuple(out.shape):
        return out.detach().numpy(), None
    try:
        found = torch.autograd.grad((out * torch.from_numpy(weights)).sum(), inputs, allow_unused=True)
    except RuntimeError:  # a sample whose gradient PyTorch cannot compute
        return out.detach().numpy(), None
    return out.detach().numpy(), [
        np.zeros(x.shape, "f4") if g is None else g.numpy() for x, g in zip(inputs, found, strict=True)
    ]


def _wide(sample: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
    """A sample in float64, and those of its tensors that are `inputs`."""
    wide = {id(x): x.detach().double().requires_grad_() for x in inputs}

    def of(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return torch.float64 if t is torch.float32 else t
        return wide.get(id(t), t.detach().double() if t.is_floating_point() else t)

    return sample.transform(of), list(wide.values())


def _error_inputs(op: Any) -> Iterator[Any]:
    if op.error_inputs_func is not None:
        yield from op.error_inputs("cpu")


def _refuse(op: Any, error: Any, device: str, count: Count) -> None:
    """Refuse what PyTorch refuses, if it can be expressed; anything else is a failure."""
    sample, leaves = error.sample_input, Leaves(device, "f32")
    try:
        given = [leaves.of(x) for x in (sample.input, *sample.args)]
        named = {k: leaves.of(v) for k, v in sample.kwargs.items() if k != "out"}
        if "out" in sample.kwargs or not isinstance(sample.input, (torch.Tensor, list, tuple)):
            raise Inexpressible("out, or no tensor")
        got = EXPRESSED[op.name](*given, **named)
    except Inexpressible as reason:
        count.inexpressible[f"error input: {reason}"] += 1
    except REFUSALS:
        count.refused += 1
    except Exception as problem:  # noqa: BLE001  (any other error is a failure)
        count.failures.append(f"{op.formatted_name} error input {_brief(sample)}: {type(problem).__name__}: {problem}")
    else:
        count.failures.append(
            f"{op.formatted_name} error input {_brief(sample)}: gives {np.asarray(got).shape}; "
            f"PyTorch says {error.error_regex!r}"
        )


def _brief(sample: Any) -> str:
    def of(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        return f"[{', '.join(map(of, x))}]" if isinstance(x, (list, tuple)) else repr(x)

    parts = [of(x) for x in (sample.input, *sample.args)] + [f"{k}={of(v)}" for k, v in sample.kwargs.items()]
    return f"({', '.join(parts)})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="f32", choices=DTYPES)
    parser.add_argument("--ops", default="", help="names, with commas")
    parser.add_argument("--limit", type=int, help="samples of each op")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    names, total, reasons = [n for n in given.ops.split(",") if n], Counter(), Counter()
    for op in shared_ops():
        if names and op.name not in names:
            continue
        count = compare_op(op, given.device, given.dtype, given.limit)
        print(
            f"{count.name:45} {count.compared:5} values {count.gradients:5} gradients {count.refused:4} refused "
            f"{sum(count.inexpressible.values()):4} not expressible {len(count.failures):4} failures",
            flush=True,
        )
        for failure in count.failures[:4]:
            print(f"    {failure}")
        reasons.update(count.inexpressible)
        total.update(
            ops=1,
            values=count.compared,
            gradients=count.gradients,
            refused=count.refused,
            inexpressible=sum(count.inexpressible.values()),
            failures=len(count.failures),
        )
    print(f"{given.device} {given.dtype}: " + ", ".join(f"{n} {k}" for k, n in total.items()))
    print("not expressible: " + ", ".join(f"{n} {k}" for k, n in reasons.most_common()))
    return int(total["failures"] > 0)


if __name__ == "__main__":
    sys.exit(main())
