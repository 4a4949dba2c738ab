"""Types: what callers and rules of ops are told is true, and little of the package is untyped.

`make lint` runs mypy over this file too; a call that it must refuse carries the error it must be refused with.
"""

from __future__ import annotations

import inspect
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import typed_program

import ag
from ag.autograd.op import Cotangents, Need, Result, Run, op
from ag.autograd.tensor import Tensor, TensorLike
from ag.autograd.tensor_operators import OPS
from ag.engine.buffer import Buffer
from ag.engine.kernels.elementwise import copy
from ag.engine.kernels.pool import max_pool2d
from ag.engine.window import Window

if TYPE_CHECKING:
    from typing_extensions import assert_type

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


def known_to_type_checkers(model: ag.nn.Sequential, x: Tensor, loader: ag.data.DataLoader) -> None:
    """No Any where a tensor or a model is meant; nothing here runs."""
    assert_type(model(x), Tensor)
    assert_type(model.forward(x), Tensor)
    assert_type(ag.ops.softmax(x, axis=0), Tensor)
    assert_type(ag.ops.sum(x, axis=0, keepdims=True), Tensor)
    assert_type(x.mean(axis=0, keepdims=True) + 1.0, Tensor)
    assert_type(ag.ag_linear(1, 2), ag.nn.Linear)
    assert_type(ag.ag_load_model("file"), ag.nn.Layer)
    assert_type(ag.ag_load_model("file", lambda: ag.nn.Linear(1, 1)), ag.nn.Linear)
    assert_type(ag.ag_capture(known)(x), Tensor)
    for inputs, _ in loader:
        assert_type(inputs, Tensor)
    x.cuda()  # type: ignore[attr-defined]
    ag.nn.Liner(1)  # type: ignore[attr-defined]


def known(x: Tensor) -> Tensor:
    """A step with types."""
    return x


def test_a_program_with_types_runs(capsys: pytest.CaptureFixture[str]) -> None:
    typed_program.main()
    assert capsys.readouterr().out.startswith("loss ")


@pytest.mark.slow
def test_pyright_finds_nothing_in_it(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    root = Path(ag.__file__).parents[1]
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(root)], "include": [typed_program.__file__]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    done = subprocess.run([sys.executable, "-m", "pyright", "-p", str(tmp_path)], capture_output=True, text=True,
                          timeout=300, check=False)
    assert "0 errors, 0 warnings" in done.stdout, done.stdout + done.stderr


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
