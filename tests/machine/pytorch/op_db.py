#!/usr/bin/env python3
"""Compare ag with PyTorch on PyTorch's own samples, `op_db`: values, gradients, and inputs that must be refused.

    pip install torch expecttest
    python tests/machine/pytorch/op_db.py cpu f32 [op ...] [--store "cpu f32"]      or errors: what PyTorch refuses
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2])]

import numpy as np
import torch
from machine.pytorch.layers import CALLS
from machine.pytorch.ops import Inexpressible, need
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

import ag
from ag import ops

RESULTS = Path(__file__).with_name("results.json")
LARGEST = 300_000  # elements of an operand
CREATION = ("zeros", "ones", "full", "eye", "linspace", "arange")
NAMED = (ag.AgError, TypeError, ValueError, IndexError)
TOLERANCES = {"f32": (2e-5, 1e-5), "f64": (1e-9, 1e-10)}
SIGN_OF_NAN = ("sign",)  # NaN, as in NumPy; PyTorch has 0
ROUGH = ("nn.functional.celu", "nn.functional.hardsigmoid")  # whose factors PyTorch rounds to float32
Outcome = tuple[str, str]


def entries(name: str) -> list[Any]:
    return [op for op in op_db if op.name == name]


def samples(op: Any) -> Iterable[Any]:
    """Yield the samples and the reference inputs of an op."""
    kinds: list[Callable[..., Any]] = [op.sample_inputs]
    kinds += [op.reference_inputs] if op.reference_inputs_func is not None else []
    dtype = torch.float32 if op.supports_dtype(torch.float32, "cpu") else torch.int64
    for make in kinds:
        try:
            found = list(make("cpu", dtype, requires_grad=op.supports_autograd))
        except (ValueError, RuntimeError):
            found = list(make("cpu", dtype, requires_grad=False))
        yield from found


class Operands:
    """The operands of a sample as tensors of `ag`, and the parameters among them."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.params: list[tuple[torch.Tensor, ag.Tensor]] = []
        self.made: dict[int, ag.Tensor] = {}

    def __call__(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if id(x) not in self.made:
                self.made[id(x)] = self.tensor(x)
            return self.made[id(x)]
        if isinstance(x, torch.dtype):
            return "float" if x == torch.float32 else str(x)
        need(not isinstance(x, complex), "dtype")
        if isinstance(x, torch.Size):
            return tuple(x)
        return None if isinstance(x, (torch.device, torch.layout, torch.memory_format)) else x

    def tensor(self, x: torch.Tensor) -> ag.Tensor:
        """Return a tensor of the same shape: vectors, of which ag makes columns, are made with two axes first."""
        need(x.dtype not in (torch.bfloat16, torch.float16) and not x.is_complex(), "dtype")
        values = x.detach().numpy()
        shaped = values.reshape(-1, 1) if values.ndim == 1 else values
        if x.dtype == torch.bool:
            made = ops.ne(ag.ag_tensor(shaped.astype("f"), dtype="f32"), 0.0)
        elif not x.is_floating_point():
            made = ag.ag_tensor(shaped.astype(np.int32), dtype="i32")
        elif x.requires_grad:
            made = ag.ag_param(np.ascontiguousarray(shaped), dtype=self.dtype)
            self.params.append((x, made))
        else:
            made = ag.ag_tensor(shaped, dtype=self.dtype)
        return made if made.shape == values.shape else ops.reshape(made, *values.shape)


def parts(sample: Any) -> tuple[Any, ...]:
    return sample.input, sample.args, sample.kwargs


def by_torch(op: Any, sample: Any, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Return PyTorch's results and gradients."""
    leaves: list[torch.Tensor] = []
    made: dict[int, torch.Tensor] = {}

    def cast(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            if id(x) not in made:
                made[id(x)] = x.detach().to(dtype).clone().requires_grad_(x.requires_grad)
                if x.requires_grad:
                    leaves.append(made[id(x)])
            return made[id(x)]
        return dtype if x is torch.float32 else x

    x, args, kwargs = tree_map(cast, parts(sample))
    out = [y for y in tree_leaves(op.op(x, *args, **kwargs)) if isinstance(y, torch.Tensor)]
    total = sum(((y * weights(y.shape, y.dtype)).sum() for y in out if y.is_floating_point() and y.requires_grad),
                torch.zeros((), dtype=dtype))
    if not leaves or not total.requires_grad:
        return out, [None] * len(leaves)
    return out, list(torch.autograd.grad(total, leaves, allow_unused=True))


def weights(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    count = int(np.prod(shape))
    return torch.cos(torch.arange(count, dtype=torch.float64)).reshape(shape).to(dtype)


def by_ag(name: str, sample: Any, dtype: str) -> tuple[list[Any], list[Any]]:
    """Return ag's results and gradients."""
    operands = Operands(dtype)
    with ag.with_grad_tape():
        x, args, kwargs = tree_map(operands, parts(sample))
        out = tree_leaves(CALLS[name](x, *args, **kwargs))
        terms = [ops.sum(ops.mul(y, ag_weights(y))) for y in out if y.dtype in ("f32", "f64") and y.size]
        total = sum(terms[1:], terms[0]) if terms else None
    found: Any = {}
    if operands.params and total is not None:
        try:
            found = ag.backward(total)
        except ag.TapeError:  # no gradient flows
            found = {}
    gradients = [found[p].numpy().reshape(tuple(x.shape)) if p in found else np.zeros(tuple(x.shape))
                 for x, p in operands.params]
    return [np.asarray(y.numpy()).reshape(y.shape) for y in out], gradients


def ag_weights(y: ag.Tensor) -> ag.Tensor:
    values = np.cos(np.arange(y.size, dtype="d")).reshape(-1, 1)
    return ops.reshape(ag.ag_tensor(values, dtype=y.dtype), *y.shape)


def close(found: Any, right: Any, dtype: str) -> Any:
    rtol, atol = TOLERANCES[dtype]
    finite = np.abs(right[np.isfinite(right)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    with np.errstate(all="ignore"):
        return (np.abs(found - right) <= rtol * np.abs(right) + atol * min(scale, 100.0)) | (found == right) | (
            np.isnan(found) & np.isnan(right))


def difference(what: str, found: Any, exact: torch.Tensor | None, single: torch.Tensor | None, dtype: str,
               skipped: Any = False) -> str:
    """Say how a result differs from PyTorch's in float64, and from that in float32, which overflows and rounds."""
    right = np.zeros(found.shape) if exact is None else exact.detach().numpy()
    if found.shape != right.shape:
        return f"{what} has shape {found.shape}; {right.shape} is right"
    found, right = found.astype("d"), right.astype("d")
    good = close(found, right, dtype) | skipped
    if not good.all() and dtype == "f32":
        rounded = right if single is None else single.detach().numpy().astype("d")
        with np.errstate(all="ignore"):
            good |= close(found, rounded, dtype) | (np.abs(found - right) <= 8 * np.abs(rounded - right))
    if good.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~good)[0])
    return f"{what} differs at {int((~good).sum())} of {good.size}: at {at} {found[at]!r}, {right[at]!r} is right"


def tried(name: str, op: Any, sample: Any, dtype: str) -> Outcome:
    try:
        exact = by_torch(op, sample, torch.float64)
        need(bool(exact[0]) and not twice(name, sample) and (has_tensors(sample) or name in CREATION))
    except (Inexpressible, RuntimeError, TypeError, ValueError, IndexError):  # PyTorch itself refuses it in float64
        return "skipped", ""
    single = by_torch(op, sample, torch.float32) if dtype == "f32" else exact
    try:
        found = by_ag(name, sample, dtype)
    except Inexpressible as reason:
        return str(reason), ""
    except NAMED as error:
        kind = "integers" if isinstance(error, ag.DtypeError) else "axes" if "with 0 axes" in str(error) else "refused"
        return kind, f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001
        return "wrong", f"{type(error).__name__}: {error}"
    if len(found[0]) != len(exact[0]):
        return "wrong", f"{len(found[0])} results; {len(exact[0])} are right"
    kind = "f32" if name in ROUGH else dtype
    nans = [unsure(name, x.detach().numpy()) for x in leaves_of(sample)]
    if name.startswith("clamp_") and len({x.shape for x in nans}) == 1:
        nans = [np.logical_or.reduce(nans)] * len(nans)
    for i, values in enumerate(found[0]):
        at = nans[0] if name in SIGN_OF_NAN else False
        if text := difference(f"result {i}", values, exact[0][i], single[0][i], kind, at):
            return "wrong", text
    for i, values in enumerate(found[1]):  # a slope at NaN, of which PyTorch's vector and scalar code differ
        if text := difference(f"gradient {i}", values, exact[1][i], single[1][i], kind, nans[i]):
            return "wrong", text
    return "equal", ""


def unsure(name: str, x: Any) -> Any:
    """Say where a gradient is not compared: at NaN, and where PyTorch's slope is infinity by infinity."""
    return np.isnan(x) | (np.isinf(x) & (name == "nn.functional.softsign"))


def twice(name: str, sample: Any) -> bool:
    """Say if ids are given twice, of which PyTorch leaves open which counts."""
    return name == "index_copy" and sample.args[1].unique().numel() < sample.args[1].numel()


def leaves_of(sample: Any) -> list[torch.Tensor]:
    """Return the operands that have a gradient, each once."""
    found = {id(x): x for x in tree_leaves(parts(sample)) if isinstance(x, torch.Tensor) and x.requires_grad}
    return list(found.values())


def has_tensors(sample: Any) -> bool:
    return any(isinstance(x, torch.Tensor) for x in tree_leaves(parts(sample)))


def described(sample: Any) -> str:
    def short(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        kind = str(x.dtype)[6:]
        return f"<{kind} {tuple(x.shape)}{'' if x.numel() > 1 else x.detach().reshape(-1).tolist()}>"
    return str(tree_map(short, parts(sample)))[:300]


def compare_op(name: str, device: str, dtype: str, limit: int | None = None) -> tuple[Counter[str], list[str]]:
    """Run samples of an op; return how many had which outcome, and a text for each that is not equal."""
    outcomes: Counter[str] = Counter()
    texts: list[str] = []
    with ag.ag_device(device), ag.ag_dtype(dtype), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for op in entries(name):
            torch.manual_seed(0)
            for sample in islice(samples(op), limit):
                if any(x.numel() > LARGEST for x in tree_leaves(parts(sample)) if isinstance(x, torch.Tensor)):
                    continue
                outcome, why = tried(name, op, sample, dtype)
                outcomes[outcome] += 1
                if outcome not in ("equal", "skipped"):
                    texts.append(f"{outcome}: {name} {op.variant_test_name} {described(sample)}\n      {why[:300]}")
    return outcomes, texts


def compare_errors(name: str) -> tuple[Counter[str], list[str]]:
    """Run the inputs that PyTorch refuses; ag refuses them by a named error, or can compute them."""
    outcomes: Counter[str] = Counter()
    texts: list[str] = []
    for op in entries(name):
        for wrong in op.error_inputs("cpu") if op.error_inputs_func is not None else ():
            sample, outcome, why = wrong.sample_input, "computed", ""
            if not has_tensors(sample):
                continue
            try:
                with ag.ag_device("cpu"):
                    by_ag(name, sample, "f32")
            except Inexpressible:
                outcome = "inexpressible"
            except NAMED:
                outcome = "refused"
            except Exception as error:  # noqa: BLE001
                outcome, why = "wrong", f"{type(error).__name__}: {error}"
            outcomes[outcome] += 1
            if outcome in ("computed", "wrong"):
                texts.append(f"{outcome}: {name} {described(sample)}\n      PyTorch: {wrong.error_regex!s:.150} {why}")
    return outcomes, texts


def listed(counts: dict[str, dict[str, int]]) -> str:
    return ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in counts.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", help="cpu, vulkan:0, or errors")
    parser.add_argument("dtype", nargs="?", default="f32", choices=list(TOLERANCES))
    parser.add_argument("names", nargs="*", help="of ops; default: all")
    parser.add_argument("--store", metavar="NAME", help="put the counts into results.json under this name")
    given = parser.parse_args()
    torch.set_num_threads(1)
    counts: dict[str, Counter[str]] = {}
    for name in given.names or sorted(CALLS):
        counts[name], texts = (compare_errors(name) if given.device == "errors" else
                               compare_op(name, given.device, given.dtype))
        print(name, dict(counts[name]), *texts, sep="\n  ", flush=True)
    total = sum(counts.values(), Counter())
    print("all", dict(total))
    if given.store:
        stored = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"torch": "", "runs": {}, "ops": {}}
        stored["torch"], stored["runs"][given.store] = torch.__version__, dict(sorted(total.items()))
        if given.device == "cpu" and given.dtype == "f32":
            stored["ops"] = {name: dict(sorted(found.items())) for name, found in counts.items()}
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        RESULTS.write_text(f'{{"commit": {json.dumps(commit.stdout.strip())},\n "torch": '
                           f'{json.dumps(stored["torch"])},\n "runs": {{\n{listed(stored["runs"])}}},\n'
                           f' "ops": {{\n{listed(stored["ops"])}}}}}\n', "utf-8")
    return int(total["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
