"""Types: what callers and rules of ops are told is true, and little of the package is untyped.

`make lint` runs mypy over this file too; a call that it must refuse carries the error it must be refused with.
"""

from __future__ import annotations

import inspect
import io
import tokenize
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ag
from ag.autograd.op import Cotangents, Need, Result, Run, op
from ag.autograd.tensor import Tensor, TensorLike
from ag.autograd.tensor_operators import OPS
from ag.engine.buffer import Buffer
from ag.engine.kernels.elementwise import copy
from ag.engine.kernels.pool import max_pool2d
from ag.engine.window import Window

MOST_ANY, MOST_IGNORED = 300, 5


def tokens_of_ag() -> list[tokenize.TokenInfo]:
    files = sorted(Path(ag.__file__).parent.rglob("*.py"))
    return [token for file in files for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline)]


def test_little_is_untyped() -> None:
    tokens = tokens_of_ag()
    names = sum(token.type == tokenize.NAME and token.string == "Any" for token in tokens)
    ignored = sum(token.type == tokenize.COMMENT and "type: ignore" in token.string for token in tokens)
    assert (names <= MOST_ANY, ignored <= MOST_IGNORED) == (True, True), (names, ignored)


def test_callers_pass_tensors_arrays_and_numbers() -> None:
    functions: list[Callable[[TensorLike], Tensor]] = [ag.ag_exp, ag.ag_relu]
    for f in functions:
        for x in (0.0, np.zeros((2, 1)), ag.ag_tensor([0.0, 0.0])):
            assert f(x).dtype == "f32"
    assert ag.ag_clamp(2.0, hi=1.0).item() == 1.0
    assert ag.ag_concat([ag.ag_tensor([1.0]), np.ones((1, 1))], dim=0).shape == (2, 1)


def refused_by_mypy(buffer: Buffer, run: Run) -> None:
    ag.ag_exp("1")  # type: ignore[arg-type]
    ag.ag_exp(buffer)  # type: ignore[arg-type]
    ag.ag_add(1.0)  # type: ignore[call-arg]
    ag.ag_clamp(1.0, low=0.0)  # type: ignore[call-arg]
    run(copy, 1.0)  # type: ignore[arg-type]
    run(copy, buffer).view(1)  # type: ignore[arg-type]
    run(max_pool2d, buffer, window=Window((1, 1))).view(())  # type: ignore[attr-defined]


def test_rules_see_buffers_and_callers_see_tensors() -> None:
    @op
    def typed_copy(run: Run, x: Buffer, times: int = 1) -> Result[int]:
        """Copy."""
        return run(copy, x), times

    @typed_copy.vjp  # type: ignore[arg-type]  # the forward rule saves an int
    def _(run: Run, g: Buffer, saved: str, need: Need, times: int) -> Cotangents:
        return (g,)

    try:
        assert str(inspect.signature(typed_copy)) == "(x: 'TensorLike', times: 'int' = 1) -> 'Tensor'"
        assert inspect.get_annotations(typed_copy) == {"x": "TensorLike", "times": "int", "return": "Tensor"}
        assert (typed_copy.__name__, typed_copy.__doc__) == ("typed_copy", "Copy.")
    finally:
        del OPS["typed_copy"]
